"""Checks one partition for `brokerd doctor`. Read-only."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.errors import BrokerdError, CorruptMessageError, UnsupportedVersionError
from brokerd.ids import PRODUCER_NUMBERS, TopicIdPartition
from brokerd.offline.coordinator_log import describe_records, is_coordinator_log
from brokerd.partition.derived_files import read_leader_epochs, read_snapshot, snapshot_end
from brokerd.partition.leader_epochs import EpochEntry, LeaderEpochs
from brokerd.partition.log_state import GIVEN_UP, CheckpointEntry, Snapshot
from brokerd.partition.log_walk import LogWalk, RecoveryInput, segment_sizes
from brokerd.partition.producer_state import AbortedTransaction, ProducerStateEntry
from brokerd.record.batch import MAX_DECOMPRESSED_BYTES, RecordBatch
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import File, Files
from brokerd.storage.holes import Hole, holes_end, is_covered, read_holes
from brokerd.storage.names import (
    HOLES,
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    offset_file,
    offsets_of,
    parse_offset_file,
)
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment

_WAYS_OUT = (
    "restore the file from a copy; otherwise `--accept-damaged` gives up this range alone, "
    "`--give-up-damaged` everything after it too"
)
OUTDATED = (
    "the files checkpoint and node-epoch are older than the log: put the newer ones back, "
    "or remove both and rebuild them with `--rebuild-lost` and `--rebuild-checkpoint`"
)


_NO_INDEX_BYTES = 2**62  # index interval: the walk adds no entry


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"  # something durable is lost or cannot be read
    WARNING = "warning"  # the next start repairs it and logs the repair
    NOTE = "note"  # worth knowing


class Finding(NamedTuple):
    """One finding. Where they apply: `partition` as topic-number, and `offset`, the first one affected."""

    severity: Severity
    path: str
    message: str
    partition: str | None = None
    offset: int | None = None


class _Replayed(NamedTuple):
    """The producer state after all batches below an offset."""

    producers: Mapping[int, ProducerStateEntry]
    aborted: tuple[AbortedTransaction, ...]


class PartitionCheck:
    """Checks one partition. Call `run` once: it sets the offsets, `holes`, `damaged`, `cut` and `torn_bytes`, and raises `entry`'s
    durable end to the end of the holes. Unless `is_durable_end_known` (the checkpoint is lost), the intact part of the log and
    everything below the newest snapshot count as durable."""

    def __init__(
        self,
        files: Files,
        tp: TopicIdPartition,
        name: str,
        entry: CheckpointEntry,
        *,
        is_durable_end_known: bool,
        decodes_records: bool = False,
    ) -> None:
        self._files = files
        self._open_files = OpenFiles(files, limit=4)
        self.entry = entry
        self._is_durable_end_known = is_durable_end_known
        self._decodes_records = decodes_records
        self._seed = crc_seed(tp)
        self._findings: list[Finding] = []
        self._directory = tp.directory_name
        self.epochs = LeaderEpochs()
        self._states: dict[int, _Replayed] = {}  # at the snapshots' offsets
        self.tp = tp
        self.name = name
        self.first_offset = self.entry.log_start_offset
        self.end_offset = self.entry.log_start_offset
        self.holes: list[Hole] = []  # accepted or made by operators
        self.damaged: list[Hole] = []  # unreadable ranges outside the holes, in order
        self.is_outdated = False  # the checkpoint and the node epoch are older than the log
        self.cut: tuple[int, int] | None = None  # base offset of the segment, and position in it, of the first of `damaged`
        self.torn_bytes = 0  # bytes that the next start cuts
        self._is_whole = True

    def run(self) -> list[Finding]:
        """Returns all findings. Raises OSError if the directory cannot be read."""
        if self.is_given_up:
            self._add(Severity.NOTE, "", "the copy is being removed: the next start goes on with that")
            return self._findings
        try:
            names = self._files.listdir(self._directory)
        except FileNotFoundError:
            names = []
            self._add(Severity.ERROR, "", "the partition's directory is missing", self.entry.log_start_offset)
        self.holes = read_holes(self._files, self._directory, self._seed)
        self.entry = self.entry.known_durable(holes_end(self.holes))
        if not self._is_durable_end_known:
            self.entry = self.entry.known_durable(snapshot_end(self._files, self._directory, self._seed))
        for hole in self.holes:
            if hole.is_taken_out and hole.until_offset > self.entry.log_start_offset:
                text = f"offsets {hole.first_offset} to {hole.until_offset - 1} are taken out: readers skip them"
                self._add(Severity.NOTE, HOLES, text, hole.first_offset)
        snapshots = offsets_of(names, SNAPSHOT_SUFFIX)
        walk = self._walk(names, set(snapshots))
        for segment in walk.segments:
            if segment is not walk.torn and not any(_overlap(segment, damaged) for damaged in walk.damaged):
                self._check_index(segment, is_last=segment is walk.segments[-1])
        self._check_snapshots(snapshots, is_whole_log=bool(walk.segments) and self.first_offset == 0)
        self._check_epochs(names)
        self._check_names(names)
        self._open_files.close()
        return self._findings

    @property
    def is_given_up(self) -> bool:
        """True if the partition is being removed from this node: `run` reports only that."""
        return self.entry.recovery_point == GIVEN_UP

    @property
    def has_lost(self) -> bool:
        """True if some offsets are lost, accepted or not."""
        return bool(self.holes or self.damaged)

    def finding(self, severity: Severity, name: str, message: str, offset: int | None = None) -> Finding:
        """A finding on a file of the partition's directory; without `name`, on the directory."""
        path = f"{self._directory}/{name}" if name else self._directory
        return Finding(severity, path, message, self.name, offset)

    def _add(self, severity: Severity, name: str, message: str, offset: int | None = None) -> None:
        self._findings.append(self.finding(severity, name, message, offset))

    def recovery_input(self, read_only_reason: str) -> RecoveryInput:
        """The input that recovery would get at a start, but with every payload checked."""
        return RecoveryInput(
            tp=self.tp,
            name=self.name,
            index_interval_bytes=_NO_INDEX_BYTES,
            max_producer_ids=2**31,
            free_producer_number=PRODUCER_NUMBERS,
            checkpoint=self.entry._replace(recovery_point=0),
            clean=None,
            read_only_reason=read_only_reason,
            is_durable_end_known=self._is_durable_end_known,
        )

    def _walk(self, names: list[str], snapshots: set[int]) -> LogWalk:
        """Walks the log as a start does, and checks every payload."""
        given = self.recovery_input("" if self._is_durable_end_known else "the checkpoint is lost")
        sizes = segment_sizes(self._open_files, self._directory, names)

        def look(segment: Segment, file: File, position: int, header: BatchHeader) -> None:
            self._note_state(walk, header.base_offset, snapshots)
            self._check_records(segment, file, position, header)

        walk = LogWalk(self._files, self._open_files, given, sizes, self.holes, None, is_clean=False, on_batch=look)
        walk.run()
        self._note_state(walk, walk.end, snapshots)
        self.first_offset, self.end_offset, self.epochs = walk.first_offset, walk.end, walk.epochs
        self.is_outdated, self.cut, self._is_whole = walk.is_outdated, walk.cut, not walk.damaged
        self.torn_bytes = walk.cut_bytes
        for damaged in walk.damaged:
            base = max((base for base in sizes if base <= damaged.first_offset), default=0)
            self._report_damage(offset_file(base, LOG_SUFFIX), damaged)
        if walk.torn is not None:
            text = f"a torn tail of {sizes[walk.torn.base_offset] - walk.torn.size_bytes} bytes: the next start cuts it off"
            self._add(Severity.WARNING, offset_file(walk.torn.base_offset, LOG_SUFFIX), text, walk.torn.next_offset)
        for segment in walk.removed:
            text = "the segment does not continue the log: the next start removes it"
            self._add(Severity.WARNING, offset_file(segment.base_offset, LOG_SUFFIX), text, segment.base_offset)
        return walk

    def _report_damage(self, name: str, damaged: DamagedRange) -> None:
        first, until = damaged.first_offset, damaged.until_offset
        message = f"offsets {first} to {until - 1} were durable and are damaged: {damaged.reason}"
        if not damaged.is_live(self.entry.log_start_offset):
            self._add(Severity.NOTE, name, f"{message}; it is below the log start, where it does no harm", first)
        elif damaged.is_accepted:
            self._add(Severity.NOTE, name, f"{message}; it is accepted as lost", first)
        else:
            self.damaged.append(Hole(first, until))
            self._add(Severity.ERROR, name, f"{message}; {OUTDATED if self.is_outdated else _WAYS_OUT}", first)

    def _check_records(self, segment: Segment, file: File, position: int, header: BatchHeader) -> None:
        """Checks, if requested, that readers with default settings can decode the batch; always for the coordinator's log."""
        is_out = is_covered(self.holes, header.base_offset, header.next_offset)
        is_read = not header.is_control and not is_out and header.next_offset > self.entry.log_start_offset
        if not is_read or not (self._decodes_records or is_coordinator_log(self.tp)):
            return
        batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
        problem = decoding_problem(self.tp, batch)
        if problem is not None:
            text = f"readers cannot decode the batch ({problem}): `--take-out {self.name}@{header.base_offset}` takes it out"
            self._add(Severity.ERROR, offset_file(segment.base_offset, LOG_SUFFIX), text, header.base_offset)

    def _note_state(self, walk: LogWalk, offset: int, snapshots: set[int]) -> None:
        if offset in snapshots:
            self._states[offset] = _Replayed(dict(walk.producers.entries), walk.producers.aborted.entries)

    def _check_index(self, segment: Segment, *, is_last: bool) -> None:
        name = offset_file(segment.base_offset, INDEX_SUFFIX)
        try:
            summary = segment.read_summary()
            index = segment.read_index()
        except (BrokerdError, OSError) as error:
            self._add(Severity.WARNING, name, f"the index cannot be read ({error}): it is rebuilt when needed")
            return
        if summary is None and is_last:
            return
        if summary is None or (index is None and not (is_last and summary.size_bytes < segment.size_bytes)):
            text = "the index is missing, damaged or not of this log: it is rebuilt when needed"
            self._add(Severity.WARNING, name, text, segment.base_offset)
        elif index is not None and not self._points_at_batches(segment, list(zip(index.offsets, index.positions, strict=True))):
            self._add(Severity.ERROR, name, "the index does not point at batches", segment.base_offset)

    def _points_at_batches(self, segment: Segment, entries: list[tuple[int, int]]) -> bool:
        wanted = dict(entries)
        with self._open_files.use(segment.path) as file:
            scan = segment.scan(file, max_epoch=self.entry.leader_epoch)
            for header in scan:
                if wanted.get(header.base_offset) == scan.batch_position:
                    del wanted[header.base_offset]
        return not wanted

    def _check_snapshots(self, offsets: list[int], *, is_whole_log: bool) -> None:
        for offset in offsets:
            name = offset_file(offset, SNAPSHOT_SUFFIX)
            try:
                snapshot = read_snapshot(self._files, self._directory, offset, self._seed)
            except (BrokerdError, OSError) as error:
                self._add(Severity.WARNING, name, f"the snapshot cannot be read: {error}", offset)
                continue
            if snapshot is None:
                self._add(
                    Severity.WARNING, name, "the snapshot is damaged or not of this log: an older one or the log is used", offset
                )
            elif offset > self.end_offset:
                self._add(Severity.WARNING, name, "the snapshot is above the log end: the next start removes it", offset)
            elif self._is_whole and offset in self._states:
                self._check_snapshot(name, snapshot, self._states[offset], is_whole_log=is_whole_log)

    def _check_snapshot(self, name: str, snapshot: Snapshot, replayed: _Replayed, *, is_whole_log: bool) -> None:
        is_true = _may_follow(snapshot.producers, replayed.producers) and snapshot.epochs == self.epochs.below(snapshot.offset)
        if is_whole_log and not is_true:
            self._add(Severity.ERROR, name, "the snapshot contradicts the log", snapshot.offset)
        elif not self._are_aborted(snapshot.aborted, replayed.aborted):
            text = "the snapshot contradicts the log on which transactions were aborted"
            self._add(Severity.ERROR, name, text, snapshot.offset)

    def _are_aborted(self, known: Sequence[AbortedTransaction], replayed: Sequence[AbortedTransaction]) -> bool:
        """True if a snapshot has the same aborted transactions as the log. It may lack those below the log start, and may have
        some whose first records are no longer in the log.
        """
        readable_from = self.entry.log_start_offset
        found = {(entry.producer_id, entry.marker_offset): entry for entry in known if entry.marker_offset >= readable_from}
        for entry in replayed:
            if entry.marker_offset < readable_from:
                continue
            told = found.pop((entry.producer_id, entry.marker_offset), None)
            if told is None or not all(one == other or one < self.first_offset for one, other in zip(told, entry, strict=True)):
                return False
        return all(entry.first_offset < self.first_offset for entry in found.values())

    def _check_epochs(self, names: list[str]) -> None:
        if LEADER_EPOCHS not in names:
            return
        known = read_leader_epochs(self._files, self._directory, self._seed)
        if known is None:
            self._add(Severity.WARNING, LEADER_EPOCHS, "the file is damaged or not of this log: it is rebuilt from the log")
        elif self._is_whole and not _is_prefix(known, self.epochs.entries):
            self._add(Severity.WARNING, LEADER_EPOCHS, "the file does not agree with the log: it is rebuilt from the log")

    def _check_names(self, names: list[str]) -> None:
        known = {LOG_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX}
        for name in names:
            parsed = parse_offset_file(name)
            if name.endswith(TEMPORARY_SUFFIX):
                self._add(Severity.NOTE, name, f"{name!a} is left by an unfinished write: the next start removes it")
            elif name not in (LEADER_EPOCHS, HOLES) and (parsed is None or parsed[1] not in known):
                self._add(Severity.NOTE, name, f"{name!a} is not a file of brokerd: it is left alone")


def _overlap(segment: Segment, damaged: DamagedRange) -> bool:
    """True if the damage overlaps the segment, or begins at its end: the extent of such damage is unknown."""
    return damaged.first_offset <= segment.next_offset and segment.base_offset < damaged.until_offset


def _may_follow(snapshot: Mapping[int, ProducerStateEntry], replayed: Mapping[int, ProducerStateEntry]) -> bool:
    """True if the snapshot is the replayed state, except for expired producers."""
    return all(_are_same(entry, replayed.get(producer_id)) for producer_id, entry in snapshot.items())


def _are_same(known: ProducerStateEntry, replayed: ProducerStateEntry | None) -> bool:
    """Compares the last batches, as many as both hold: an earlier version kept fewer."""
    if replayed is None:
        return False
    count = min(len(known.batches), len(replayed.batches))
    return known._replace(batches=known.batches[-count:]) == replayed._replace(batches=replayed.batches[-count:])


def decoding_problem(tp: TopicIdPartition, batch: RecordBatch) -> str | None:
    """Why readers with default settings (coordinator's log: a start) cannot decode a batch of this partition, or None."""
    try:
        if is_coordinator_log(tp):
            describe_records(batch)
        else:
            batch.to_arrow(max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES, check_crc=False)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        return error.message
    return None


def _is_prefix(known: tuple[EpochEntry, ...], entries: list[EpochEntry]) -> bool:
    """True if the file matches the log. The log may have newer epochs, and retention may have deleted the first epochs."""
    starts = {entry.epoch: entry for entry in known}
    last = known[-1].epoch if known else -1
    # The first epoch in the log may have started in segments that were deleted.
    return all(starts.get(entry.epoch) == entry for entry in entries[1:] if entry.epoch <= last)
