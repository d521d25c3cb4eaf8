"""How the process keeps freed memory. For processes that do our work: the daemon, and Spark's Python workers during a task. A
library must not set this for its users' programs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import ClassVar

# glibc's numbers, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 33_554_432  # the largest that glibc takes
_KEEP_BYTES = 134_217_728
_MALLINFO2_SIZES = 10
_FORDBLKS = "size_8"


@functools.cache
def keep_freed_memory() -> bool:
    """Makes glibc keep up to 128 MiB of freed memory instead of giving every large message's pages back at once.

    Moving records allocates and frees buffers of megabytes all the time. By default each comes as fresh pages, which the kernel
    must fault in and zero: more work than copying the bytes (the daemon's reading took 2.5 times the processor time, a
    producer's sending 1.4 times; the resident set stays the same, because no more is kept than was in use). Returns False, and
    changes nothing, where the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


class _Mallinfo2(ctypes.Structure):
    """glibc's, from malloc.h."""

    _fields_: ClassVar = [(f"size_{number}", ctypes.c_size_t) for number in range(_MALLINFO2_SIZES)]


def freed_bytes() -> int:
    """Memory that is kept although it is freed: part of the resident set, and in nobody's use. 0 where that is not known (a C
    library that is not glibc 2.33 or newer). Looks through all free blocks, which may take milliseconds.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    mallinfo2.restype = _Mallinfo2
    return int(getattr(mallinfo2(), _FORDBLKS))


def give_back_memory() -> None:
    """Gives freed memory back to the system, if the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
