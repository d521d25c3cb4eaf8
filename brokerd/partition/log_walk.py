"""Walks one partition's segments to find damage, a torn tail, and the state of producers and epochs. Read-only: at startup
recovery.py acts on the results; `brokerd doctor` reports them.

A walk starts from a snapshot of producer state or from an empty state. It checks the snapshot against the log: the offset must be a
batch boundary, and every walked batch below it must have the leader epoch that the snapshot records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from brokerd.ids import TopicIdPartition
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_state import CheckpointEntry, CleanLog, Snapshot
from brokerd.partition.markers import read_marker
from brokerd.partition.producer_state import ProducerStates
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.storage.damage import DamagedRange, first_that_stops
from brokerd.storage.files import File, Files
from brokerd.storage.holes import Hole, is_covered
from brokerd.storage.names import LOG_SUFFIX, offset_file, offsets_of
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment, SparseIndex
from brokerd.storage.segment_walk import SegmentWalk, whole_batches

_ALL_BYTES = 2**62


class RecoveryInput(NamedTuple):
    """What is known about a partition before its directory is read."""

    tp: TopicIdPartition
    name: str
    index_interval_bytes: int
    max_producer_ids: int
    free_producer_number: int  # missing batches may belong to any producer with a lower number
    checkpoint: CheckpointEntry
    clean: CleanLog | None
    read_only_reason: str
    may_be_cut: bool = False  # a leader may have this log cut above its high watermark: keep what the cut needs
    is_durable_end_known: bool = True  # if False, everything intact counts as durable


class LogWalk:
    """One walk from one snapshot. Call `run` once; the results are in the public fields."""

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        given: RecoveryInput,
        sizes: Mapping[int, int],
        holes: Sequence[Hole],
        snapshot: Snapshot | None,
        *,
        is_clean: bool,
        on_batch: Callable[[Segment, File, int, BatchHeader], None] | None = None,
    ) -> None:
        """`sizes`: file size of each segment, by base offset. `holes`: ranges that an operator has accepted as lost or taken out.
        `is_clean`: the segments are as a clean shutdown left them. `on_batch` is called with the place of each scanned batch,
        before the batch is applied to `producers` and `epochs`.
        """
        self._open_files = open_files
        self._given = given
        self._seed = crc_seed(given.tp)
        self._durable_end = given.checkpoint.durable_end
        self._log_start = given.checkpoint.log_start_offset
        self._sizes = sizes
        self._holes = holes
        self._on_batch = on_batch
        self._snapshot = snapshot
        self._snapshot_epochs = LeaderEpochs(snapshot.epochs if snapshot is not None else ())
        self._walked_epoch = 0
        self._clean_end = given.clean.log_end_offset if is_clean and given.clean is not None else None
        directory = given.tp.directory_name
        self.segments = [Segment(files, open_files, directory, base, self._seed) for base in sorted(sizes)]
        self.producers = ProducerStates(given.name, limit=given.max_producer_ids)
        if snapshot is not None:
            self.producers.restore(snapshot.producers, snapshot.forgotten, snapshot.aborted)
        self.epochs = LeaderEpochs(snapshot.epochs if snapshot is not None else ())
        self.end = 0
        self.contradicts_snapshot = False
        self.is_outdated = False  # the checkpoint and the node epoch are older than the log
        self.damaged: list[DamagedRange] = []
        self.cut: tuple[int, int] | None = None  # (segment base offset, position) of the first damage that stops the log
        self.rebuilt: list[Segment] = []  # scanned segments, whose index is new
        self.forgotten: list[Segment] = []  # segments below the log start, left by an interrupted removal
        self.torn: Segment | None = None  # the segment to cut to its size_bytes
        self.removed: list[Segment] = []  # segments to remove: they follow a torn tail or a gap above the durable end
        self.cut_bytes = 0

    def run(self) -> None:
        """Walks all segments. Raises OSError."""
        self.forget_below(self._first_needed())
        if self._snapshot is None and self.first_offset > 0:
            self.producers.forget_all(self._given.free_producer_number)
        self.end = self._walk()
        # Segments to remove were never walked, so their `size_bytes` is 0.
        cut = self.removed if self.torn is None else [self.torn, *self.removed]
        self.cut_bytes = sum(self._sizes[segment.base_offset] - segment.size_bytes for segment in cut)
        if self.end < self._durable_end:
            last = self.segments[-1].base_offset if self.segments else 0
            self._damage(self.end, self._durable_end, "bytes are missing", at=(last, _ALL_BYTES))
        self.is_outdated = self.is_outdated or self.epochs.latest > self._given.checkpoint.leader_epoch
        # Offsets are never reused, even if the batches were lost.
        self.end = max(self.end, self._durable_end)
        if self._snapshot is not None and self._snapshot.offset > self.end:
            self.contradicts_snapshot = True

    @property
    def is_stopped(self) -> bool:
        """True if there is damage that no operator has accepted. Nothing may be changed then."""
        return first_that_stops(self.damaged, self._log_start) is not None

    @property
    def first_offset(self) -> int:
        """The first segment's base offset, or the log start if there is none."""
        return self.segments[0].base_offset if self.segments else self._log_start

    def _first_needed(self) -> int:
        """The offset below which the segments' records and producer state are not needed."""
        if self._snapshot is None or self._given.may_be_cut:
            return 0
        return min(self._log_start, self._snapshot.offset)

    def forget_below(self, offset: int) -> None:
        """Moves segments that end at or below `offset` to `forgotten`, except the last segment."""
        while len(self.segments) > 1 and self.segments[1].base_offset <= offset:
            self.forgotten.append(self.segments.pop(0))

    def _walk(self) -> int:
        """Walks all segments in order; returns the offset where the log ends."""
        start = self._log_start
        expected = self.first_offset
        if expected > start and not self._given.read_only_reason:
            # Not caused by a crash: a log start is durable before the segments below it are removed.
            reason = "segments are missing, or the checkpoint is older than the log"
            self._damage(start, expected, reason, at=(expected, 0), resume=(expected, 0))
        at = 0
        while at < len(self.segments):
            segment = self.segments[at]
            if segment.base_offset != expected:
                if not self._is_missing(expected, segment.base_offset) and not self._has_later_epochs(at):
                    self._stop_at(at)
                    return expected
                place = (segment.base_offset, 0)
                self._damage(expected, segment.base_offset, "segments are missing", at=place, resume=place)
                expected = segment.base_offset
                if expected <= start:
                    self.forgotten += self.segments[:at]
                    self.segments, at = self.segments[at:], 0
            successor = self.segments[at + 1].base_offset if at + 1 < len(self.segments) else None
            if self._believe_summary(segment, successor if successor is not None else self._clean_end):
                expected = segment.next_offset
            else:
                expected, is_torn = self._scan(segment, successor)
                if is_torn:
                    self.torn = segment
                    self._stop_at(at + 1)
                    return expected
            at += 1
        return expected

    def _is_missing(self, expected: int, base_offset: int) -> bool:
        """True if durable offsets are lost between `expected`, the next offset, and `base_offset` of the next segment."""
        return expected < (min(base_offset, self._durable_end) if self._given.is_durable_end_known else base_offset)

    def _stop_at(self, at: int) -> None:
        """Ends the log before segment `at`."""
        self.removed = self.segments[at:]
        self.segments = self.segments[:at]

    def _believe_summary(self, segment: Segment, next_base: int | None) -> bool:
        """Takes the segment's bounds from its index, if no scan is needed and they match file size and `next_base`. True if so."""
        if next_base is None or self._snapshot is None or next_base > self._snapshot.offset:
            return False
        if self._clean_end is None and next_base > self._given.checkpoint.recovery_point:
            return False
        summary = segment.read_summary()
        if summary is None or summary.size_bytes != self._sizes[segment.base_offset] or summary.next_offset != next_base:
            return False
        segment.take_summary(summary)
        return True

    def _has_later_epochs(self, at: int) -> bool:
        """True if a batch in the segments from `at` on has a leader epoch above the checkpoint's. Then they are not the remains of
        a crash above a torn tail: a leader epoch is durable before its first batch, so the checkpoint is older than the log.
        """
        for segment in self.segments[at:]:
            with self._open_files.use(segment.path) as file:
                for _, header in whole_batches(file, self._seed, segment.base_offset):
                    if header.leader_epoch > self._given.checkpoint.leader_epoch:
                        self.is_outdated = True
                        return True
        return False

    def _scan(self, segment: Segment, successor: int | None) -> tuple[int, bool]:
        """Walks one segment. Returns the offset where it ends, and True if a torn tail begins there."""
        segment.index = SparseIndex()
        self.rebuilt.append(segment)
        size = self._sizes[segment.base_offset]
        with self._open_files.use(segment.path) as file:
            walk = self._segment_walk(file, segment, successor)
            resumed = False
            while True:
                for header in walk.scan:
                    segment.size_bytes = walk.scan.batch_position
                    segment.note(header, self._given.index_interval_bytes, force_entry=resumed)
                    resumed = False
                    self._take(header, file, segment, walk.scan.batch_position)
                if walk.scan.problem is None:
                    return walk.scan.next_offset, False
                if walk.is_torn() and not self._has_later_epochs(self.segments.index(segment) + 1):
                    return walk.scan.next_offset, True
                self.is_outdated = self.is_outdated or walk.scan.is_outdated
                lost = walk.go_past()
                place = (segment.base_offset, lost.position)
                if lost.resume_position is None:
                    self._damage(lost.first_offset, lost.until_offset, lost.problem, at=place, resume=(lost.until_offset, 0))
                    if successor is not None:
                        segment.end_damaged(size, successor)
                    return lost.until_offset, False
                resume = (segment.base_offset, lost.resume_position)
                self._damage(lost.first_offset, lost.until_offset, lost.problem, at=place, resume=resume)
                resumed = True

    def _segment_walk(self, file: File, segment: Segment, successor: int | None) -> SegmentWalk:
        return SegmentWalk(
            file,
            self._seed,
            base_offset=segment.base_offset,
            end=self._sizes[segment.base_offset],
            successor=successor,
            durable_end=self._durable_end,
            is_durable_end_known=self._given.is_durable_end_known,
            cut_offsets={hole.first_offset for hole in self._holes},
            epoch_at=self._lowest_epoch,
            max_epoch=self._given.checkpoint.leader_epoch,
            payload_from=self._given.checkpoint.recovery_point,
        )

    def _lowest_epoch(self, offset: int) -> int:
        """The lowest leader epoch that the batch at `offset` may have. The snapshot's epochs count only from the snapshot on; below
        it, the walk verifies them.
        """
        is_below = self._snapshot is not None and offset < self._snapshot.offset
        return max(self._walked_epoch, 0 if is_below else self._snapshot_epochs.latest, 0)

    def _take(self, header: BatchHeader, file: File, segment: Segment, position: int) -> None:
        """Applies a batch to the epochs. Above the snapshot, applies it to producers; below, checks the snapshot against it."""
        if self._on_batch is not None:
            self._on_batch(segment, file, position, header)
        snapshot = self._snapshot
        if snapshot is None or header.base_offset >= snapshot.offset:
            marker = read_marker(file, position, header)
            if marker is None and header.is_control:
                # If the batch were ignored, transactions that it committed would stay open, and be aborted later.
                at, resume = (segment.base_offset, position), (segment.base_offset, position + header.size)
                self._damage(header.base_offset, header.next_offset, "the control batch cannot be read", at=at, resume=resume)
            self.producers.replay(header, marker)
        elif header.next_offset > snapshot.offset or not self._snapshot_epochs.has(header):
            self.contradicts_snapshot = True
        self.epochs.assign(header.leader_epoch, header.base_offset, header.leader_epoch_id)
        self._walked_epoch = header.leader_epoch

    def _damage(self, first: int, until: int, reason: str, *, at: tuple[int, int], resume: tuple[int, int] = (-1, 0)) -> None:
        if until > first:
            is_accepted = is_covered(self._holes, max(first, self._log_start), until)
            damaged = DamagedRange(first, until, reason, *resume, is_accepted)
            self.damaged.append(damaged)
            if self.cut is None and damaged.stops(self._log_start):
                self.cut = at
            if self._snapshot is None or self._snapshot.offset < until:
                self.producers.forget_all(self._given.free_producer_number)


def segment_sizes(open_files: OpenFiles, directory: str, names: Iterable[str]) -> dict[int, int]:
    """The file size of each segment among the names of a partition's directory, by base offset. Raises OSError."""
    sizes = {}
    for base in offsets_of(names, LOG_SUFFIX):
        with open_files.use(f"{directory}/{offset_file(base, LOG_SUFFIX)}") as file:
            sizes[base] = file.size()
    return sizes
