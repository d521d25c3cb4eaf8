"""Notices partitions that nobody reads: no members share out a topic's partitions, so those that are added to it go unread until
somebody assigns them. Looks now and then, in the background, and says it once for each partition."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
from collections.abc import Collection, Mapping

from brokerd.client.blocking import BlockingClient
from brokerd.clock import Clock
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import Assignment
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition

logger = logging.getLogger(__name__)

LOOK_MS = 30_000
_NAMED_MAX = 10


class Coverage:
    """Of one consumer, for the thread that uses it."""

    def __init__(self, client: BlockingClient, config: PlainConsumerConfig, assignment: Assignment, clock: Clock) -> None:
        self._client = client
        self._group_id = config.group_id
        self._assignment = assignment
        self._clock = clock
        self._next_ms = clock.monotonic_ms() + LOOK_MS  # others of the group may begin a little later
        self._counts: dict[bytes, int] = {}  # partitions of a topic when it was first looked at
        self._told: set[TopicIdPartition] = set()
        self._under_way: concurrent.futures.Future[None] | None = None

    def look(self) -> None:
        """Begins a look if it is time. Waits for nothing."""
        if self._clock.monotonic_ms() < self._next_ms or (self._under_way is not None and not self._under_way.done()):
            return
        self._next_ms = self._clock.monotonic_ms() + LOOK_MS
        topics = {id_tp.topic_id: one.tp.topic for id_tp, one in self._assignment.by_id.items()}
        if topics:
            self._under_way = self._client.loop_thread.submit(self._look(topics, frozenset(self._assignment.by_id)))

    def wait_ms(self, left_ms: int | None) -> int:
        """How long a call that has so much time left (None: any) may wait until `look` is to be called again."""
        due_ms = max(0, self._next_ms - self._clock.monotonic_ms()) or LOOK_MS
        return due_ms if left_ms is None else min(left_ms, due_ms)

    async def _look(self, topics: Mapping[bytes, str], assigned: Collection[TopicIdPartition]) -> None:
        with contextlib.suppress(BrokerdError):  # the next look finds it
            metadata = await self._client.broker_client.metadata(sorted(topics.values()))
            counts = {one.topic_id: one.partition_count for one in metadata.topics.values() if one.topic_id in topics}
            for topic_id, count in counts.items():
                first = 0 if self._group_id else self._counts.setdefault(topic_id, count)
                others = [TopicIdPartition(topic_id, number) for number in range(first, count)]
                await self._tell(topics[topic_id], [tp for tp in others if tp not in assigned and tp not in self._told])

    async def _tell(self, topic: str, others: list[TopicIdPartition]) -> None:
        known = await self._client.broker_client.groups.offsets(self._group_id, others) if self._group_id and others else {}
        unread = [tp for tp in others if tp not in known]
        if unread:
            self._told.update(unread)
            numbers = ", ".join(str(tp.partition) for tp in unread[:_NAMED_MAX]) + (", ..." if len(unread) > _NAMED_MAX else "")
            logger.warning(
                "topic '%s' has partitions that %s (%s): assign() them, here or in another process, or their records stay unread",
                topic,
                f"nobody in group '{self._group_id}' has read" if self._group_id else "were added, and this consumer does not read",
                numbers,
            )
