"""One group: its offsets, by topic and partition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from brokerd.groups.model import CommittedOffset
from brokerd.ids import TopicIdPartition


class Group:
    """Only the table changes it."""

    __slots__ = ("_topics", "commit_timestamp", "count", "group_id", "last_commit_ms", "principal", "slots")

    def __init__(self, group_id: str, principal: str) -> None:
        self.group_id = group_id
        self.principal = principal
        self.count = 0  # partitions that have an offset
        self.slots = 0
        self.last_commit_ms = 0  # log time
        self.commit_timestamp = 0  # of the same commit, wall clock
        self._topics: dict[bytes, dict[int, CommittedOffset]] = {}

    def offset(self, tp: TopicIdPartition) -> CommittedOffset | None:
        """The offset of one partition."""
        partitions = self._topics.get(tp.topic_id)
        return partitions.get(tp.partition) if partitions is not None else None

    def partitions(
        self, after: TopicIdPartition | None = None, count_of: Callable[[bytes], int] = lambda _: 0
    ) -> Iterator[TopicIdPartition]:
        """Partitions that have an offset, by topic id and number; those after one of them. With `count_of`, how many partitions a
        topic has, also the others of these topics. Not to be changed meanwhile."""
        topic_ids = sorted(self._topics)
        for topic_id in topic_ids[bisect_left(topic_ids, after.topic_id) if after is not None else 0 :]:
            for partition in sorted(self._topics[topic_id].keys() | range(count_of(topic_id))):
                tp = TopicIdPartition(topic_id, partition)
                if after is None or tp > after:
                    yield tp

    def knows(self, topic_id: bytes) -> bool:
        """True if it has an offset of the topic."""
        return topic_id in self._topics

    def topic_ids(self) -> Iterator[bytes]:
        """Topics that it has an offset of."""
        return iter(self._topics)

    def added_slots(self, offsets: Mapping[TopicIdPartition, CommittedOffset]) -> int:
        """How many more slots it would take with these."""
        return sum(committed.slots - _slots_of(self.offset(tp)) for tp, committed in offsets.items())

    def put(self, offsets: Mapping[TopicIdPartition, CommittedOffset]) -> None:
        """Takes offsets, new or newer."""
        for tp, committed in offsets.items():
            partitions = self._topics.setdefault(tp.topic_id, {})
            before = partitions.get(tp.partition)
            self.count += before is None
            self.slots += committed.slots - _slots_of(before)
            partitions[tp.partition] = committed
            log_time = committed.timestamp - committed.clock_ahead
            if log_time >= self.last_commit_ms:
                self.last_commit_ms, self.commit_timestamp = log_time, committed.timestamp

    def drop(self, tps: Iterable[TopicIdPartition]) -> None:
        """Forgets offsets; those that there are none of are passed over."""
        for tp in tps:
            partitions = self._topics.get(tp.topic_id, {})
            before = partitions.pop(tp.partition, None)
            self.count -= before is not None
            self.slots -= _slots_of(before)
            if before is not None and not partitions:
                del self._topics[tp.topic_id]

    def drop_topic(self, topic_id: bytes) -> None:
        """Forgets all offsets of one topic."""
        self.drop([TopicIdPartition(topic_id, partition) for partition in self._topics.get(topic_id, {})])


def _slots_of(committed: CommittedOffset | None) -> int:
    return committed.slots if committed is not None else 0
