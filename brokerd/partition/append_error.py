"""Turns a failed write of an append into the error that its producer gets."""

from __future__ import annotations

from brokerd.errors import Fate, ResourceExhaustedError, StorageError
from brokerd.storage.files import is_no_space, is_too_many_open

_RETRY_AFTER_MS = 200


def append_error(name: str, error: OSError, *, is_unknown: bool) -> StorageError | ResourceExhaustedError:
    """The error for the producer. `is_unknown`: the batch may be in the log all the same, so its fate is UNKNOWN."""
    fate = Fate.UNKNOWN if is_unknown else Fate.NOT_APPENDED
    if is_too_many_open(error):
        return ResourceExhaustedError(f"{name}: too many open files", fate=fate, retry_after_ms=_RETRY_AFTER_MS)
    what = "the disk is full" if is_no_space(error) else f"the write failed ({error.strerror})"
    return StorageError(f"{name}: {what}", fate=fate, retry_after_ms=_RETRY_AFTER_MS)
