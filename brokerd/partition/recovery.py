"""Recovery of one partition at startup: steps 4 to 7 of nine (ARCHITECTURE.md, "Recovery").

    4  find the newest snapshot that the log confirms: walk headers, and check payloads from the recovery point on
    5  at the first batch that is not whole: below durable_end it is damage, and nothing is cut; above, cut the torn tail
    6  rewrite [durable_end, end) from the verified bytes, and sync: after a failed fsync, unwritten pages look clean
    7  write indexes, epochs and a snapshot at the end; then complete an interrupted removal of segments below the log start

Every step may be repeated after a crash. Steps 1-3, 8 and 9 belong to the log manager; the walk is in log_walk.py.

A snapshot is written once everything below it is synced, and a cut removes the snapshots above it, durably, before the next append.
So an intact snapshot at or below the log end is valid, whatever the recovery point. It is the only source of the producer state of
removed segments: a segment is removed only after a snapshot at or above its end is durable.
"""

from __future__ import annotations

import contextlib
import logging

from brokerd.partition.derived_files import (
    read_leader_epochs,
    read_snapshot,
    remove_leader_epochs,
    remove_snapshot,
    snapshot_end,
    write_leader_epochs,
    write_snapshot,
)
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_state import LOST_ENTRY, LogState, Snapshot, snapshot_of
from brokerd.partition.log_walk import LogWalk, RecoveryInput, segment_sizes
from brokerd.record.header import crc_seed
from brokerd.storage.files import Files, write_all
from brokerd.storage.holes import holes_end, read_holes
from brokerd.storage.names import SNAPSHOT_SUFFIX, TEMPORARY_SUFFIX, offsets_of
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment

logger = logging.getLogger(__name__)

_REWRITE_BYTES = 4 * 1_048_576


class PartitionRecovery:
    """Recovers one partition. Call `run` once."""

    def __init__(self, files: Files, open_files: OpenFiles, given: RecoveryInput) -> None:
        self._files = files
        self._open_files = open_files
        self._directory = given.tp.directory_name
        self._seed = crc_seed(given.tp)
        self._holes = read_holes(files, self._directory, self._seed)
        ends = [holes_end(self._holes)]
        if not given.is_durable_end_known:
            ends.append(snapshot_end(files, self._directory, self._seed))
        self._given = given._replace(checkpoint=given.checkpoint.known_durable(*ends))
        self._durable_end = self._given.checkpoint.durable_end
        self._sizes: dict[int, int] = {}
        self._snapshot: Snapshot | None = None  # the one confirmed by the log
        self._unwritten: Snapshot | None = None
        self._names_changed = False

    def run(self) -> LogState:
        """Recovers the partition. Raises OSError if the directory cannot be read, or cannot be written at all."""
        offsets = offsets_of(self._list(), SNAPSHOT_SUFFIX)
        is_clean = self._is_clean()
        walk = self._walk(offsets, is_clean)
        end, cut_bytes = walk.end, 0
        if walk.is_stopped:
            # Change nothing. Keep bytes above durable_end until an operator decides, but do not serve them.
            if self._given.is_durable_end_known:
                end = max(self._durable_end, walk.first_offset)
        elif self._may_write():
            self._cut(walk, offsets)
            cut_bytes = walk.cut_bytes
            if not is_clean or self._snapshot is None:
                self._write_tail_again(walk.segments)
            self._settle(walk, offsets)
        for hole in self._holes:
            if hole.is_taken_out and hole.until_offset > self._given.checkpoint.log_start_offset:
                said = (self._given.name, hole.first_offset, hole.until_offset - 1)
                logger.warning("%s: offsets %d to %d are taken out: readers skip them", *said)
        return self._state(end, walk, cut_bytes)

    # Before step 4: the directory

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
        self._sizes = segment_sizes(self._open_files, self._directory, names)
        return names

    def _may_write(self) -> bool:
        return not self._given.read_only_reason

    def _is_clean(self) -> bool:
        clean = self._given.clean
        return clean is not None and list(clean.segments) == sorted(self._sizes.items())

    # Step 4

    def _walk(self, offsets: list[int], is_clean: bool) -> LogWalk:
        """The walk from the newest snapshot that the log confirms, or from an empty state if it confirms none."""
        known = self._known_epochs()
        first_offset = min(self._sizes, default=self._given.checkpoint.log_start_offset)
        for offset in reversed(offsets):
            # The batches between an older snapshot and the first segment are gone.
            snapshot = self._read_snapshot(offset) if offset >= first_offset else None
            if snapshot is not None and _may_agree(snapshot, known):
                walk = self._walk_from(snapshot, is_clean)
                if not walk.contradicts_snapshot:
                    self._snapshot = snapshot
                    return walk
        walk = self._walk_from(None, False)
        if walk.first_offset > 0:
            logger.warning("%s: no snapshot covers the removed batches: silent producers need a new id", self._given.name)
        return walk

    def _walk_from(self, snapshot: Snapshot | None, is_clean: bool) -> LogWalk:
        walk = LogWalk(self._files, self._open_files, self._given, self._sizes, self._holes, snapshot, is_clean=is_clean)
        walk.run()
        return walk

    def _read_snapshot(self, offset: int) -> Snapshot | None:
        try:
            return read_snapshot(self._files, self._directory, offset, self._seed)
        except OSError as error:
            logger.warning("%s: the snapshot at offset %d cannot be read (%s)", self._given.name, offset, error.strerror)
            return None

    def _known_epochs(self) -> tuple[EpochEntry, ...] | None:
        try:
            return read_leader_epochs(self._files, self._directory, self._seed)
        except OSError as error:
            logger.warning("%s: the file of leader epochs cannot be read (%s)", self._given.name, error.strerror)
            return None

    # Step 5

    def _cut(self, walk: LogWalk, offsets: list[int]) -> None:
        """Removes everything above the log end, snapshots first. Durable on return, and thus before the next append."""
        if walk.torn is None and not walk.removed:
            return
        for offset in offsets:
            if offset > walk.end:
                remove_snapshot(self._files, self._directory, offset)
        for segment in reversed(walk.removed):
            segment.remove()
        self._files.sync_dir(self._directory)
        if walk.torn is not None:
            walk.torn.truncate_file()
            self._files.sync_dir(self._directory)

    # Step 6

    def _write_tail_again(self, segments: list[Segment]) -> None:
        for segment in segments:
            if segment.next_offset > self._durable_end or segment is segments[-1]:
                position = self._position(segment, self._durable_end)
                with self._open_files.use(segment.path, writable=True) as file:
                    while position < segment.size_bytes:
                        data = file.pread(min(_REWRITE_BYTES, segment.size_bytes - position), position)
                        write_all(file, [data], position, len(data))
                        position += len(data)
                    file.fdatasync()
        self._files.sync_dir(self._directory)

    def _position(self, segment: Segment, offset: int) -> int:
        """Position of the batch that contains `offset`; the segment's start or end if `offset` is outside."""
        if offset <= segment.base_offset:
            return 0
        if offset >= segment.next_offset or segment.index is None:
            return segment.size_bytes
        with self._open_files.use(segment.path) as file:
            scan = segment.scan(file, begin=segment.index.floor(offset), max_epoch=self._given.checkpoint.leader_epoch)
            for header in scan:
                if header.next_offset > offset:
                    return scan.batch_position
        return segment.size_bytes

    # Step 7

    def _settle(self, walk: LogWalk, offsets: list[int]) -> None:
        """Ensures an active segment at the log end, removes snapshots that the log does not confirm, and writes derived files."""
        if not walk.segments or walk.segments[-1].next_offset != walk.end:
            if walk.segments:
                last = walk.segments[-1]
                last.end_damaged(max(last.size_bytes, self._sizes[last.base_offset]), walk.end)
            segment = Segment(self._files, self._open_files, self._directory, walk.end, self._seed)
            segment.create()
            walk.segments.append(segment)
            self._names_changed = True
        believed = -1 if self._snapshot is None else self._snapshot.offset
        for offset in offsets:
            if offset > believed:
                # Remove unconfirmed snapshots even if no new one can be written.
                remove_snapshot(self._files, self._directory, offset)
                self._names_changed = True
        self._remove_contradicting_epochs(walk)
        self._write_snapshot(walk, believed)
        try:
            self._write_derived(walk)
        except OSError as error:
            logger.warning("%s: could not write an index or the epochs (%s)", self._given.name, error)
        if self._names_changed:
            self._files.sync_dir(self._directory)
        self._remove_below_log_start(walk)
        walk.segments[-1].loaded_index(self._given.index_interval_bytes)

    def _remove_contradicting_epochs(self, walk: LogWalk) -> None:
        """Removes the leader-epochs file if the log contradicts it: snapshots are checked against it. An old file is harmless."""
        known = self._known_epochs()
        if known is not None and known != tuple(walk.epochs.entries[: len(known)]):
            remove_leader_epochs(self._files, self._directory)
            self._names_changed = True

    def _write_snapshot(self, walk: LogWalk, believed: int) -> None:
        if believed == walk.end:
            return
        found = snapshot_of(self._seed, walk.end, walk.epochs.below(walk.end), walk.producers)
        try:
            write_snapshot(self._files, self._directory, found)
            self._names_changed = True
        except OSError as error:
            self._unwritten = found
            logger.warning(
                "%s: could not write a snapshot (%s): old segments stay until one is written", self._given.name, error.strerror
            )

    def _write_derived(self, walk: LogWalk) -> None:
        for segment in walk.rebuilt:
            # Without an index, the next start scans a segment with a damaged end: no checksum reveals bytes missing there.
            if segment in walk.segments[:-1] and not segment.is_end_damaged:
                segment.write_index()
                self._names_changed = True
        if self._known_epochs() != tuple(walk.epochs.entries):
            write_leader_epochs(self._files, self._directory, walk.epochs.entries, self._seed)
            self._names_changed = True

    def _remove_below_log_start(self, walk: LogWalk) -> None:
        """Completes a removal that a crash interrupted, if a durable snapshot covers the producers of those segments."""
        if self._given.may_be_cut:
            return  # a cut may remove the snapshot at the end; retention waits for a snapshot that survives cuts
        durable = walk.end if self._unwritten is None else self._snapshot.offset if self._snapshot is not None else -1
        walk.forget_below(min(self._given.checkpoint.log_start_offset, durable))
        if walk.forgotten and walk.first_offset <= durable:
            for segment in walk.forgotten:
                segment.remove()
            self._files.sync_dir(self._directory)

    def _state(self, end: int, walk: LogWalk, cut_bytes: int) -> LogState:
        snapshots: list[int] = []
        with contextlib.suppress(FileNotFoundError):
            snapshots = offsets_of(self._files.listdir(self._directory), SNAPSHOT_SUFFIX)
        checkpoint = self._given.checkpoint
        is_lost = checkpoint.leader_epoch == LOST_ENTRY.leader_epoch and not self._may_write()
        log_start_offset = min(max(checkpoint.log_start_offset, walk.first_offset if is_lost else 0), end)
        return LogState(
            segments=walk.segments,
            producers=walk.producers,
            epochs=walk.epochs,
            log_start_offset=log_start_offset,
            log_end_offset=end,
            recovery_point=min(checkpoint.recovery_point, end),
            leader_epoch=max(checkpoint.leader_epoch, walk.epochs.latest),
            high_watermark=max(checkpoint.high_watermark, log_start_offset) if self._given.may_be_cut else None,
            announced_stable_offset=checkpoint.announced_stable_offset,
            damaged=[*walk.damaged, *(hole.as_range() for hole in self._holes)],
            read_only_reason=self._given.read_only_reason,
            is_outdated=walk.is_outdated,
            snapshot_offsets=snapshots,
            unwritten_snapshot=self._unwritten,
            cut_bytes=cut_bytes,
        )


def _may_agree(snapshot: Snapshot, known: tuple[EpochEntry, ...] | None) -> bool:
    """True if the leader-epochs file does not contradict the snapshot. It may be older, with fewer epochs."""
    below = tuple(entry for entry in known or () if entry.start_offset < snapshot.offset)
    return snapshot.epochs[: len(below)] == below
