"""Pure decisions of the source: where a batch starts and ends, what was lost in between, how the batch is split into tasks.

This module neither contacts a broker nor reads a clock; offset_reader.py supplies the TopicState. The algorithms follow Spark's
Kafka connector: KafkaMicroBatchStream.rateLimit (in integers here) and KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from brokerd.client.fetching import FetchRange
from brokerd.client.offsets import OffsetAndTimestamp
from brokerd.datasource.offsets import SourceOffset
from brokerd.datasource.options import SourceOptions
from brokerd.errors import DataLossError, WireError
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

TASK_BYTES = 4_194_304  # reading this much takes a task about as long as starting it


@dataclass(frozen=True, slots=True)
class TopicState:
    """A snapshot of the subscribed partitions: topic ids, first and next offsets. With read_committed the next offset is the last
    stable offset; the log may end later.
    """

    topic_ids: Mapping[str, bytes]
    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]
    missing: frozenset[str] = frozenset()  # subscribed topics that do not exist
    absent: frozenset[TopicPartition] = frozenset()  # assigned partitions that do not exist
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)  # where looked up (with_log_ends)
    answers: Mapping[TopicPartition, OffsetAndTimestamp] = field(default_factory=dict)  # the full answers for `latest`
    truncations: Mapping[TopicPartition, WireError] = field(default_factory=dict)  # for positions of another history

    def ids_of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, TopicIdPartition]:
        """The ids of partitions."""
        return {tp: TopicIdPartition(self.topic_ids[tp.topic], tp.partition) for tp in tps}

    def log_end(self, tp: TopicPartition) -> int:
        """The log end offset, as far as it was looked up; at least `latest`."""
        return max(self.latest[tp], self.log_ends.get(tp, 0))

    def beyond_latest(self, offsets: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Partitions whose offset lies beyond the known log end: lost, or in open transactions."""
        return [tp for tp, offset in offsets.items() if tp in self.latest and offset > self.log_end(tp)]


class RangePartition(InputPartition):
    """Spark's input partition: the ranges of one task, at most one per topic partition; pickled and sent to the task."""

    def __init__(self, ranges: Sequence[FetchRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


class Continuation(NamedTuple):
    """Where the next batch starts."""

    begins: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]  # those that differ from the end of the last batch
    losses: list[str]  # one sentence each


def topic_ids_after(previous: SourceOffset, snapshot: TopicState, offsets: Iterable[TopicPartition]) -> dict[str, bytes]:
    """The topic ids for the next offset: those of the topics in `offsets`, and those of `previous` whose topics are missing, so
    that a reported loss is not taken for a mistyped name in the next batch."""
    ids = {tp.topic: snapshot.topic_ids[tp.topic] for tp in offsets}
    return ids | {topic: topic_id for topic, topic_id in previous.topic_ids.items() if topic in snapshot.missing}


def continue_from(
    previous: SourceOffset, snapshot: TopicState, reads: Callable[[TopicPartition], bool] = lambda _: True
) -> Continuation:
    """Where the batch after `previous` starts, by partition. Losses in partitions for which `reads` is false are not reported.

    A  known, offset still in the log: starts there, even beyond the last stable offset. A query that switched from read_uncommitted
       to read_committed may be ahead of the last stable offset; it waits.
    B  known, but the log starts later: records were lost; starts at the log start.
    H  known, but of another history of the log: starts where the two diverge, at the log start if that is unknown.
    C  known, but the log ends earlier: its tail was lost; starts at the log end.
    D  the topic id changed: the topic was recreated, and unread records are lost; starts at the new log's start.
    E  new partition of a known topic: starts at 0, as every log does. If the log starts later, records were lost; starts at the log
       start.
    F  new topic: starts at its log start; no record counts as lost.
    G  known, but gone: its unread records are lost.
    """
    begins: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    losses: list[str] = []
    created_anew = {topic for topic, topic_id in snapshot.topic_ids.items() if previous.topic_ids.get(topic, topic_id) != topic_id}
    for topic in sorted(created_anew):
        ended = {str(tp.partition): offset for tp, offset in sorted(previous.offsets.items()) if tp.topic == topic and reads(tp)}
        if ended:  # otherwise the loss was reported when the topic was missing
            unread = f"records of the old topic from offsets {json.dumps(ended)} on were not read"
            losses.append(f"topic '{topic}' is not the one that this query has read (recreated, or another broker's): {unread}")
    lost: dict[TopicPartition, str] = {}
    for tp in sorted(snapshot.latest):
        earliest = snapshot.earliest[tp]
        known = previous.offsets.get(tp) if tp.topic not in created_anew else None
        if known is None:
            begins[tp] = starts[tp] = earliest
            if earliest > 0 and tp.topic in previous.topic_ids and tp.topic not in created_anew:
                lost[tp] = f"partition {tp} is new and starts at {earliest} instead of 0: {earliest} records are gone"
        elif tp in snapshot.truncations:
            truncation = snapshot.truncations[tp]
            begins[tp] = starts[tp] = max(truncation.resume_offset, earliest)
            lost[tp] = f"{truncation.message}; records read after that offset are not in this log; the next offset is {begins[tp]}"
        elif known < earliest:
            begins[tp] = starts[tp] = earliest
            lost[tp] = range_gone(tp, known, earliest)
        elif known > snapshot.log_end(tp):
            begins[tp] = starts[tp] = snapshot.log_end(tp)
            lost[tp] = f"{tp} ends at offset {snapshot.log_end(tp)}, but was read up to {known}: the log has lost its tail"
        else:
            begins[tp] = known
    losses += [sentence for tp, sentence in lost.items() if reads(tp)]
    gone = sorted(tp for tp in previous.offsets if tp not in snapshot.latest and reads(tp))
    if gone:
        losses.append(f"partitions of this query are gone or no longer subscribed to: {', '.join(map(str, gone))}")
    return Continuation(begins, starts, losses)


# A batch DataFrame is planned once, by its first action; tasks of a later action may find that the planned records are gone.
_PLANNED_ONCE = "A batch DataFrame keeps the offsets that its first action found: load() it again to read the records there are now"


def report_losses(losses: Sequence[str], *, fail: bool, is_planned_once: bool = False) -> None:
    """Raises DataLossError with all `losses` (a sentence each); without `fail`, logs a warning for each.

    A loss is established from the broker's answers, never from a missing response, so there are no false alarms. With
    `is_planned_once`, the error adds that the offsets may come from an earlier action.
    """
    if not losses:
        return
    if fail:
        advice = f"{_PLANNED_ONCE}. " if is_planned_once else ""
        raise DataLossError(f"{'; '.join(losses)}. {advice}To continue without them, set option failOnDataLoss=false")
    for loss in losses:
        logger.warning("continuing without lost records (failOnDataLoss=false): %s", loss)


def begun_at(
    begins: Mapping[TopicPartition, int], snapshot: TopicState, reads: Callable[[TopicPartition], bool]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Where the first batch starts, which is never before the log. Also returns a sentence for each partition of which it skips
    records, if `reads` is true for the partition."""
    passed = {tp: begin for tp, begin in begins.items() if begin < snapshot.earliest[tp]}
    losses = [range_gone(tp, begin, snapshot.earliest[tp]) for tp, begin in passed.items() if reads(tp)]
    return {tp: max(begin, snapshot.earliest[tp]) for tp, begin in begins.items()}, losses


def range_gone(tp: TopicPartition, wanted: int, earliest: int) -> str:
    """The sentence for records that retention or DeleteRecords removed before they were read."""
    return (
        f"{earliest - wanted} records of {tp} are gone, offsets {wanted} to {earliest - 1}: retention or DeleteRecords removed "
        f"them; the next offset is {earliest}"
    )


def limit_rows(
    begins: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], max_rows: int | None
) -> dict[TopicPartition, int]:
    """The end offsets of a batch: `latest`, or about `max_rows` records, shared in proportion to the backlog of each partition.

    A partition with any backlog gets at least one record, so that a small one next to a large one does not starve. The batch may
    therefore exceed `max_rows`.
    """
    sizes = {tp: max(0, latest[tp] - begin) for tp, begin in begins.items()}
    total = sum(sizes.values())
    if max_rows is None or total <= max_rows:
        return {tp: begin + sizes[tp] for tp, begin in begins.items()}
    return {tp: begin + (max(1, max_rows * sizes[tp] // total) if sizes[tp] else 0) for tp, begin in begins.items()}


def share_bytes(sizes: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, int] | None:
    """Each partition's share of `max_bytes`, in proportion to its backlog in bytes; None if the whole backlog fits."""
    total = sum(sizes.values())
    if total <= max_bytes:
        return None
    return {tp: max_bytes * size // total for tp, size in sizes.items() if size}


def cut_ends(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The end offsets of a batch with a byte limit. `reached`: where each share ends according to the broker. A partition with any
    backlog advances by at least one offset."""
    return {tp: min(end, max(begins[tp] + 1, reached.get(tp, end))) for tp, end in ends.items()}


def ranges_between(start: SourceOffset, end: SourceOffset) -> list[FetchRange]:
    """The range that a batch reads in each partition; empty ranges are left out. The two offsets alone determine the ranges, so a
    replayed batch gets the same ranges."""
    ranges = []
    for tp in sorted(end.offsets):
        begin = end.starts.get(tp, start.offsets.get(tp, 0))
        if end.offsets[tp] > begin:
            id_tp = TopicIdPartition(end.topic_ids[tp.topic], tp.partition)
            position = LogPosition(end.offsets[tp], end.epochs[tp]) if tp in end.epochs else None
            ranges.append(FetchRange(id_tp, begin, end.offsets[tp], tp.topic, end=position))
    return ranges


def tasks_of(
    ranges: Sequence[FetchRange], options: SourceOptions, sizes_bytes: Mapping[TopicIdPartition, int]
) -> list[RangePartition]:
    """The ranges of each task; `sizes_bytes` as in `group_ranges`."""
    pieces = split_ranges(
        ranges, min_partitions=options.min_partitions, max_records_per_partition=options.max_records_per_partition
    )
    return [RangePartition(group) for group in group_ranges(pieces, sizes_bytes)]


def split_ranges(
    ranges: Sequence[FetchRange], *, min_partitions: int | None, max_records_per_partition: int | None
) -> list[FetchRange]:
    """Splits ranges into one per task, in the number and sizes of Spark's Kafka connector; pieces of a partition stay in order.

    First, every range is cut into as few pieces as `max_records_per_partition` allows. If there are fewer than `min_partitions`,
    larger pieces are cut again in proportion to their size, rounded, which gives about that many. A partition with a piece too
    small to cut is left as it is; only that piece is excluded from the proportion.
    """
    pieces = [one for one in ranges if one.until_offset > one.start_offset]
    if max_records_per_partition is not None:
        pieces = [piece for one in pieces for piece in _cut(one, -(-one.size // max_records_per_partition))]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(one.size for one in pieces)
    whole = [one for one in pieces if _share(one.size, total, min_partitions) == 1]
    whole_partitions = {one.tp for one in whole}
    rest_total = total - sum(one.size for one in whole)
    rest_count = max(min_partitions - len(whole), 1)

    def count(one: FetchRange) -> int:
        return 1 if one.tp in whole_partitions else _share(one.size, rest_total, rest_count)

    return [piece for one in pieces for piece in _cut(one, count(one))]


def group_ranges(ranges: Sequence[FetchRange], sizes_bytes: Mapping[TopicIdPartition, int]) -> list[tuple[FetchRange, ...]]:
    """The ranges of each task: small ones share a task of at most TASK_BYTES, others have one each.

    `sizes_bytes`: of the ranges, on the broker's disk. A range of unknown size has a task of its own. Large ranges come first, so
    that Spark starts them first; small ones keep their order.
    """
    large: list[tuple[FetchRange, ...]] = []
    shared: list[list[FetchRange]] = []
    room_bytes = 0
    for one in ranges:
        size_bytes = sizes_bytes.get(one.tp, TASK_BYTES)
        if size_bytes >= TASK_BYTES:
            large.append((one,))
        elif shared and size_bytes <= room_bytes:
            shared[-1].append(one)
            room_bytes -= size_bytes
        else:
            shared.append([one])
            room_bytes = TASK_BYTES - size_bytes
    return large + [tuple(group) for group in shared]


def _share(size: int, total: int, count: int) -> int:
    """The number of `count` pieces for a range: its share of `total`, halves rounded up, in floating point as on the JVM."""
    return max(1, math.floor(float(size) / float(total) * count + 0.5))


def _cut(one: FetchRange, count: int) -> Iterator[FetchRange]:
    """Cuts `one` into `count` non-empty pieces; the last pieces take the remainder."""
    count = min(count, one.size)
    begin = one.start_offset
    for number in range(count):
        end = begin + (one.until_offset - begin) // (count - number)
        yield one._replace(start_offset=begin, until_offset=end)
        begin = end
