"""What a follower does with its partition, and a leader with what followers report. What both roles share is in core.py and
partition.py, and the rule of the high watermark in log_ends.py; who follows whom is in brokerd/replication.

A cut (`truncate`) runs in steps, whose order matters: after a crash in between, recovery finds a log that ends either at the cut or
where it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from brokerd.errors import CorruptMessageError, StorageError, WireError
from brokerd.partition.core import Append, PartitionCore, Role
from brokerd.partition.derived_files import read_snapshot, remove_snapshot, write_leader_epochs
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.partition.log_state import LogState, Snapshot
from brokerd.partition.markers import marker_of, read_marker
from brokerd.partition.partition import NOBODY, LogResources, Partition
from brokerd.partition.producer_state import NO_OFFSET, Marker, ProducerStates
from brokerd.record.batch import RecordBatch
from brokerd.record.header import BatchHeader, header_problem
from brokerd.record.schema import payload_crc
from brokerd.steps import Job, Steps
from brokerd.storage.damage import PAYLOAD_CHANGED
from brokerd.storage.files import File, write_all
from brokerd.storage.segment import Segment
from brokerd.storage.segment_bounds import SegmentBounds

# Of offsets and times that a leader may stamp. Near 2^63 a log end, or the time of an append, would not fit into the directory's
# files: no checkpoint could be written, of any partition. Clients' batches do not get a log there: they cover too few offsets each.
STAMPED_MAX = 2**62
_WIPE_BYTES = 1_048_576


class Truncation(NamedTuple):
    """The decision to cut the log at `offset`, or at the start of the batch that contains it. Report the cut with `truncated`."""

    offset: int
    kept: int  # number of segments that stay, the last of them cut
    snapshot_offsets: Sequence[int]  # snapshots to remove, before the segments
    restore_from: Sequence[int]  # snapshots, the newest first, of which one restores producers; later batches are replayed on top
    leader_epoch: int  # of the leader that is followed: the cut is void in another one


class ReplicatedCore(PartitionCore):
    """The core of a partition with several replicas: the decisions of a follower."""

    def follow(self, epoch: int) -> None:
        """Makes this node a follower of the leader of `epoch`, which may be the one that it followed before a start. Raises
        FencedLeaderEpochError.
        """
        ended = self.leader_epoch - 1 if self.role is Role.NONE else self.leader_epoch
        self._check_epoch(epoch, max(ended, self.epochs.latest - 1))
        self.role, self.leader_epoch = Role.FOLLOWER, epoch
        self.ends.follow()

    def resign(self) -> None:
        """Resets the role to NONE."""
        self.role = Role.NONE
        self.ends.follow()

    def append_as_follower(self, header: BatchHeader, *, marker: Marker | None = None) -> Append:
        """Places a batch stamped by the leader. `marker`: its content if it is a control batch.

        Raises CorruptMessageError if it does not continue this log, or is beyond STAMPED_MAX; NotLeaderError unless this replica is
        a follower; the errors of LogHealth.check_writable if the log has stopped.
        """
        self._check_takes_appends(Role.FOLLOWER)
        end = self.ends.log_end_offset
        if header.base_offset != end:
            raise CorruptMessageError(
                f"{self.name}: a batch at offset {header.base_offset} does not continue a log that ends at {end}"
            )
        if max(header.next_offset, abs(header.append_timestamp)) > STAMPED_MAX:
            raise CorruptMessageError(
                f"{self.name}: a batch that ends at offset {header.next_offset}, appended at {header.append_timestamp} ms, "
                f"is beyond {STAMPED_MAX}"
            )
        if not self.epochs.latest <= header.leader_epoch <= self.leader_epoch:
            raise CorruptMessageError(
                f"{self.name}: a batch of leader epoch {header.leader_epoch} is outside {self.epochs.latest} (of the batch "
                f"before) to {self.leader_epoch} (now)"
            )
        return self._at_end(header, self.producers.replayed(header), marker)

    def truncate_to(self, offset: int) -> Truncation:
        """Decides what a follower removes so that its log ends at `offset`, or at the start of the batch that contains it. Flush
        everything first. Nothing is appended, flushed or removed until `cut_ended`. Raises ValueError below the high watermark,
        since acknowledged records are never dropped; NotLeaderError unless this replica is a follower.
        """
        self._check_takes_appends(Role.FOLLOWER)
        if offset < self.ends.high_watermark:
            raise ValueError(f"{self.name}: cannot be cut at offset {offset}, below the high watermark {self.ends.high_watermark}")
        assert not self.flushes.has_unsynced, "all is flushed before a cut"
        kept = max(sum(segment.base_offset < offset for segment in self.segments), 1)
        # Of those that stay, one that the log no longer confirms could be restored by a later cut. The one at the cut may be the
        # only one that knows the producers of removed segments.
        below = [known for known in self.snapshots.durable if known <= offset]
        gone = self.snapshots.durable[len(below) :]
        self.health.is_being_cut = True
        return Truncation(offset, kept, gone, below[::-1], self.leader_epoch)

    def truncated(self, truncation: Truncation, last: SegmentBounds, producers: ProducerStates) -> Moved:
        """Lets the log end with segment `last`, before the cut is made on disk. `producers`: the state after its remaining batches.
        Raises NotLeaderError if role or epoch have changed since the decision.
        """
        self.check_tenure((Role.FOLLOWER, truncation.leader_epoch))
        end = last.next_offset
        assert self.ends.high_watermark <= end <= truncation.offset, "what was acknowledged stays"
        self.segments = (*self.segments[: truncation.kept - 1], last)
        self.producers = producers
        self.epochs.truncate(end)
        self.snapshots.forget(truncation.snapshot_offsets, end)
        self.flushes.truncate(end)
        moved = self.ends.truncated(end, producers.open_transactions)
        self.snapshots.add(self.snapshot())  # the cut removed those above it
        return (LogEnd.LOG_END, *moved)

    def cut_ended(self, error: OSError | None = None) -> None:
        """Reports that a cut is made on disk, or was given up before `truncated`. An error stops the log."""
        self.health.is_being_cut = False
        if error is not None:
            self.failed(error)


class ReplicatedPartition(Partition):
    """A partition with several replicas, as leader and as follower."""

    core: ReplicatedCore

    def _new_core(self, state: LogState) -> ReplicatedCore:
        return ReplicatedCore(self.name, self.crc_seed, self.config, state)

    def follow(self, epoch: int) -> None:
        """Makes this node a follower of the leader of `epoch`. Wakes and raises as `lead` does."""
        self.core.follow(epoch)
        self.wake()

    def check_follows(self, epoch: int) -> None:
        """Raises NotLeaderError unless this node follows the leader of this epoch."""
        self.core.check_tenure((Role.FOLLOWER, epoch))

    def resign(self) -> None:
        """Takes this node's role away, and wakes all waiting operations."""
        self.core.resign()
        self.wake()

    def replica_fetched(self, node: int, durable_end: int) -> Moved:
        """Counts what a follower has made durable, as its fetch reports: the high watermark is the lowest durable end of the
        in-sync replicas. Ignored unless this node leads and the follower is in sync.
        """
        moved = self.ends.replica_at(node, durable_end)
        self.wake(moved)
        return moved

    def leader_told(self, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> None:
        """Takes over the ends of the leader's log, as far as this one has them. Ignored unless this node follows."""
        if self.core.role is Role.FOLLOWER:
            self._resources.moved.add(self)
            self.wake(self.ends.leader_at(high_watermark, last_stable_offset, log_start_offset))

    def snapshot_at(self, offset: int) -> Snapshot:
        """What a log must know of batches that it does not have, if it begins with the batch at `offset`: of each producer those of
        its last batches that are below. Their offsets are told if they are sent again.
        """
        entries = self.producers.entries
        before = {producer_id: entry for producer_id, entry in entries.items() if entry.batches[0].last_offset < offset}
        split = {producer_id: entry for producer_id, entry in before.items() if entry.batches[-1].last_offset >= offset}
        for producer_id, entry in split.items():
            batches = tuple(batch for batch in entry.batches if batch.last_offset < offset)
            first_offset = entry.txn_first_offset if entry.txn_first_offset < offset else NO_OFFSET
            before[producer_id] = entry._replace(batches=batches, txn_first_offset=first_offset)
        if split:  # they have written less recently, then
            before = dict(sorted(before.items(), key=lambda known: known[1].batches[-1].last_offset))
        epochs = self.core.epochs.below(offset)
        return Snapshot(self.crc_seed, offset, epochs, before, dict(self.producers.forgotten))

    def append_as_follower(self, batch: RecordBatch) -> None:
        """Checks both CRCs of the leader's next batch, and writes it byte for byte. Raises WireErrors with their fate."""
        problem = header_problem(batch.header, batch.header_bytes, self.crc_seed)
        if problem is None and payload_crc(batch.payload) != batch.header.payload_crc:
            problem = PAYLOAD_CHANGED
        if problem is not None:
            raise CorruptMessageError(f"{self.name}: the batch at offset {batch.header.base_offset} has changed: {problem}")
        self._write(self.core.append_as_follower(batch.header, marker=marker_of(batch)), (batch.data,), NOBODY)

    def truncate_to(self, offset: int) -> LogCut:
        """The cut that the core decides on, to be carried out by `truncate`. Raises what the core raises."""
        truncation = self.core.truncate_to(offset)
        producers = ProducerStates(self.name, limit=self._resources.max_producer_ids)
        interval_bytes = self.core.config.index_interval_bytes
        return LogCut(self._resources, self.crc_seed, self.segments, truncation, producers, interval_bytes)

    def begin_cut(self, cut: LogCut) -> None:
        """Lets the log end at the cut, once `cut.read()` has returned: reads find nothing above it from now on. Raises
        NotLeaderError if role or epoch have changed since `truncate_to`.
        """
        moved = self.core.truncated(cut.truncation, cut.last, cut.producers)
        self._reader.forget_hints()
        self._resources.moved.add(self)
        self.wake(moved)


def truncate(
    cuts: Mapping[ReplicatedPartition, int], checkpoint_job: Callable[[], Job]
) -> Steps[dict[ReplicatedPartition, Exception]]:
    """Cuts followers' logs at these offsets, with one checkpoint for all. Everything must have been flushed. Returns the errors
    of the logs that were not cut: WireErrors, ValueError below the high watermark; after an OSError the log may have stopped.
    """
    failed: dict[ReplicatedPartition, Exception] = {}
    begun: dict[ReplicatedPartition, LogCut] = {}
    for partition, offset in cuts.items():
        try:
            cut = partition.truncate_to(offset)
        except (WireError, ValueError) as error:
            failed[partition] = error
            continue
        try:
            yield cut.read
            partition.begin_cut(cut)
            begun[partition] = cut
        except (WireError, OSError) as error:
            failed[partition] = error
            partition.core.cut_ended()
    try:
        # Before the files change, so that a start does not take the removed batches for missing ones.
        yield checkpoint_job()
    except OSError as error:
        for partition in begun:
            partition.core.cut_ended(error)
        return failed | dict.fromkeys(begun, error)
    for partition, cut in begun.items():
        try:
            yield partial(cut.make, tuple(partition.epochs.entries))
        except OSError as error:
            failed[partition] = error
            partition.core.cut_ended(error)
        else:
            partition.core.cut_ended()
    return failed


class LogCut:
    """One cut. Call `read` first, which changes no file, then `make`, both in any thread."""

    def __init__(
        self,
        resources: LogResources,
        seed: int,
        segments: Sequence[Segment],
        truncation: Truncation,
        producers: ProducerStates,
        index_interval_bytes: int,
    ) -> None:
        """`producers`: empty; `read` fills it with the state at the cut."""
        self._files = resources.files
        self._open_files = resources.open_files
        self._seed = seed
        self._kept = segments[: truncation.kept]
        self._gone = segments[truncation.kept :]
        self._directory = self._kept[-1].directory
        self._index_interval_bytes = index_interval_bytes
        self.truncation = truncation
        self.producers = producers
        self.last = self._kept[-1].blank()  # as it will be after the cut

    def read(self) -> None:
        """Finds the state at the cut, and the bounds and index of the last remaining segment. Raises OSError; StorageError if the
        state cannot be determined.
        """
        from_offset = self._restore()
        for segment in self._kept:
            is_last = segment is self._kept[-1]
            if segment.next_offset <= from_offset and not is_last:
                continue
            with self._open_files.use(segment.path) as file:
                for position, header in self._headers(file, segment):
                    if is_last:
                        self.last.note(header, self._index_interval_bytes)
                    if header.base_offset >= from_offset:
                        self.producers.replay(header, self._marker(file, position, header))

    def _marker(self, file: File, position: int, header: BatchHeader) -> Marker | None:
        marker = read_marker(file, position, header)
        if marker is None and header.is_control:
            at = header.base_offset
            raise StorageError(f"{self._directory}: the control batch at offset {at} cannot be read: restart, then cut")
        return marker

    def make(self, epochs: Sequence[EpochEntry]) -> None:
        """Makes the cut, durably on return. No `durable_end` in the checkpoint on disk may lie above it. Raises OSError."""
        self._wipe(self._kept[-1], self.last.size_bytes)
        for segment in self._gone:
            self._wipe(segment, 0)
        for offset in self.truncation.snapshot_offsets:
            remove_snapshot(self._files, self._directory, offset)
        for segment in reversed(self._gone):
            segment.remove(with_snapshot=segment.base_offset > self.truncation.offset)
        self._files.sync_dir(self._directory)
        self.last.truncate_file()
        write_leader_epochs(self._files, self._directory, epochs, self._seed)
        self._files.sync_dir(self._directory)

    def _wipe(self, segment: Segment, position: int) -> None:
        """Overwrites the cut bytes with zeros. Otherwise, after a power cut, stale blocks under newly written data could bring back
        whole batches that pass for part of the log.
        """
        with self._open_files.use(segment.path, writable=True) as file:
            while position < segment.size_bytes:
                size = min(_WIPE_BYTES, segment.size_bytes - position)
                write_all(file, [bytes(size)], position, size)
                position += size
            file.fdatasync()

    def _restore(self) -> int:
        """Restores producers from the newest snapshot that can be read, if there is one. Returns its offset, or 0."""
        first_offset = self._kept[0].base_offset
        for offset in self.truncation.restore_from:
            snapshot = read_snapshot(self._files, self._directory, offset, self._seed) if offset >= first_offset else None
            if snapshot is not None:
                self.producers.restore(snapshot.producers, snapshot.forgotten, snapshot.aborted)
                return offset
        if first_offset > 0:
            raise StorageError(
                f"{self._directory}: no snapshot covers the removed batches: 'brokerd cluster reassign' takes the copy away, and "
                "gives it back"
            )
        return 0

    def _headers(self, file: File, segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches below the cut. Raises StorageError if one cannot be read."""
        scan = segment.scan(file)
        for header in scan:
            if header.next_offset > self.truncation.offset:
                return
            yield scan.batch_position, header
        if scan.problem is not None:
            raise StorageError(f"{self._directory}: offset {scan.next_offset} cannot be read ({scan.problem}): restart, then cut")
