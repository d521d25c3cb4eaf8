"""Allocator and garbage collector tuning. Each test runs in a child process, because the settings are process-wide."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import ctypes, resource, sys, threading
from brokerd.allocator import keep_freed_memory

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: where pages are large there are few faults either way

def faults(rounds):
    def work():
        for number in range(rounds):
            pieces = [b"x" * 1_048_576 for _ in range(1 + number % 16)]
            whole = b"".join(pieces)
            del pieces, whole
    thread = threading.Thread(target=work)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep" and not keep_freed_memory():
    print("other library")
else:
    print(faults(100))
"""


def faults(mode: str) -> str:
    """Number of page faults of many large allocations in a thread; "other library" if the C library is not glibc."""
    return subprocess.run([sys.executable, "-c", _PROGRAM, mode], capture_output=True, text=True, check=True).stdout.strip()


def test_large_buffers_do_not_fault_in_fresh_pages_each_time() -> None:
    kept, given_back = faults("keep"), faults("default")
    assert kept == "other library" or int(kept) * 3 < int(given_back), (kept, given_back)


_THREADS = """
import sys, threading
from brokerd.allocator import give_back_memory, keep_freed_memory
from brokerd.server.limits.disconnect import resident_bytes

def work():
    pieces = [b"x" * 8_192 for _ in range(3_000)]
    barrier.wait()
    del pieces
    barrier.wait()

if not keep_freed_memory():
    sys.exit(print(0))
before = resident_bytes()
barrier = threading.Barrier(8)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
give_back_memory()
print(resident_bytes() - before)
"""


def test_memory_that_threads_have_freed_can_be_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 * 3_000 * 8_192 // 10


_WORKER = """
import gc
from brokerd.allocator import tune_spark_worker

tune_spark_worker()
first = gc.get_freeze_count()
more = [[] for _ in range(10_000)]
tune_spark_worker()
print(first > 1_000, gc.get_freeze_count() < first + 1_000)
"""


def test_a_spark_worker_leaves_its_imports_out_of_collections_once() -> None:
    done = subprocess.run([sys.executable, "-c", _WORKER], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
