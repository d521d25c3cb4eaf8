"""Pure decisions of the source: where a batch begins and ends, what was lost in between, how it is split over tasks.

Nothing here asks a broker or reads a clock; offset_reader.py brings the Snapshot. Shapes follow Spark's Kafka connector
(KafkaMicroBatchStream.rateLimit, KafkaOffsetRangeCalculator), in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.datasource.offsets import SourceOffset
from brokerd.errors import UnknownTopicOrPartitionError
from brokerd.ids import TopicPartition


class OffsetRange(NamedTuple):
    """What one task reads of one partition: `start` inclusive, `until` exclusive."""

    topic: str
    topic_id: bytes
    partition: int
    start: int
    until: int

    @property
    def size(self) -> int:
        """Offsets in the range; records may be fewer."""
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.until})"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The subscribed partitions at one moment: ids of their topics, first and next offset."""

    topic_ids: Mapping[str, bytes]
    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]
    missing: frozenset[str] = frozenset()  # topics subscribed to by name that do not exist
    absent: frozenset[TopicPartition] = frozenset()  # assigned partitions that their topics do not have


class Continuation(NamedTuple):
    """Where the next batch begins."""

    begins: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]  # of those, the ones that are not simply where the last batch ended
    losses: list[str]  # one sentence each


def require_topics(snapshot: Snapshot, option: str, known: Container[str] = ()) -> None:
    """Raises UnknownTopicOrPartitionError for a missing topic, unless it is one of `known`: those existed when the query
    last looked, so they are no mistake but a loss, which `continue_from` tells. `option` named the topics."""
    for name in sorted(snapshot.missing):
        if name not in known:
            raise UnknownTopicOrPartitionError(
                f"topic '{name}' does not exist: create it first (brokerd topics create {name} --partitions N), or correct "
                f"option {option}"
            )


def topic_ids_after(previous: SourceOffset, snapshot: Snapshot, offsets: Iterable[TopicPartition]) -> dict[str, bytes]:
    """The topics that the next offset knows: those of its `offsets`, and those of `previous` that are missing, so that a
    loss which was told once is not taken for a mistyped name in the batch after it."""
    ids = {tp.topic: snapshot.topic_ids[tp.topic] for tp in offsets}
    return ids | {topic: topic_id for topic, topic_id in previous.topic_ids.items() if topic in snapshot.missing}


def continue_from(previous: SourceOffset, snapshot: Snapshot) -> Continuation:
    """Where the batch after `previous` begins, partition by partition.

    A  known, its offset still in the log: there.
    B  known, but its log begins later: records were lost; at the log's start.
    C  known, but its log ends earlier: its tail was lost; at the log's end.
    D  the topic has another id: it was deleted and recreated, what was not read is lost; at the new log's start.
    E  new partition of a known topic: at 0, where every log begins. If its log begins later, records were lost.
    F  new topic: at its log's start; nothing was promised of it.
    G  known, but no longer there: what was not read of it is lost.
    """
    begins: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    losses: list[str] = []
    created_anew = {topic for topic, topic_id in snapshot.topic_ids.items() if previous.topic_ids.get(topic, topic_id) != topic_id}
    for topic in sorted(created_anew):
        ended = {str(tp.partition): offset for tp, offset in sorted(previous.offsets.items()) if tp.topic == topic}
        if ended:  # else its loss was told when it was missing
            losses.append(f"topic '{topic}' was deleted and recreated: what the old one held from offsets {ended} on was not read")
    for tp in sorted(snapshot.latest):
        earliest = snapshot.earliest[tp]
        known = previous.offsets.get(tp) if tp.topic not in created_anew else None
        if known is None:
            begins[tp] = starts[tp] = earliest
            if earliest > 0 and tp.topic in previous.topic_ids and tp.topic not in created_anew:
                losses.append(f"partition {tp} is new and begins at {earliest} instead of 0: {earliest} records are gone")
        elif known < earliest:
            begins[tp] = starts[tp] = earliest
            losses.append(range_gone(tp, known, earliest))
        elif known > snapshot.latest[tp]:
            begins[tp] = starts[tp] = snapshot.latest[tp]
            losses.append(f"{tp} ends at offset {snapshot.latest[tp]}, but was read up to {known}: its log has lost its tail")
        else:
            begins[tp] = known
    gone = sorted(tp for tp in previous.offsets if tp not in snapshot.latest)
    if gone:
        losses.append(f"no longer there or no longer subscribed: {', '.join(map(str, gone))}")
    return Continuation(begins, starts, losses)


def range_gone(tp: TopicPartition, wanted: int, earliest: int) -> str:
    """The sentence for records that retention or DeleteRecords removed before they were read."""
    return (
        f"{earliest - wanted} records of {tp} are gone, offsets {wanted} to {earliest - 1}: retention or DeleteRecords passed "
        f"them; the next offset is {earliest}"
    )


def limit_rows(
    begins: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], max_rows: int | None
) -> dict[TopicPartition, int]:
    """Where a batch ends: everything, or about `max_rows` records, in proportion to what each partition has waiting.

    A partition that has anything gets at least one, so that a small one beside a large one does not starve; with more
    such partitions than `max_rows` the batch is larger by the difference.
    """
    sizes = {tp: max(0, latest[tp] - begin) for tp, begin in begins.items()}
    total = sum(sizes.values())
    if max_rows is None or total <= max_rows:
        return {tp: begin + sizes[tp] for tp, begin in begins.items()}
    return {tp: begin + (max(1, max_rows * sizes[tp] // total) if sizes[tp] else 0) for tp, begin in begins.items()}


def ranges_between(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
    """What a batch reads of each partition; empty ranges are left out. The same for a replayed batch, whatever has
    happened to the topics since: everything is in the two offsets."""
    ranges = []
    for tp in sorted(end.offsets):
        begin = end.starts.get(tp, start.offsets.get(tp, 0))
        if end.offsets[tp] > begin:
            ranges.append(OffsetRange(tp.topic, end.topic_ids[tp.topic], tp.partition, begin, end.offsets[tp]))
    return ranges


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records_per_partition: int | None
) -> list[OffsetRange]:
    """One range per task, as many and as large as those of Spark's Kafka connector, pieces of a partition in order.

    First every range is cut into as few pieces as `max_records_per_partition` allows. If those are fewer than
    `min_partitions`, larger ones are cut again, each in proportion to its size, rounded: about as many come out. A partition
    with a piece that is too small for a second one stays as it is, and its records count for nothing in the proportion.
    """
    pieces = [one for one in ranges if one.size > 0]
    if max_records_per_partition is not None:
        pieces = [piece for one in pieces for piece in _cut(one, -(-one.size // max_records_per_partition))]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(one.size for one in pieces)
    whole = [one for one in pieces if _share(one.size, total, min_partitions) == 1]
    whole_partitions = {(one.topic, one.partition) for one in whole}
    rest_total = total - sum(one.size for one in whole)
    rest_count = max(min_partitions - len(whole), 1)

    def count(one: OffsetRange) -> int:
        return 1 if (one.topic, one.partition) in whole_partitions else _share(one.size, rest_total, rest_count)

    return [piece for one in pieces for piece in _cut(one, count(one))]


def _share(size: int, total: int, count: int) -> int:
    """How many of `count` pieces a range gets: its part of `total`, halves rounded up, in floating point as the JVM does it."""
    return max(1, math.floor(float(size) / float(total) * count + 0.5))


def _cut(one: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """`one` in `count` pieces, never empty ones; what does not divide evenly goes to the last ones."""
    count = min(count, one.size)
    begin = one.start
    for number in range(count):
        end = begin + (one.until - begin) // (count - number)
        yield one._replace(start=begin, until=end)
        begin = end
