"""Recovery of one partition: from what a crash left on disk to a log that may be served. Steps 4 to 7 of nine.

    4  the newest snapshot that can be believed; walk headers from there, payloads from the recovery point
    5  the first batch that is not whole: below durable_end it is corruption, and nothing is cut; above it, a torn tail is cut
    6  write [durable_end, end) again from the verified bytes, and sync: pages of a failed fsync look clean
    7  indexes, epochs, producer state and a snapshot at the end

Every step may be repeated after a crash. Steps 1-3, 8 and 9 are the log manager's.
"""

from __future__ import annotations

import contextlib
import logging
from typing import NamedTuple

from brokerd.ids import TopicIdPartition
from brokerd.log.behind_damage import NO_OFFSET_LIMIT, Place, find_behind_damage
from brokerd.log.checkpoint import CheckpointEntry
from brokerd.log.damage import DamagedRange, first_that_stops, is_covered, read_holes
from brokerd.log.files import File, Files, write_all
from brokerd.log.index import SparseIndex
from brokerd.log.leader_epochs import EpochEntry, LeaderEpochs, read_leader_epochs, write_leader_epochs
from brokerd.log.log_state import LogState
from brokerd.log.names import LOG_SUFFIX, TEMPORARY_SUFFIX, parse_offset_file
from brokerd.log.node_state import CleanLog
from brokerd.log.open_files import OpenFiles
from brokerd.log.producer_state import ProducerStates
from brokerd.log.scan import Scan
from brokerd.log.segment import Segment
from brokerd.log.snapshots import Snapshot, encode_snapshot, read_snapshot, remove_snapshot, snapshot_offsets, write_snapshot
from brokerd.record.header import crc_seed

logger = logging.getLogger(__name__)

_REWRITE_BYTES = 4 * 1_048_576


class RecoveryInput(NamedTuple):
    """What is known of a partition before its directory is read."""

    tp: TopicIdPartition
    name: str
    index_interval_bytes: int
    max_producer_ids: int
    max_epoch: int  # the epoch of the run that ended: no batch can have a higher one
    checkpoint: CheckpointEntry
    clean: CleanLog | None
    read_only_reason: str


class Recovered(NamedTuple):
    """The log's state, and what was done to get there."""

    state: LogState
    cut_bytes: int
    scanned_bytes: int


class PartitionRecovery:
    """Recovers one partition; `run` is called once."""

    def __init__(self, files: Files, open_files: OpenFiles, given: RecoveryInput) -> None:
        self._files = files
        self._open_files = open_files
        self._given = given
        self._directory = given.tp.directory_name
        self._seed = crc_seed(given.tp)
        self._durable_end = given.checkpoint.durable_end
        self._log_start = given.checkpoint.log_start_offset
        self._holes = read_holes(files, self._directory, self._seed)
        self._segments: list[Segment] = []
        self._sizes: dict[int, int] = {}
        self._damaged: list[DamagedRange] = []
        self._cut_bytes = 0
        self._scanned_bytes = 0
        self._rebuilt: list[Segment] = []
        self._names_changed = False

    def run(self) -> Recovered:
        """See the module. Raises OSError where the directory can not be read or written at all."""
        names = self._list()
        is_clean = self._is_clean()
        snapshot = self._choose_snapshot(snapshot_offsets(names), is_clean)
        producers = ProducerStates(self._given.name, limit=self._given.max_producer_ids)
        if snapshot is not None:
            producers.restore(snapshot.producers, snapshot.forgotten_number)
        epochs = LeaderEpochs(snapshot.epochs if snapshot else ())
        is_clean = is_clean and snapshot is not None
        end = self._walk(snapshot.offset if snapshot else self._first_offset(), producers, epochs, is_clean)
        if end < self._durable_end and not self._is_stopped():
            self._damage(end, self._durable_end, "bytes are missing")
        if self._is_stopped():
            # Nothing is touched; what lies above durable_end is kept, and not shown, until an operator has decided.
            end = max(self._durable_end, self._first_offset())
        elif not self._given.read_only_reason:
            end = max(end, self._durable_end)  # no offset is given twice, whatever is lost below
            if not is_clean:
                self._write_tail_again()
            self._settle(end, producers, epochs, snapshot, snapshot_offsets(names))
        return Recovered(self._state(end, producers, epochs), self._cut_bytes, self._scanned_bytes)

    # Steps before 4: what is there

    def _list(self) -> list[str]:
        try:
            names = self._files.listdir(self._directory)
        except FileNotFoundError:
            names = []
            if self._may_write() and self._durable_end <= self._given.checkpoint.log_start_offset:
                self._files.mkdir(self._directory)
                self._files.sync_dir()
        if self._may_write():
            for name in [name for name in names if name.endswith(TEMPORARY_SUFFIX)]:
                self._files.unlink(f"{self._directory}/{name}")
        bases = sorted(parsed[0] for parsed in map(parse_offset_file, names) if parsed is not None and parsed[1] == LOG_SUFFIX)
        for base in bases:
            segment = Segment(self._files, self._open_files, self._directory, base, self._seed)
            with self._open_files.use(segment.path) as file:
                self._sizes[base] = file.size()
            self._segments.append(segment)
        self._remove_below_log_start()
        return names

    def _remove_below_log_start(self) -> None:
        """Ends a removal that a crash cut short."""
        start = self._given.checkpoint.log_start_offset
        while self._may_write() and len(self._segments) > 1 and self._segments[1].base_offset <= start:
            self._segments.pop(0).remove()
            self._names_changed = True

    def _may_write(self) -> bool:
        return not self._given.read_only_reason

    def _first_offset(self) -> int:
        """Where the log begins: the first segment's base, or the log start if there is none."""
        return self._segments[0].base_offset if self._segments else self._given.checkpoint.log_start_offset

    def _is_clean(self) -> bool:
        clean = self._given.clean
        return clean is not None and list(clean.segments) == [(base, self._sizes[base]) for base in sorted(self._sizes)]

    # Step 4

    def _choose_snapshot(self, offsets: list[int], is_clean: bool) -> Snapshot | None:
        """The newest one that can be believed: whole, of this log, consistent with the epochs, at or below the recovery point or
        where the log begins now: that one was synced with the roll, and what it says of the segments before is nowhere else.
        """
        if is_clean and self._given.clean is not None:
            limit = self._given.clean.log_end_offset
        else:
            limit = self._given.checkpoint.recovery_point
            if self._first_offset() <= self._given.checkpoint.log_start_offset:
                limit = max(limit, self._first_offset())
        known = read_leader_epochs(self._files, self._directory, self._seed)
        for offset in reversed(offsets):
            if self._first_offset() <= offset <= limit:
                snapshot = read_snapshot(self._files, self._directory, offset, self._seed)
                if snapshot is not None and _agree(snapshot, known):
                    return snapshot
        return None

    def _walk(self, from_offset: int, producers: ProducerStates, epochs: LeaderEpochs, is_clean: bool) -> int:
        """Goes through all segments in order; returns the offset where the log ends. Cuts a torn tail."""
        start = self._given.checkpoint.log_start_offset
        expected = self._first_offset()
        if expected > start and self._may_write():
            if start >= self._durable_end:
                self._cut_from(0, keep_offset=start)
                return start
            self._damage(start, expected, "segments are missing", resume=(expected, 0))
        at = 0
        while at < len(self._segments):
            segment = self._segments[at]
            if segment.base_offset != expected:
                if segment.base_offset < expected or expected >= self._durable_end:
                    self._cut_from(at)
                    return expected
                self._damage(expected, segment.base_offset, "segments are missing", resume=(segment.base_offset, 0))
                expected = segment.base_offset
            successor = self._segments[at + 1].base_offset if at + 1 < len(self._segments) else None
            clean_end = self._given.clean.log_end_offset if is_clean and self._given.clean else None
            if self._believe_summary(segment, successor if successor is not None else clean_end, from_offset):
                expected = segment.next_offset
            else:
                expected, is_torn = self._scan(segment, successor, from_offset, producers, epochs)
                if is_torn:
                    self._cut_at(at)
                    return expected
            at += 1
        return expected

    def _believe_summary(self, segment: Segment, next_base: int | None, from_offset: int) -> bool:
        """True if the segment lies below the walk and its index says the same as its size and the successor's name."""
        if next_base is None or next_base > from_offset:
            return False
        summary = segment.read_summary()
        if summary is None or summary.size_bytes != self._sizes[segment.base_offset] or summary.next_offset != next_base:
            return False
        segment.take_summary(summary)
        return True

    def _scan(
        self, segment: Segment, successor: int | None, from_offset: int, producers: ProducerStates, epochs: LeaderEpochs
    ) -> tuple[int, bool]:
        """Walks one segment. Returns the offset where it ends, and True if a torn batch stands there."""
        segment.index = SparseIndex()
        self._rebuilt.append(segment)
        size = self._sizes[segment.base_offset]
        position, expected, resumed = 0, segment.base_offset, False
        with self._open_files.use(segment.path) as file:
            while True:
                scan = Scan(
                    file,
                    self._seed,
                    position=position,
                    end=size,
                    next_offset=expected,
                    epoch=max((entry.epoch for entry in epochs.entries if entry.start_offset <= expected), default=0),
                    max_epoch=self._given.max_epoch,
                    payload_from=self._given.checkpoint.recovery_point,
                )
                for header in scan:
                    segment.size_bytes = scan.batch_position
                    segment.note(header, self._given.index_interval_bytes, force_entry=resumed)
                    resumed = False
                    if header.base_offset >= from_offset:
                        producers.replay(header)
                    epochs.assign(header.leader_epoch, header.base_offset)
                self._scanned_bytes += scan.position - position
                expected = scan.next_offset
                if scan.problem is None:
                    return expected, False
                if expected >= self._durable_end and not scan.must_keep:
                    return expected, True
                found = self._find_behind(scan, file, size, successor)
                if found is None:
                    until = successor if successor is not None else max(self._durable_end, expected + 1)
                    self._damage(expected, until, scan.problem, resume=(until, 0))
                    if successor is not None:
                        segment.end_damaged(size, successor)
                    return until, False
                position, header = found
                self._damage(expected, header.base_offset, scan.problem, resume=(segment.base_offset, position))
                expected, resumed = header.base_offset, True

    def _find_behind(self, scan: Scan, file: File, size: int, successor: int | None) -> Place | None:
        return find_behind_damage(
            file,
            self._seed,
            position=scan.position,
            offset=scan.next_offset,
            end=size,
            limit_offset=NO_OFFSET_LIMIT if successor is None else successor,
            known_offset=self._durable_end if scan.next_offset < self._durable_end else NO_OFFSET_LIMIT,
            epoch=scan.epoch,
            max_epoch=self._given.max_epoch,
        )

    # Step 5

    def _damage(self, first: int, until: int, reason: str, *, resume: tuple[int, int] = (-1, 0)) -> None:
        if until > first:
            is_accepted = is_covered(self._holes, max(first, self._log_start), until)
            self._damaged.append(DamagedRange(first, until, reason, *resume, is_accepted))

    def _is_stopped(self) -> bool:
        """True if something is damaged that nobody has accepted: then nothing is changed."""
        return first_that_stops(self._damaged, self._log_start) is not None

    def _cut_at(self, at: int) -> None:
        """Cuts segment `at` at its last whole batch, and removes all behind it."""
        segment = self._segments[at]
        self._cut_from(at + 1, keep_offset=segment.next_offset)
        self._cut_bytes += self._sizes[segment.base_offset] - segment.size_bytes
        if self._may_write() and not self._is_stopped():
            segment.remove_index()
            handle = self._open_files.acquire(segment.path, writable=True)
            try:
                handle.file.truncate(segment.size_bytes)
                handle.file.fdatasync()
            finally:
                self._open_files.release(handle)
            self._files.sync_dir(self._directory)

    def _cut_from(self, at: int, *, keep_offset: int | None = None) -> None:
        """Removes segments from `at` on, with their indexes, and snapshots above the end; durably before anything is appended."""
        removed = self._segments[at:]
        end = keep_offset if keep_offset is not None else (removed[0].base_offset if removed else 0)
        self._cut_bytes += sum(self._sizes[segment.base_offset] for segment in removed)
        if not self._may_write() or self._is_stopped():
            self._segments = self._segments[:at]
            return
        for offset in snapshot_offsets(self._files.listdir(self._directory)):
            if offset > end:
                remove_snapshot(self._files, self._directory, offset)
        for segment in reversed(removed):
            segment.remove()
        self._segments = self._segments[:at]
        self._files.sync_dir(self._directory)

    # Step 6

    def _write_tail_again(self) -> None:
        for segment in self._segments:
            if segment.next_offset > self._durable_end or segment is self._segments[-1]:
                position = self._position(segment, self._durable_end)
                handle = self._open_files.acquire(segment.path, writable=True)
                try:
                    while position < segment.size_bytes:
                        data = handle.file.pread(min(_REWRITE_BYTES, segment.size_bytes - position), position)
                        write_all(handle.file, [data], position, len(data))
                        position += len(data)
                    handle.file.fdatasync()
                finally:
                    self._open_files.release(handle)
        self._files.sync_dir(self._directory)

    def _position(self, segment: Segment, offset: int) -> int:
        """Position of the batch at `offset`; the segment's start or end where it lies outside."""
        if offset <= segment.base_offset:
            return 0
        if offset >= segment.next_offset or segment.index is None:
            return segment.size_bytes
        base, position = segment.index.floor(offset) or (segment.base_offset, 0)
        with self._open_files.use(segment.path) as file:
            scan = Scan(
                file,
                self._seed,
                position=position,
                end=segment.size_bytes,
                next_offset=base,
                epoch=0,
                max_epoch=self._given.max_epoch,
                payload_from=2**63 - 1,
            )
            for header in scan:
                if header.next_offset > offset:
                    return scan.batch_position
        return segment.size_bytes

    # Step 7

    def _settle(self, end: int, producers: ProducerStates, epochs: LeaderEpochs, used: Snapshot | None, offsets: list[int]) -> None:
        """Leaves a segment to append to, and no snapshot that was not believed; then writes what is derived from the log."""
        if not self._segments or self._segments[-1].next_offset != end:
            if self._segments:
                last = self._segments[-1]
                last.end_damaged(max(last.size_bytes, self._sizes[last.base_offset]), end)
            segment = Segment(self._files, self._open_files, self._directory, end, self._seed)
            segment.create()
            self._segments.append(segment)
            self._names_changed = True
        for offset in offsets:
            if (used is None or offset > used.offset) and offset != end:
                remove_snapshot(self._files, self._directory, offset)
                self._names_changed = True
        try:
            self._write_derived(end, producers, epochs, used)
        except OSError as error:
            logger.warning(
                "%s: could not write index or snapshot (%s); the next start reads more of the log", self._given.name, error
            )
        if self._names_changed:
            self._files.sync_dir(self._directory)
        self._segments[-1].loaded_index(self._given.index_interval_bytes)

    def _write_derived(self, end: int, producers: ProducerStates, epochs: LeaderEpochs, used: Snapshot | None) -> None:
        for segment in self._rebuilt:
            if segment in self._segments[:-1]:
                segment.write_index()
                self._names_changed = True
        if used is None or used.offset != end:
            # One that could not be believed must not stay, even if the new one can not be written.
            remove_snapshot(self._files, self._directory, end)
            self._names_changed = True
            body = encode_snapshot(Snapshot(self._seed, end, epochs.below(end), producers.entries, producers.forgotten_number))
            write_snapshot(self._files, self._directory, body, end)
        if read_leader_epochs(self._files, self._directory, self._seed) != tuple(epochs.entries):
            write_leader_epochs(self._files, self._directory, epochs.entries, self._seed)
            self._names_changed = True

    def _state(self, end: int, producers: ProducerStates, epochs: LeaderEpochs) -> LogState:
        snapshots: list[int] = []
        with contextlib.suppress(FileNotFoundError):
            snapshots = snapshot_offsets(self._files.listdir(self._directory))
        return LogState(
            segments=self._segments,
            producers=producers,
            epochs=epochs,
            log_start_offset=min(max(self._given.checkpoint.log_start_offset, 0), end),
            log_end_offset=end,
            recovery_point=min(self._given.checkpoint.recovery_point, end),
            damaged=[*self._damaged, *(DamagedRange(*hole, "a hole", is_accepted=True) for hole in self._holes)],
            read_only_reason=self._given.read_only_reason,
            snapshot_offsets=snapshots,
        )


def _agree(snapshot: Snapshot, known: tuple[EpochEntry, ...] | None) -> bool:
    """True if the epochs file, where it can be read, says the same of what lies below the snapshot."""
    return known is None or snapshot.epochs == tuple(entry for entry in known if entry.start_offset < snapshot.offset)
