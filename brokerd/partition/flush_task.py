"""One flush of one partition: planned by the core in the event loop, run in a thread, reported in the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.clock import stopwatch_ns
from brokerd.partition.derived_files import encode_snapshot, write_leader_epochs, write_snapshot
from brokerd.partition.flush_state import FlushOutcome, FlushPlan
from brokerd.storage.files import Files, is_too_many_open
from brokerd.storage.open_files import Handle, OpenFiles
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles


class FlushTask:
    """One flush. Call `run` once."""

    def __init__(
        self,
        files: Files,
        spares: SpareFiles,
        directory: str,
        seed: int,
        plan: FlushPlan,
        segments: Sequence[Segment],
    ) -> None:
        """`segments`: those sealed by the plan, then the active one. The task takes over their dirty handles."""
        self._files = files
        self._spares = spares
        self._directory = directory
        self._seed = seed
        self._sealed = segments[:-1]
        self.plan = plan
        self.handles: list[Handle] = []
        for segment in segments:
            if segment.dirty_handle is not None:
                self.handles.append(segment.dirty_handle)
                segment.dirty_handle = None
        # Writing a file derived from the log (index, snapshot, epochs) failed; the durability of the data does not depend on it.
        self.derived_error: OSError | None = None
        # The directory could not be opened for its sync: no sync failed, and the next flush repeats everything.
        self.untried_error: OSError | None = None
        self._has_snapshots = False
        self.duration_ns = 0  # of a `run` that synced everything

    @property
    def outcome(self) -> FlushOutcome:
        """The result of a `run` that did not raise."""
        return FlushOutcome(
            is_untried=self.untried_error is not None, has_snapshots=self._has_snapshots, has_derived=self.derived_error is None
        )

    def run(self) -> None:
        """Syncs data files in order, and the directory after a roll; then writes the derived files. Raises OSError if a sync
        failed: the log must stop then, since the kernel may have dropped its pages.
        """
        started_ns = stopwatch_ns()
        for handle in self.handles:
            handle.file.fdatasync()
        if self._sealed:
            try:
                self._files.sync_dir(self._directory)
            except OSError as error:
                if not is_too_many_open(error):
                    raise
                self.untried_error = error
                return
        if self._sealed or self.plan.snapshots or self.plan.epochs is not None:
            try:
                self._write_derived()
            except OSError as error:
                self.derived_error = error
        self.duration_ns = stopwatch_ns() - started_ns

    def release(self, open_files: OpenFiles) -> None:
        """Releases the file handles. Call it once, after the flush."""
        for handle in self.handles:
            open_files.release(handle)
        self.handles = []

    def _write_derived(self) -> None:
        plan = self.plan
        for snapshot in plan.snapshots:
            write_snapshot(self._files, self._directory, encode_snapshot(snapshot), snapshot.offset, self._spares)
        if plan.snapshots:
            self._files.sync_dir(self._directory)
            self._has_snapshots = True
        if plan.epochs is not None:
            write_leader_epochs(self._files, self._directory, plan.epochs, self._seed)
        for segment in self._sealed:
            segment.write_index()
        self._files.sync_dir(self._directory)
