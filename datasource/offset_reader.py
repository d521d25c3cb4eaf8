"""Fetches the current topics and offsets from the broker. planning.py decides what a batch reads.

The client retries every call until default.api.timeout.ms, because Spark retries none of the methods that make these calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Container, Iterable, Mapping, MutableMapping, Sequence

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import FetchRange
from brokerd.client.metadata import NOTHING_KNOWN, Metadata
from brokerd.client.offsets import (
    READ_UNCOMMITTED,
    AfterBytes,
    GivenOffset,
    LastRecords,
    OffsetAndTimestamp,
    OffsetSpec,
    Wanted,
    answers_in,
)
from brokerd.config.settings import INT64_MAX
from brokerd.datasource.bounds import (
    EARLIEST_NUMBER,
    LATEST_NUMBER,
    AtTimestamp,
    Bound,
    Committed,
    SpecificOffsets,
)
from brokerd.datasource.offsets import INITIAL, SourceOffset
from brokerd.datasource.options import AssignedPartitions, SourceOptions, TopicList, TopicPattern
from brokerd.datasource.patterns import topic_matcher
from brokerd.datasource.planning import (
    RangePartition,
    TopicState,
    continue_from,
    cut_ends,
    report_losses,
    share_bytes,
    tasks_of,
)
from brokerd.datasource.where import ALL_ROWS, cut_ranges
from brokerd.errors import (
    ConfigError,
    InvalidTopicError,
    LogTruncationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import LogPosition, TopicIdPartition, TopicInfo, TopicPartition, missing_topic_remedy

logger = logging.getLogger(__name__)

_NAMES_MAX = 20
_FEW_ROWS = 50_000  # more rows rarely fit into one task
# A topic may be deleted between the two calls of a snapshot, but hardly in every attempt.
_SNAPSHOT_TRIES = 4


class OffsetReader:
    """Looks up topics and offsets for one query. Stateless: any process may create its own."""

    def __init__(self, client: BlockingClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._subscription = options.subscription
        self._isolation = options.consumer.isolation_level

    def snapshot(self, previous: SourceOffset = INITIAL, known: TopicState | None = None) -> TopicState:
        """The subscribed partitions with their first and next offsets, and the subscribed topics that do not exist; planning
        decides whether those are mistakes or losses. Also checks the positions of `previous` for truncation.

        `known`: an earlier snapshot, whose partitions are not looked up again, unless one is gone or some did not exist.
        """
        if known is not None and known.latest and not known.missing and not known.absent:
            with contextlib.suppress(UnknownTopicIdError):
                return self._ends_of(dict(known.topic_ids), known.latest, previous)
        for tries_left in reversed(range(_SNAPSHOT_TRIES)):
            topics, missing = self._topics(previous)
            tps, absent = self._partitions(topics)
            topic_ids = {name: topic.topic_id for name, topic in topics.items()}
            try:
                return dataclasses.replace(self._ends_of(topic_ids, tps, previous), missing=missing, absent=absent)
            except UnknownTopicIdError:
                if not tries_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _ends_of(self, topic_ids: Mapping[str, bytes], tps: Iterable[TopicPartition], previous: SourceOffset) -> TopicState:
        """The first and next offsets of partitions; checks the positions of `previous`. Raises UnknownTopicIdError."""
        answers = self._results(topic_ids, dict.fromkeys(tps, OffsetSpec.LATEST), positions=previous)
        earliest = {tp: one.log_start_offset for tp, one in answers.items()}
        latest = {tp: one.offset for tp, one in answers.items()}
        return TopicState(topic_ids, earliest, latest, answers=answers, truncations=_truncations(answers))

    def checked(self, snapshot: TopicState, previous: SourceOffset) -> TopicState:
        """The snapshot, with its truncations replaced by a fresh check of the positions of `previous`."""
        known = {tp: GivenOffset(previous.offsets[tp]) for tp in previous.epochs if tp in snapshot.latest}
        try:
            answers = self._results(snapshot.topic_ids, known, positions=previous)
        except UnknownTopicIdError:  # deleted since: the tasks report it
            return snapshot
        return dataclasses.replace(snapshot, truncations=_truncations(answers))

    def epochs_before(
        self, snapshot: TopicState, ends: Mapping[TopicPartition, int], previous: SourceOffset = INITIAL
    ) -> dict[TopicPartition, int]:
        """The ids of the leader epochs of the records before `ends`, where the broker knows them. The snapshot usually has them
        already. Raises LogTruncationError if the log was truncated since the snapshot."""
        epochs = {tp: _id_before(snapshot.answers[tp], end) for tp, end in ends.items() if end <= snapshot.latest[tp]}
        unknown = {tp: GivenOffset(ends[tp]) for tp, epoch_id in epochs.items() if epoch_id is None}
        with contextlib.suppress(UnknownTopicIdError):  # deleted since: the tasks report it
            for tp, answer in self._results(snapshot.topic_ids, unknown, positions=previous).items():
                if answer.truncation is not None and tp not in snapshot.truncations:
                    raise answer.truncation
                epochs[tp] = answer.leader_epoch_id
        return {tp: epoch_id for tp, epoch_id in epochs.items() if epoch_id}

    def with_log_ends(self, snapshot: TopicState, offsets: Mapping[TopicPartition, int]) -> TopicState:
        """The snapshot, with the log end offsets of partitions whose `offsets` lie beyond the readable end: such an offset is not
        lost if it is in an open transaction or newer than the snapshot. Usually no offset lies beyond, and no request is sent."""
        ahead = snapshot.beyond_latest(offsets)
        if not ahead:
            return snapshot
        log_ends = self._offsets(snapshot, dict.fromkeys(ahead, OffsetSpec.LATEST), READ_UNCOMMITTED)
        return dataclasses.replace(snapshot, log_ends={**snapshot.log_ends, **log_ends})

    def require_not_hidden(self, known: Iterable[str], snapshot: TopicState) -> None:
        """Raises the broker's error if a topic of `known` that matches the pattern is no longer visible but may still exist.
        Topics subscribed by name need no check: every snapshot looks them up by name."""
        if isinstance(self._subscription, TopicPattern):
            matches = topic_matcher(self._subscription.pattern)
            require_not_hidden(self._client, [name for name in known if name not in snapshot.topic_ids and matches(name)])

    def resolve(self, bound: Bound, snapshot: TopicState, *, now_ms: int) -> dict[TopicPartition, int]:
        """Resolves a starting* or ending* option to offsets. `now_ms`: since 1970.

        Raises ConfigError if the option does not name every partition, names others, gives a time or offset past the end of the
        log, or refers to a group without committed offsets; DataLossError if records were lost since that group's offsets.
        """
        if bound is OffsetSpec.EARLIEST:
            return dict(snapshot.earliest)
        if isinstance(bound, LastRecords):
            return self._newest(bound, snapshot)
        if isinstance(bound, Committed):
            return self._committed(snapshot)
        if isinstance(bound, SpecificOffsets):
            if bound.option.startswith("starting"):  # a read may start in open transactions and wait, but not end there
                snapshot = self.with_log_ends(snapshot, bound.offsets)
            return _specific(bound, snapshot)
        if isinstance(bound, AtTimestamp):
            return self._at_timestamp(bound.fixed(now_ms), snapshot)
        return dict(snapshot.latest)

    def limit_bytes(
        self, snapshot: TopicState, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, int]:
        """The end offsets of a batch from `begins` of about `max_bytes`, at most `ends`. Each partition's share is proportional to
        its backlog in bytes. Record batches are fetched whole: each share ends with a record batch and holds at least one."""
        waiting = {tp: AfterBytes(begins[tp], end, INT64_MAX) for tp, end in ends.items() if end > begins[tp]}
        try:
            sizes = {tp: found.size_bytes for tp, found in self._results(snapshot.topic_ids, waiting).items()}
            shares = share_bytes(sizes, max_bytes)
            if shares is None:
                return dict(ends)
            wanted = {tp: waiting[tp]._replace(max_bytes=share) for tp, share in shares.items()}
            return cut_ends(begins, ends, self._offsets(snapshot, wanted))
        except UnknownTopicIdError:  # deleted since the snapshot: the task that reads it reports the loss
            return dict(ends)

    def tasks(self, ranges: Sequence[FetchRange]) -> list[RangePartition]:
        """The ranges of each task. To let small ranges share a task, looks up their sizes on the broker's disk, unless there is
        only one range or there are too many rows."""
        options = self._options
        sizes_bytes: dict[TopicIdPartition, int] = {}
        if len(ranges) > 1 and options.shares_tasks and sum(one.size for one in ranges) <= _FEW_ROWS:
            wanted = {one.tp: AfterBytes(one.start_offset, one.until_offset, INT64_MAX) for one in ranges}
            found = self._client.list_offsets(wanted, self._isolation)
            sizes_bytes = {tp: answer.size_bytes for tp, answer in found.items() if isinstance(answer, OffsetAndTimestamp)}
        return tasks_of(ranges, options, sizes_bytes)

    def cut(self, ranges: Iterable[FetchRange], time_starts: MutableMapping[TopicIdPartition, int]) -> list[FetchRange]:
        """The parts of `ranges` that must be fetched, by option `where`. `time_starts` caches the first offset at or after its
        start time, if it lies in the range. If the log loses that offset, it loses the range's end too, and the check of the end's
        history shows it. A later offset is not cached: a truncation may give it to another record unnoticed, since nothing that was
        read is lost.

        The look-up includes records of open transactions, because they may be committed later. A partition is not cut if the broker
        cannot tell: it is damaged, or has lost records at the start or end of the range, which may be of that time.
        """
        wanted = self._options.where
        if wanted == ALL_ROWS:
            return list(ranges)
        ranges = cut_ranges(ranges, wanted, {})
        if wanted.start_time_ms is None or not ranges:
            return ranges
        begins = {one.tp: one.start_offset for one in ranges}
        unknown = {tp: begin for tp, begin in begins.items() if tp not in time_starts}
        ends = {one.tp: one.end for one in ranges if one.end is not None}
        found = self._first_of_time(unknown, ends, wanted.start_time_ms)
        time_starts.update(
            {tp: first for tp, first in found.items() if first is not None and tp in ends and first < ends[tp].offset}
        )
        return cut_ranges(ranges, wanted, {**found, **time_starts})

    def _first_of_time(
        self, begins: Mapping[TopicIdPartition, int], ends: Mapping[TopicIdPartition, LogPosition], time_ms: int
    ) -> dict[TopicIdPartition, int | None]:
        """The first offset at or after a time (None if there is no such record). Covers only partitions whose log still reaches
        back to `begins` and has lost nothing before `ends`: there the look-up saw all records in between."""
        if not begins:
            return {}
        checked = {tp: end for tp, end in ends.items() if tp in begins}
        results = self._client.list_offsets(dict.fromkeys(begins, time_ms), READ_UNCOMMITTED, checked)
        answers = {
            tp: result.offset
            for tp, result in results.items()
            if isinstance(result, OffsetAndTimestamp) and result.truncation is None
        }
        # After the look-up by time: a log that still reaches back to `begins` now did so then, so that look-up covered all of it.
        earliest = self._client.list_offsets(dict.fromkeys(answers, OffsetSpec.EARLIEST), READ_UNCOMMITTED) if answers else {}
        found: dict[TopicIdPartition, int | None] = {}
        for tp, first in earliest.items():
            if isinstance(first, OffsetAndTimestamp) and first.offset <= begins[tp]:
                found[tp] = answers[tp] if answers[tp] >= 0 else None
        return found

    def wait_for_records(self, snapshot: TopicState, *, timeout_ms: int) -> None:
        """Returns once a partition has grown past `snapshot`, or after `timeout_ms`, or early if the broker cannot be reached."""
        ends = {id_tp: snapshot.latest[tp] for tp, id_tp in snapshot.ids_of(snapshot.latest).items()}
        self._client.wait_for_records(ends, self._isolation, timeout_ms=timeout_ms)

    def _topics(self, previous: SourceOffset) -> tuple[dict[str, TopicInfo], frozenset[str]]:
        """The subscribed topics, and the names of those that do not exist. The topics and partitions of `previous` count as gone
        only if they are: a node with stale metadata may not know them yet."""
        subscription = self._subscription
        counts: dict[str, int] = {}
        for topic, partition in previous.offsets:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        known = {topic_id: counts.get(name, 0) for name, topic_id in previous.topic_ids.items()}
        if isinstance(subscription, TopicPattern):
            matches = topic_matcher(subscription.pattern)
            known = {topic_id: known[topic_id] for name, topic_id in previous.topic_ids.items() if matches(name)}
            topics = self._client.metadata(None, known).topics
            matching = {name: topic for name, topic in topics.items() if matches(name)}
            return matching, frozenset()
        wanted = subscription.names if isinstance(subscription, TopicList) else sorted({tp.topic for tp in subscription.partitions})
        metadata = _visible(self._client, wanted, known)
        return dict(metadata.topics), frozenset(metadata.errors)

    def _partitions(self, topics: Mapping[str, TopicInfo]) -> tuple[list[TopicPartition], frozenset[TopicPartition]]:
        """The subscribed partitions, and assigned partitions that do not exist although their topics do."""
        existing = [TopicPartition(name, number) for name, topic in topics.items() for number in range(len(topic.leaders))]
        if not isinstance(self._subscription, AssignedPartitions):
            return existing, frozenset()
        assigned, there = self._subscription.partitions, set(existing)
        absent = frozenset(tp for tp in assigned if tp.topic in topics and tp not in there)
        return [tp for tp in assigned if tp in there], absent

    def _offsets(
        self, snapshot: TopicState, wanted: Mapping[TopicPartition, Wanted], isolation: str | None = None
    ) -> dict[TopicPartition, int]:
        return {tp: found.offset for tp, found in self._results(snapshot.topic_ids, wanted, isolation).items()}

    def _results(
        self,
        topic_ids: Mapping[str, bytes],
        wanted: Mapping[TopicPartition, Wanted],
        isolation: str | None = None,
        positions: SourceOffset = INITIAL,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Answers by partition. Also checks `positions`, in topics that were not recreated. Raises the first error found."""
        if not wanted:
            return {}
        ids = {tp: TopicIdPartition(topic_ids[tp.topic], tp.partition) for tp in wanted}
        checked = {
            id_tp: LogPosition(positions.offsets[tp], positions.epochs[tp])
            for tp, id_tp in ids.items()
            if tp in positions.epochs and positions.topic_ids.get(tp.topic) == id_tp.topic_id
        }
        asked = {ids[tp]: one for tp, one in wanted.items()}
        answers = answers_in(self._client.list_offsets(asked, isolation or self._isolation, checked))
        return {tp: answers[id_tp] for tp, id_tp in ids.items()}

    def _committed(self, snapshot: TopicState) -> dict[TopicPartition, int]:
        """The offsets at which the group continues, or the earliest where it has none. Raises ConfigError if it has none at all:
        its name may be mistyped. Reports losses since these offsets, as between batches."""
        partitions, group_id = snapshot.ids_of(snapshot.latest), self._options.group_id
        found = self._client.group_offsets(group_id, list(partitions.values())) if partitions else {}
        if partitions and not found:
            raise ConfigError(
                f"startingOffsets is committed, but group '{group_id}' has no committed offset of these topics: correct "
                "group.id, or start at earliest or latest"
            )
        offsets = dict(snapshot.earliest)
        epochs: dict[TopicPartition, int] = {}  # of those offsets whose history is known
        truncations: dict[TopicPartition, WireError] = {}
        for tp, id_tp in partitions.items():
            committed = found.get(id_tp)
            if isinstance(committed, LogTruncationError):  # from the coordinator, if it leads the partition
                truncations[tp] = committed
            elif isinstance(committed, WireError):
                raise committed
            elif committed is not None:
                offsets[tp] = committed.offset
                if committed.leader_epoch_id:
                    epochs[tp] = committed.leader_epoch_id
        read = SourceOffset(offsets, snapshot.topic_ids, epochs=epochs)
        known = self.with_log_ends(self.checked(snapshot, read), offsets)
        known = dataclasses.replace(known, truncations={**known.truncations, **truncations})
        begins, _, losses = continue_from(read, known, self._options.where.reads)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        return begins

    def _newest(self, bound: LastRecords, snapshot: TopicState) -> dict[TopicPartition, int]:
        found = self._offsets(snapshot, {tp: LastRecords(bound.count, end) for tp, end in snapshot.latest.items()})
        return {tp: min(offset, snapshot.latest[tp]) for tp, offset in found.items()}

    def _at_timestamp(self, bound: AtTimestamp, snapshot: TopicState) -> dict[TopicPartition, int]:
        named = _numbers_of(bound, bound.timestamp_ms if isinstance(bound.timestamp_ms, Mapping) else (), snapshot)
        found = self._offsets(snapshot, named)
        for tp, offset in found.items():
            if offset < 0 and not bound.latest_if_unmatched:
                raise ConfigError(
                    f"{bound.option}: {tp} has no record at or after {named[tp]}; give an earlier time, or set "
                    "startingOffsetsByTimestampStrategy=latest"
                )
        return {tp: min(offset, snapshot.latest[tp]) if offset >= 0 else snapshot.latest[tp] for tp, offset in found.items()}


def _id_before(answer: OffsetAndTimestamp, offset: int) -> int | None:
    """The id of the leader epoch of the record before `offset`, which is not above the answer's offset; 0 if the broker does not
    know the id, None if the answer does not tell."""
    is_said = offset == answer.offset or (answer.leader_epoch_id and offset > answer.epoch_start_offset)
    return answer.leader_epoch_id if is_said else None


def _truncations(answers: Mapping[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, WireError]:
    return {tp: one.truncation for tp, one in answers.items() if one.truncation is not None}


def _specific(bound: SpecificOffsets, snapshot: TopicState) -> dict[TopicPartition, int]:
    named = _numbers_of(bound, bound.offsets, snapshot)
    strangers = sorted(set(bound.topics) - {tp.topic for tp in snapshot.latest})
    if strangers:
        raise ConfigError(f"{bound.option} names topics that are not read: {', '.join(strangers)}")
    resolved = {}
    for tp, offset in named.items():
        if offset == LATEST_NUMBER:
            resolved[tp] = snapshot.latest[tp]
        elif offset == EARLIEST_NUMBER:
            resolved[tp] = snapshot.earliest[tp]
        elif offset > snapshot.log_end(tp):
            raise ConfigError(f"{bound.option} is {offset} for {tp}, but it can be read up to {snapshot.log_end(tp)}")
        else:
            resolved[tp] = offset
    return resolved


def _numbers_of(
    bound: SpecificOffsets | AtTimestamp, given: Iterable[TopicPartition], snapshot: TopicState
) -> dict[TopicPartition, int]:
    """The bound's number for each partition. `given`: the partitions that the bound names. Raises ConfigError if the bound lacks a
    partition that is read, or names one that is not."""
    numbers = {tp: number for tp in snapshot.latest if (number := bound.for_partition(tp)) is not None}
    if missing := sorted(snapshot.latest.keys() - numbers):
        raise ConfigError(
            f"{bound.option} must name every partition that is read (-2 is the earliest offset, -1 the latest); missing: "
            f"{', '.join(map(str, missing))}"
        )
    if others := sorted(set(given) - numbers.keys()):
        raise ConfigError(f"{bound.option} names partitions that are not read: {', '.join(map(str, others))}")
    return numbers


def require_topics(snapshot: TopicState, option: str, known: Container[str] = ()) -> None:
    """Raises UnknownTopicOrPartitionError for a missing topic, unless it is in `known`: such a topic existed in the last batch, so
    it is a loss, which `continue_from` reports, and not a mistyped name. `option` is the option that named the topics."""
    for name in sorted(snapshot.missing):
        if name not in known:
            raise UnknownTopicOrPartitionError(
                f"topic '{name}' does not exist: {missing_topic_remedy(name, given_by=f'option {option}')}"
            )


def require_not_hidden(client: BlockingClient, names: Sequence[str]) -> None:
    """Raises the broker's error for a topic that is invisible although it may exist. To a principal that lost its rights a topic
    seems deleted; taken for deleted, it would be read again from its start once the rights are restored."""
    if names:
        _visible(client, names)


def _visible(client: BlockingClient, names: Sequence[str], known: Mapping[bytes, int] = NOTHING_KNOWN) -> Metadata:
    """Metadata of the topics of these names. Its `errors` are only of topics that do not exist; others are raised. `known`: see
    BrokerClient.metadata."""
    metadata = client.metadata(names, known)
    for error in metadata.errors.values():
        if not isinstance(error, (UnknownTopicOrPartitionError, InvalidTopicError)):
            raise error
    return metadata


def report_unread(options: SourceOptions, now: TopicState, before: TopicState | None) -> None:
    """Warns of partitions in `assign`, and topics and partitions in `where`, that the query does not read. Warns again only if they
    differ from those in `before`, the previous snapshot (None the first time).

    These are not errors: partitions may be added and matching topics created while a stream runs, and a filter may match nothing.
    But usually a name is mistyped.
    """
    if now.absent and (before is None or before.absent != now.absent):
        names = _some([str(tp) for tp in sorted(now.absent)])
        logger.warning("option assign names partitions that do not exist; each is read once it does: %s", names)
    if options.where == ALL_ROWS:
        return
    unmet = options.where.unmet(now.latest.keys())
    if before is not None and options.where.unmet(before.latest.keys()) == unmet:
        return
    there = _some([str(tp) for tp in sorted(now.latest)])
    if unmet.topics:
        names = _some([f"{name!r:.200}" for name in sorted(unmet.topics)])
        logger.warning("option where names topics that are not read: %s. Read now: %s", names, there)
    if unmet.partitions:
        numbers = _some([str(number) for number in sorted(unmet.partitions)])
        logger.warning("option where names partitions that are not read: %s. Read now: %s", numbers, there)
    if unmet.is_everything_left_out and not unmet.topics and not unmet.partitions:
        logger.warning("option where leaves out all that is read now: %s", there)


def _some(names: Sequence[str]) -> str:
    """The first names and the number of the others; "nothing" if there are none."""
    rest = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return (", ".join(names[:_NAMES_MAX]) or "nothing") + rest
