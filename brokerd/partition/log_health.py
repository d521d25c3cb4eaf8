"""The reason why a log has stopped, if it has: deleted, a failed flush, damage, read-only. Values and their errors,
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.errors import Fate, LogDamagedError, StorageError, UnknownTopicIdError
from brokerd.storage.damage import DamagedRange, damage_error, first_that_stops


class LogHealth:
    """The reasons of one log. They hold until its next start, except for damage, which may fall below the log start."""

    def __init__(self, name: str, damaged: Sequence[DamagedRange] = (), read_only_reason: str = "") -> None:
        self._name = name
        self.is_deleted = False
        self.failure: OSError | None = None  # of a flush
        self.damaged = tuple(damaged)
        self.read_only_reason = read_only_reason

    def first_damage(self, log_start_offset: int) -> DamagedRange | None:
        """The range because of which the log has stopped."""
        return first_that_stops(self.damaged, log_start_offset) if self.damaged else None

    def is_stopped(self, log_start_offset: int) -> bool:
        """True if nothing may be appended to or removed from the log."""
        return bool(self.is_deleted or self.failure or self.read_only_reason or self.first_damage(log_start_offset) is not None)

    def check_writable(self, log_start_offset: int) -> None:
        """Raises UnknownTopicIdError, StorageError or LogDamagedError if the log has stopped, all with fate NOT_APPENDED."""
        if self.is_deleted:
            raise UnknownTopicIdError(f"{self._name} is deleted", fate=Fate.NOT_APPENDED)
        if self.failure is not None:
            raise StorageError(
                f"{self._name} takes no appends: a flush failed ({self.failure.strerror}); restart when the disk is well",
                fate=Fate.NOT_APPENDED,
            )
        stopping = self.first_damage(log_start_offset)
        if stopping is not None:
            raise damage_error(self._name, stopping, fate=Fate.NOT_APPENDED)
        if self.read_only_reason:
            raise LogDamagedError(f"{self._name} is read-only: {self.read_only_reason}", fate=Fate.NOT_APPENDED)
