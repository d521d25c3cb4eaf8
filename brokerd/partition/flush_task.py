"""One flush of one partition: made in the event loop, run in a thread, completed in the event loop.

It covers what was written when it was made. A partition has at most one under way, so what comes meanwhile goes with the
next: group commit.
"""

from __future__ import annotations

from brokerd.clock import stopwatch_ns
from brokerd.partition.leader_epochs import EpochEntry, write_leader_epochs
from brokerd.partition.snapshots import Snapshot, encode_snapshot, write_snapshot
from brokerd.storage.files import Files, is_too_many_open
from brokerd.storage.open_files import Handle, OpenFiles
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles


class FlushTask:
    """See the module. Fields are set once; `run` is called once."""

    def __init__(
        self,
        files: Files,
        spares: SpareFiles,
        directory: str,
        seed: int,
        *,
        end_offset: int,
        appended_bytes: int,
        handles: list[Handle],
        sealed: list[Segment],
        snapshots: list[Snapshot],
        epochs: tuple[EpochEntry, ...] | None,
    ) -> None:
        self._files = files
        self._spares = spares
        self._directory = directory
        self._seed = seed
        self.end_offset = end_offset
        self.appended_bytes = appended_bytes
        self.handles = handles
        self.sealed = sealed  # segments that were closed since the last flush
        self.snapshots = snapshots
        self.epochs = epochs
        # What could not be written of files that are derived from the log; nothing durable depends on them.
        self.derived_error: OSError | None = None
        # The directory could not even be opened to be synced: no sync has failed, and the next flush does it all again.
        self.untried_error: OSError | None = None
        self.has_snapshots = False  # durably, all of them
        self.duration_ns = 0  # of run, once it is over

    def run(self) -> None:
        """Syncs data files in order, and the directory past a roll; then writes what is derived. Raises OSError if a sync failed:
        nothing may be believed of those files then.
        """
        started_ns = stopwatch_ns()
        for handle in self.handles:
            handle.file.fdatasync()
        if self.sealed:
            try:
                self._files.sync_dir(self._directory)
            except OSError as error:
                if not is_too_many_open(error):
                    raise
                self.untried_error = error
                return
        if self.sealed or self.snapshots or self.epochs is not None:
            try:
                self._write_derived()
            except OSError as error:
                self.derived_error = error
        self.duration_ns = stopwatch_ns() - started_ns

    def release(self, open_files: OpenFiles) -> None:
        """Gives the files back; once, after the flush."""
        for handle in self.handles:
            open_files.release(handle)
        self.handles = []

    def _write_derived(self) -> None:
        for snapshot in self.snapshots:
            write_snapshot(self._files, self._directory, encode_snapshot(snapshot), snapshot.offset, self._spares)
        if self.snapshots:
            self._files.sync_dir(self._directory)
            self.has_snapshots = True
        if self.epochs is not None:
            write_leader_epochs(self._files, self._directory, self.epochs, self._seed)
        for segment in self.sealed:
            segment.write_index()
        self._files.sync_dir(self._directory)
