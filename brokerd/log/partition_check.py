"""What `brokerd doctor` finds in one partition. Reads only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition
from brokerd.log.checkpoint import CheckpointEntry
from brokerd.log.files import Files
from brokerd.log.leader_epochs import EpochEntry, LeaderEpochs, read_leader_epochs
from brokerd.log.names import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_file,
    parse_offset_file,
)
from brokerd.log.open_files import OpenFiles
from brokerd.log.producer_state import ProducerStateEntry, ProducerStates
from brokerd.log.scan import Scan, find_whole_batch
from brokerd.log.segment import Segment
from brokerd.log.snapshots import read_snapshot, snapshot_offsets
from brokerd.record.header import crc_seed


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"  # something durable is lost or can not be read
    WARNING = "warning"  # the next start puts it right, and says so
    NOTE = "note"  # worth knowing


class Finding(NamedTuple):
    """One thing found. `partition` is topic-number, `offset` the first one concerned, where they apply."""

    severity: Severity
    path: str
    message: str
    partition: str | None = None
    offset: int | None = None


class PartitionCheck:
    """Checks one partition; `run` is called once, the offsets are set afterwards."""

    def __init__(self, files: Files, tp: TopicIdPartition, name: str, entry: CheckpointEntry, *, max_epoch: int) -> None:
        self._files = files
        self._open_files = OpenFiles(files, limit=4)
        self._entry = entry
        self._max_epoch = max_epoch
        self._seed = crc_seed(tp)
        self._findings: list[Finding] = []
        self._directory = tp.directory_name
        self._producers = ProducerStates(name, limit=2**31)
        self._epochs = LeaderEpochs()
        self._states: dict[int, dict[int, ProducerStateEntry]] = {}
        self.tp = tp
        self.name = name
        self.first_offset = entry.log_start_offset
        self.end_offset = entry.log_start_offset
        self.first_damaged_offset: int | None = None

    def run(self) -> list[Finding]:
        """All findings of this partition. Raises OSError where even the directory can not be read."""
        try:
            names = self._files.listdir(self._directory)
        except FileNotFoundError:
            names = []
            self._add(Severity.ERROR, "", "the partition's directory is missing", self._entry.log_start_offset)
        parsed = [parse_offset_file(name) for name in names]
        bases = sorted(entry[0] for entry in parsed if entry is not None and entry[1] == LOG_SUFFIX)
        snapshots = snapshot_offsets(names)
        self._check_segments(bases, set(snapshots))
        self._check_snapshots(snapshots, is_whole_log=bool(bases) and bases[0] == 0)
        self._check_epochs(names)
        self._check_names(names)
        self._open_files.close()
        return self._findings

    def _add(self, severity: Severity, name: str, message: str, offset: int | None = None) -> None:
        path = f"{self._directory}/{name}" if name else self._directory
        self._findings.append(Finding(severity, path, message, self.name, offset))

    def _damage(self, name: str, message: str, offset: int) -> None:
        if self.first_damaged_offset is None:
            self.first_damaged_offset = offset
        self._add(Severity.ERROR, name, message, offset)

    def _check_segments(self, bases: list[int], snapshots: set[int]) -> None:
        expected = self.first_offset
        if bases:
            if bases[0] > self._entry.log_start_offset and self._entry.durable_end > self._entry.log_start_offset:
                self._damage("", f"offsets {expected} to {bases[0] - 1} are missing", expected)
            expected = self.first_offset = bases[0]
        for at, base in enumerate(bases):
            if base != expected:
                self._check_gap(expected, base)
            expected = self._check_segment(base, snapshots, is_last=at == len(bases) - 1)
        self.end_offset = expected
        if expected < self._entry.durable_end and self.first_damaged_offset is None:
            self._damage("", f"offsets {expected} to {self._entry.durable_end - 1} were durable and are missing", expected)

    def _check_gap(self, expected: int, base: int) -> None:
        name = offset_file(base, LOG_SUFFIX)
        if expected < min(base, self._entry.durable_end):
            self._damage(name, f"offsets {expected} to {base - 1} were durable and are missing", expected)
        else:
            self._add(Severity.WARNING, name, f"the segment does not follow offset {expected}: the next start removes it", base)

    def _check_segment(self, base: int, snapshots: set[int], *, is_last: bool) -> int:
        """Checks one data file and its indexes; returns the offset after it."""
        segment = Segment(self._files, self._open_files, self._directory, base, self._seed)
        name = offset_file(base, LOG_SUFFIX)
        position, expected, is_whole = 0, base, True
        with self._open_files.use(segment.path) as file:
            size = file.size()
            while True:
                scan = Scan(
                    file,
                    self._seed,
                    position=position,
                    end=size,
                    next_offset=expected,
                    epoch=max(self._epochs.latest, 0),
                    max_epoch=self._max_epoch,
                    payload_from=0,
                )
                self._note_state(expected, snapshots)
                for header in scan:
                    segment.size_bytes = scan.batch_position
                    segment.note(header, 2**62)
                    self._producers.replay(header)
                    self._epochs.assign(header.leader_epoch, header.base_offset)
                    self._note_state(header.next_offset, snapshots)
                expected = scan.next_offset
                if scan.problem is None:
                    break
                is_whole = False
                if expected >= self._entry.durable_end and not scan.must_keep:
                    text = f"a torn tail of {size - scan.position} bytes ({scan.problem}): the next start cuts it off"
                    self._add(Severity.WARNING, name, text, expected)
                    break
                text = f"the batch at offset {expected}, byte {scan.position}, was durable and is damaged: {scan.problem}"
                self._damage(name, text, expected)
                found = find_whole_batch(file, self._seed, position=scan.position + 8, end=size, min_offset=expected + 1)
                if found is None:
                    break
                position, expected = found[0], found[1].base_offset
        if is_whole:
            self._check_index(segment, is_last=is_last)
        return expected

    def _note_state(self, offset: int, snapshots: set[int]) -> None:
        if offset in snapshots:
            self._states[offset] = dict(self._producers.entries)

    def _check_index(self, segment: Segment, *, is_last: bool) -> None:
        name = offset_file(segment.base_offset, INDEX_SUFFIX)
        try:
            summary = segment.read_summary()
            index = segment.read_index()
        except (BrokerdError, OSError) as error:
            self._add(Severity.WARNING, name, f"the index can not be read ({error}): it is rebuilt when it is needed")
            return
        if summary is None and is_last:
            return
        if summary is None or (index is None and not (is_last and summary.size_bytes < segment.size_bytes)):
            text = "the index is missing, damaged or not of this log: it is rebuilt when it is needed"
            self._add(Severity.WARNING, name, text, segment.base_offset)
        elif index is not None and not self._points_at_batches(segment, list(zip(index.offsets, index.positions, strict=True))):
            self._add(Severity.ERROR, name, "the index does not point at batches", segment.base_offset)

    def _points_at_batches(self, segment: Segment, entries: list[tuple[int, int]]) -> bool:
        wanted = dict(entries)
        with self._open_files.use(segment.path) as file:
            scan = Scan(
                file,
                self._seed,
                position=0,
                end=segment.size_bytes,
                next_offset=segment.base_offset,
                epoch=0,
                max_epoch=self._max_epoch,
                payload_from=2**63 - 1,
            )
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
                self._add(Severity.WARNING, name, f"the snapshot can not be read: {error}", offset)
                continue
            if snapshot is None:
                self._add(
                    Severity.WARNING, name, "the snapshot is damaged or not of this log: an older one or the log is used", offset
                )
            elif offset > self.end_offset:
                self._add(Severity.WARNING, name, "the snapshot lies above the log's end: the next start removes it", offset)
            elif (
                is_whole_log
                and self.first_damaged_offset is None
                and offset in self._states
                and not (_may_follow(snapshot.producers, self._states[offset]) and snapshot.epochs == self._epochs.below(offset))
            ):
                self._add(Severity.ERROR, name, "the snapshot contradicts the log", offset)

    def _check_epochs(self, names: list[str]) -> None:
        if LEADER_EPOCHS not in names:
            return
        known = read_leader_epochs(self._files, self._directory, self._seed)
        if known is None:
            self._add(Severity.WARNING, LEADER_EPOCHS, "the file is damaged or not of this log: it is rebuilt from the log")
        elif self.first_damaged_offset is None and not _is_prefix(known, self._epochs.entries):
            self._add(Severity.WARNING, LEADER_EPOCHS, "the file does not agree with the log: it is rebuilt from the log")

    def _check_names(self, names: list[str]) -> None:
        known = {LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX}
        for name in names:
            parsed = parse_offset_file(name)
            if name.endswith(TEMPORARY_SUFFIX):
                self._add(Severity.NOTE, name, "left by a write that did not end: the next start removes it")
            elif name != LEADER_EPOCHS and (parsed is None or parsed[1] not in known):
                self._add(Severity.NOTE, name, "not a file of brokerd: it is left alone")


def _may_follow(snapshot: Mapping[int, ProducerStateEntry], replayed: dict[int, ProducerStateEntry]) -> bool:
    """True if the snapshot is the replayed state, less what has expired."""
    return all(replayed.get(producer_id) == entry for producer_id, entry in snapshot.items())


def _is_prefix(known: tuple[EpochEntry, ...], entries: list[EpochEntry]) -> bool:
    """The log may have begun a new epoch since the file was written; retention may have removed the first ones."""
    starts = dict(known)
    last = known[-1].epoch if known else -1
    # The first one in the log may have begun in segments that are gone.
    return all(starts.get(entry.epoch) == entry.start_offset for entry in entries[1:] if entry.epoch <= last)
