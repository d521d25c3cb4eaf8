"""The coordinator's only access to this node's partitions: which of them hold members' open data, the markers that end it, and
markers that a partition has lost to damage.

Each partition derives its open data from its log. This module keeps the record counts and an index of members and partitions:
without it, a commit of ten thousand members over a hundred partitions would take a million look-ups in the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, MutableMapping

from brokerd.coordinator.markers import Ending, Outcome, RecordFor, endings
from brokerd.coordinator.transactional_id import Held, HeldData
from brokerd.datadir.decided_members import DecidedMembers
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import InvalidRequestError, UnknownTopicIdError, UnknownTopicOrPartitionError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import OpenData
from brokerd.partition.partition import Partition
from brokerd.partition.unmarked import UnmarkedData, undecided_text, unmarked_data, with_lost_markers
from brokerd.purgatory import TimedPurgatory
from brokerd.record.control import encode_control
from brokerd.server.paging import Pauses
from brokerd.server.waiting.delayed_produce import Appended, wait_durable
from brokerd.sharing import CALLER
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord, HeldBack

logger = logging.getLogger(__name__)

_UNDECIDED_LOGGED_MAX = 100
_MARKER_PIECES = 10  # cost of a marker in units of Pauses; one more for each ten members

# Appended markers, by partition.
Markers = MutableMapping[TopicIdPartition, Appended]


class _MemberData:
    """One member's open data over all partitions. `records` includes those of partitions deleted since."""

    __slots__ = ("partitions", "records")

    def __init__(self) -> None:
        self.records = 0
        self.partitions: set[TopicIdPartition] = set()


class LocalLeaders:
    """The partitions of this node, as the coordinator uses them. Use it in the event loop only."""

    def __init__(self, partitions: PartitionTable, time: DirectoryTime, purgatory: TimedPurgatory, coordinator_epoch: int) -> None:
        self.known = partitions
        self._time = time
        self._purgatory = purgatory
        self._coordinator_epoch = coordinator_epoch
        self._members: dict[int, _MemberData] = {}  # by producer id
        self._partitions: dict[TopicIdPartition, dict[int, None]] = {}  # producer ids
        for partition in self.known.of_clients():
            for producer_id in partition.producers.open_transactions:
                data = partition.open_data(producer_id)
                assert data is not None, "it is open there"
                self.appended(producer_id, partition.tp, data.records)

    def appended(self, producer_id: int, tp: TopicIdPartition, records: int) -> None:
        """Counts records that a member has appended to a partition."""
        member = self._members.get(producer_id)
        if member is None:
            member = self._members[producer_id] = _MemberData()
        member.records += records
        if tp not in member.partitions:
            member.partitions.add(tp)
            self._partitions.setdefault(tp, {})[producer_id] = None

    def forget(self, tp: TopicIdPartition) -> None:
        """Forgets a partition whose topic is deleted."""
        for producer_id in list(self._partitions.get(tp, ())):
            self._ended(producer_id, tp)

    @property
    def producer_ids(self) -> Collection[int]:
        """Members with open data in any partition."""
        return self._members.keys()

    def open_data(self, producer_id: int) -> dict[Partition, OpenData]:
        """A member's open data, by partition."""
        held = {}
        member = self._members.get(producer_id)
        for tp in sorted(member.partitions) if member is not None else ():
            partition = self.known.get(tp)
            found = partition.open_data(producer_id) if partition is not None else None
            if partition is not None and found is not None:
                held[partition] = found
        return held

    def held(self, producer_ids: Iterable[int], partitions: Iterable[TopicIdPartition] = ()) -> Held:
        """The open data of these members, summed over partitions, and those of `partitions` that are deleted. Raises
        InvalidRequestError if a topic has no such partition.
        """
        missing = [tp for tp in partitions if not self._exists(tp)]
        not_durable = self._not_durable()
        sums: dict[int, HeldData] = {}
        for producer_id in producer_ids:
            member = self._members.get(producer_id)
            if member is not None:
                sums[producer_id] = HeldData(member.records, producer_id not in not_durable)
        return Held(sums, missing)

    def partitions_of(self, producer_ids: Collection[int]) -> list[TopicIdPartition]:
        """Partitions with open data of any of these members."""
        wanted = frozenset(producer_ids)
        return [tp for tp, held in self._partitions.items() if not wanted.isdisjoint(held)]

    def held_back(self, producer_ids: Collection[int]) -> list[HeldBack]:
        """The first offset of these members' open data, in each partition that has any."""
        ended = frozenset(producer_ids)
        found = []
        for tp in self.partitions_of(ended):
            partition = self.known.get(tp)
            first_offset = partition.producers.first_open_offset(ended) if partition is not None else None
            if first_offset is not None:
                found.append(HeldBack(topic_id=tp.topic_id, partition=tp.partition, first_offset=first_offset))
        return found

    def hold_back(self, commit: str, held_back: Iterable[HeldBack]) -> None:
        """Keeps last stable offsets below the commit's data until `release`, even where its markers are written already."""
        for one in held_back:
            partition = self.known.get(TopicIdPartition(one.topic_id, one.partition))
            if partition is not None:
                partition.hold_back(commit, one.first_offset)

    async def write_markers(self, partitions: Iterable[TopicIdPartition], record_for: RecordFor, markers: Markers) -> None:
        """Appends a control batch to each partition that still holds data of its members, and adds it to `markers`. Returns once
        all of `markers` are durable, including those of earlier attempts. Partitions deleted meanwhile need none.

        Raises StorageError and other errors if a marker cannot be written or made durable; `markers` keeps those that were written.
        """
        failed: WireError | None = None
        pauses = Pauses()
        for tp in partitions:
            held = self._partitions.get(tp, {})
            await pauses.after(_MARKER_PIECES + len(held) // 10)
            try:
                self._write(tp, record_for, markers)
            except WireError as error:
                failed = failed or error
        placed = list(markers.items())
        errors = await wait_durable(self._purgatory, [marker for _, marker in placed])
        for place, problem in errors.items():
            if isinstance(problem, UnknownTopicIdError):
                del markers[placed[place][0]]
            else:
                failed = failed or problem
        if failed is not None:
            raise failed

    def release(self, commit: str, held_back: Iterable[HeldBack]) -> None:
        """Makes the markers of a commit take effect in all its partitions, atomically."""
        partitions = [self.known.get(TopicIdPartition(one.topic_id, one.partition)) for one in held_back]
        self.known.release(commit, [partition for partition in partitions if partition is not None])

    def _write(self, tp: TopicIdPartition, record_for: RecordFor, markers: Markers) -> None:
        partition = self.known.get(tp)
        if partition is None:
            self.forget(tp)
            return
        record = record_for(self._partitions.get(tp, {}).keys())
        if record is None:
            return
        record.coordinator_epoch = self._coordinator_epoch
        now_ms, ahead_ms = self._time.stamp_ms()
        batch = encode_control(record, tp, timestamp_ms=now_ms)
        info = partition.append_marker(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms, caller=CALLER.get())
        markers[tp] = Appended(partition, info.last_offset, info.leader_epoch)
        for producer_id in (*record.committed_producer_ids, *record.aborted_producer_ids):
            self._ended(producer_id, tp)

    def _ended(self, producer_id: int, tp: TopicIdPartition) -> None:
        held = self._partitions.get(tp, {})
        if producer_id not in held:
            return
        del held[producer_id]
        if not held:
            del self._partitions[tp]
        member = self._members[producer_id]
        member.partitions.discard(tp)
        if not member.partitions:
            del self._members[producer_id]

    def _not_durable(self) -> set[int]:
        """Members with data that is not durable in some partition."""
        found: set[int] = set()
        for tp, held in self._partitions.items():
            partition = self.known.get(tp)
            if partition is not None and partition.ends.high_watermark < partition.ends.log_end_offset:
                for producer_id in held:
                    data = partition.open_data(producer_id)
                    if data is not None and not data.is_durable:
                        found.add(producer_id)
        return found

    def _exists(self, tp: TopicIdPartition) -> bool:
        try:
            self.known.leader(tp)
        except UnknownTopicIdError:
            return False
        except UnknownTopicOrPartitionError as error:
            raise InvalidRequestError(f"partitions: {error.message}") from None
        return True


class LostMarkers:
    """The outcome of ended members whose marker is missing, by producer id: which markers to write again, and which need an
    operator's decision. The data of any other ended member is void. The search runs once, at the start: the outcome of members
    that end later is known to the running broker.
    """

    def __init__(self) -> None:
        self._endings: dict[int, Ending] = {}

    def find(
        self,
        ended_ids: Collection[int],
        logs: Iterable[Partition],
        records: Iterable[CoordinatorRecord | None],
        decided: DecidedMembers,
    ) -> None:
        """Determines the outcomes. `ended_ids`: members with open data that are neither open nor in a prepared commit. `records`:
        the whole log, read only if there are such members.
        """
        if not ended_ids:
            return
        wanted = frozenset(ended_ids)
        found = [(log, one) for log in logs for one in _unmarked(log) if one.producer_id in wanted]
        self._endings = endings(wanted, with_lost_markers(one for _, one in found), records, _outcomes(decided))
        unknown = [(log, one) for log, one in found if self._endings[one.producer_id].outcome is Outcome.UNKNOWN]
        for log, one in unknown[:_UNDECIDED_LOGGED_MAX]:
            logger.error("%s", undecided_text(log.name, one))
        if len(unknown) > _UNDECIDED_LOGGED_MAX:
            logger.error("and %d more: `brokerd doctor` lists them all", len(unknown) - _UNDECIDED_LOGGED_MAX)

    def committed(self, ended_ids: Iterable[int]) -> dict[Ending, list[int]]:
        """The committed ones of these members, by commit."""
        commits: dict[Ending, list[int]] = {}
        for producer_id in ended_ids:
            ending = self._endings.get(producer_id)
            if ending is not None and ending.outcome is Outcome.COMMITTED:
                commits.setdefault(ending, []).append(producer_id)
        return commits

    def undecided(self, ended_ids: Iterable[int]) -> list[int]:
        """Those of these members whose outcome is unknown."""
        unknown = Ending(Outcome.UNKNOWN)
        return [producer_id for producer_id in ended_ids if self._endings.get(producer_id) == unknown]

    def void(self, ended_ids: Iterable[int]) -> list[int]:
        """Those of these members whose data is void."""
        aborted = Ending(Outcome.ABORTED)
        return [producer_id for producer_id in ended_ids if self._endings.get(producer_id, aborted) == aborted]


def _unmarked(log: Partition) -> list[UnmarkedData]:
    return unmarked_data(log.producers, log.health.damaged, log.ends.log_start_offset)


def _outcomes(decided: DecidedMembers) -> dict[int, Outcome]:
    return {
        **dict.fromkeys(decided.aborted, Outcome.ABORTED),
        **dict.fromkeys(decided.committed, Outcome.COMMITTED),
    }
