"""Keeps freed memory, and exempts objects from garbage collection. Only for processes that run our own work: the daemon,
and Spark's Python workers during a task. A library must not set this in its users' programs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc

# glibc's numbers, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 33_554_432  # the largest value glibc accepts
_KEEP_BYTES = 134_217_728


@functools.cache
def keep_freed_memory() -> bool:
    """Makes glibc keep up to 128 MiB of freed memory instead of giving every large message's pages back at once.

    Moving records allocates and frees buffers of megabytes all the time. By default each one comes as fresh pages, which the
    kernel must fault in and zero: more work than copying the bytes (the daemon's reads took 2.5 times the processor time, a
    producer's sends 1.4 times; the resident set stays the same, because no more is kept than was in use). Returns False and
    changes nothing if the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


@functools.cache
def tune_spark_worker() -> None:
    """`keep_freed_memory`, and garbage collections that skip all present objects: for the start of a task.

    Spark collects all garbage after each task, before its worker takes the next one. With PySpark, Arrow and gRPC imported that
    takes some 30 ms each time, to visit modules that are never freed: a micro-batch of a few rows took a sixth longer. Done once
    in a process, since garbage of that moment stays.
    """
    keep_freed_memory()
    gc.freeze()


def give_back_memory() -> None:
    """Returns freed memory to the system, if the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
