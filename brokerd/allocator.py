"""Allocator and garbage collector tuning, only for processes that run nothing but our work: the daemon, and Spark's Python workers
during a task. A library must not do this in its users' programs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc

# glibc's numbers, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAP_THRESHOLD_BYTES = 33_554_432  # the largest value glibc accepts
_KEEP_BYTES = 134_217_728


@functools.cache
def keep_freed_memory() -> bool:
    """Makes glibc keep up to 128 MiB of freed memory instead of returning the pages of every large message at once.

    Moving records constantly allocates and frees buffers of megabytes. By default each comes as fresh pages, which the kernel must
    fault in and zero: more work than copying the bytes (reads cost the daemon 2.5 times the processor time, sends a producer 1.4
    times; the resident set is the same, since glibc keeps no more than was in use). All threads share one arena: glibc returns
    the end of any other only when it exceeds the trim threshold, and malloc_trim never does, so every arena would keep up to
    64 MiB. Returns False and changes nothing if the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = [(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES), (_M_TRIM_THRESHOLD, _KEEP_BYTES), (_M_ARENA_MAX, 1)]
    return all(mallopt(name, value) for name, value in settings)


@functools.cache
def tune_spark_worker() -> None:
    """Call at the start of a Spark task: `keep_freed_memory`, and exclude all existing objects from garbage collection.

    Spark runs a full collection after each task, before its worker takes the next one. With PySpark, Arrow and gRPC imported, that
    takes some 30 ms to visit modules that are never freed: a micro-batch of a few rows took a sixth longer. Runs once per process,
    because garbage existing at that moment is never freed.
    """
    keep_freed_memory()
    gc.freeze()


def give_back_memory() -> None:
    """Returns freed memory to the system, if the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
