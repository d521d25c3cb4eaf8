"""Finds transaction members whose markers are lost to damage. Their outcome comes from the coordinator's log, from a marker in
another partition, or from an operator. The next start writes the markers again (brokerd/coordinator/markers.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from brokerd.coordinator.loading import load
from brokerd.coordinator.markers import Ending, Outcome, endings
from brokerd.coordinator.transaction_coordinator import TransactionCoordinator, TransactionLimits
from brokerd.datadir.node_state import DecidedMembers, read_decided, write_decided
from brokerd.errors import CorruptMessageError, DataDirectoryError
from brokerd.offline.coordinator_log import is_coordinator_log, read_records
from brokerd.offline.partition_check import Finding, PartitionCheck, Severity
from brokerd.partition.markers import UnmarkedData, read_marker, undecided_text, unmarked_data, with_lost_markers
from brokerd.partition.recovery import PartitionRecovery
from brokerd.sharing import Shares
from brokerd.storage.files import Files
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment_walk import batches_of
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord

_READ_ONLY = "brokerd doctor looks at it"


class OtherMarker(NamedTuple):
    """A marker that was found: the partition, its offset there, and the outcome that it states."""

    partition: str
    offset: int
    outcome: Outcome


class LostMarker(NamedTuple):
    """A member's data in a partition whose marker may be lost. `elsewhere`: the member's marker in another partition."""

    partition: PartitionCheck
    data: UnmarkedData
    ending: Ending
    elsewhere: OtherMarker | None

    @property
    def is_unknown(self) -> bool:
        """True if the outcome is not in the coordinator's log."""
        return self.ending.outcome is Outcome.UNKNOWN


def find_lost_markers(files: Files, checks: Iterable[PartitionCheck]) -> list[LostMarker]:
    """The lost markers that the next start would find; `checks` must have run. Reads logs only if a partition has lost offsets.
    Raises OSError, DataDirectoryError."""
    everything = list(checks)
    known = [one for one in everything if not is_coordinator_log(one.tp)]
    found = {one: _unmarked(files, one) for one in known if one.has_lost}
    suspected = with_lost_markers(data for held in found.values() for data in held)
    if not suspected:
        return []
    found.update({one: _unmarked(files, one) for one in known if one not in found})
    lost = suspected & with_lost_markers(data for held in found.values() for data in held)
    own = next((one for one in everything if is_coordinator_log(one.tp)), None)
    records = read_records(files, own.tp, own.entry.log_start_offset) if own is not None else []
    try:
        coordinator = _loaded(records, own.entry.log_start_offset if own is not None else 0)
    except CorruptMessageError:
        return []  # no start succeeds before the coordinator's log is repaired
    ended = endings(coordinator.presumed_aborted(lost), lost, records, {})
    unknown = {producer_id for producer_id, ending in ended.items() if ending.outcome is Outcome.UNKNOWN}
    markers = _markers_of(files, known, unknown) if unknown else {}
    return [
        LostMarker(one, data, ended[data.producer_id], markers.get(data.producer_id))
        for one, held in found.items()
        for data in held
        if data.producer_id in ended and data.lost is not None
    ]


def problem_of_log(files: Files, check: PartitionCheck) -> str:
    """Why a start cannot use the coordinator's log although each of its batches is intact; empty if it can. Raises OSError,
    DataDirectoryError."""
    try:
        start = check.entry.log_start_offset
        _loaded(read_records(files, check.tp, start), start)
    except CorruptMessageError as error:
        return str(error)
    return ""


def _loaded(records: Iterable[CoordinatorRecord | None], log_start_offset: int) -> TransactionCoordinator:
    limits = TransactionLimits(Shares(0), Shares(0), 1, 1)  # loading is exempt from them
    return load(records, log_start_offset, lambda: TransactionCoordinator(limits), 0)


def findings_of(files: Files, lost: Iterable[LostMarker]) -> list[Finding]:
    """One finding per lost marker. Raises OSError, DataDirectoryError."""
    decided = read_decided(files)
    return [_finding(one, decided) for one in lost]


def decide_by_markers(files: Files, lost: Iterable[LostMarker]) -> None:
    """Durably decides every unknown outcome that a marker in another partition states. Raises OSError, DataDirectoryError."""
    found = {one.data.producer_id: one.elsewhere.outcome for one in lost if one.is_unknown and one.elsewhere is not None}
    if found:
        _add(files, found)


def decide(files: Files, lost: Iterable[LostMarker], outcome: Outcome, producer_ids: Collection[int]) -> list[int]:
    """Durably decides `outcome` for `producer_ids`, or for every member whose outcome is unknown; returns their ids. Raises
    DataDirectoryError if one of them has no unknown outcome, or if there is none at all.
    """
    unknown = {one.data.producer_id for one in lost if one.is_unknown}
    others = sorted(set(producer_ids) - unknown)
    if others or not unknown:
        what = f"on producer {others[0]}" if others else "here"
        raise DataDirectoryError(
            f"there is nothing to decide {what}: `brokerd doctor DIR` names the members whose outcome is unknown"
        )
    chosen = sorted(producer_ids or unknown)
    _add(files, dict.fromkeys(chosen, outcome))
    return chosen


def _add(files: Files, outcomes: Mapping[int, Outcome]) -> None:
    committed, aborted = (
        {producer_id for producer_id in before if producer_id not in outcomes}
        | {producer_id for producer_id, outcome in outcomes.items() if outcome is now}
        for before, now in zip(read_decided(files), (Outcome.COMMITTED, Outcome.ABORTED), strict=True)
    )
    write_decided(files, DecidedMembers(committed, aborted))


def _finding(lost: LostMarker, decided: DecidedMembers) -> Finding:
    partition, data = lost.partition, lost.data
    outcome, why = lost.ending.outcome, "the coordinator's log tells"
    if outcome is Outcome.UNKNOWN and data.producer_id in (*decided.committed, *decided.aborted):
        outcome, why = (Outcome.COMMITTED if data.producer_id in decided.committed else Outcome.ABORTED), "it is decided"
    if outcome is Outcome.UNKNOWN:
        text = undecided_text(partition.name, data)
        if lost.elsewhere is not None:
            where = f"its marker in {lost.elsewhere.partition} at offset {lost.elsewhere.offset}"
            text += f"; {where} says that it was {lost.elsewhere.outcome.value}"
        return partition.finding(Severity.ERROR, "", text, data.first_offset)
    text = (
        f"the marker of producer {data.producer_id} is lost; {why} that its records from offset {data.first_offset} on are "
        f"{outcome.value}: a start writes it again, as soon as the partition takes appends"
    )
    return partition.finding(Severity.NOTE, "", text, data.first_offset)


def _unmarked(files: Files, partition: PartitionCheck) -> list[UnmarkedData]:
    """Data without a marker, found by the recovery that a start runs."""
    with closing(OpenFiles(files, limit=4)) as open_files:
        state = PartitionRecovery(files, open_files, partition.recovery_input(_READ_ONLY)).run()
    return unmarked_data(state.producers, state.damaged, state.log_start_offset)


def _markers_of(files: Files, partitions: Iterable[PartitionCheck], producer_ids: set[int]) -> dict[int, OtherMarker]:
    """The markers, in any partition, that end these members."""
    found: dict[int, OtherMarker] = {}
    for partition in partitions:
        for file, position, header in batches_of(files, partition.tp):
            marker = read_marker(file, position, header)
            ended = {} if marker is None else {Outcome.COMMITTED: marker.committed_ids, Outcome.ABORTED: marker.aborted_ids}
            for outcome, ids in ended.items():
                other = OtherMarker(partition.name, header.base_offset, outcome)
                found.update(dict.fromkeys(producer_ids & set(ids), other))
    return found
