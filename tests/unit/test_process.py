"""Forks and the garbage collector: a child never frees its parent's objects, and a fork does not turn the collector on or off."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from brokerd.process import _Collecting

_PROGRAM = """
import gc, os, sys
import brokerd.process
if sys.argv[1] == "off":
    gc.disable()
class Garbage:
    def __del__(self):
        print("freed in", "the parent" if os.getpid() == parent else "the child", flush=True)
parent = os.getpid()
garbage = Garbage()
garbage.itself = garbage
del garbage
pid = os.fork()
if pid == 0:
    print("child", gc.isenabled(), flush=True)
    gc.collect()
    os._exit(0)
os.waitpid(pid, 0)
print("parent", gc.isenabled(), flush=True)
gc.collect()
"""


@pytest.mark.parametrize("collector", ["on", "off"])
def test_a_child_frees_nothing_of_its_parents_and_both_collect_as_before(collector: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, collector], capture_output=True, text=True, check=True)
    is_on = collector == "on"
    assert done.stdout.splitlines() == [f"child {is_on}", f"parent {is_on}", "freed in the parent"]


_TWO_THREADS = """
import gc, os, threading
late, forked = threading.local(), threading.Event()
def wait():  # runs after brokerd's hook, as it is registered before
    if getattr(late, "is_so", False):
        begun.set()
        forked.wait(60)
os.register_at_fork(before=wait)
import brokerd.process
begun = threading.Event()
def fork(name):
    pid = os.fork()
    if pid == 0:
        print(name, gc.isenabled(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
def fork_late():
    late.is_so = True
    fork("late")
thread = threading.Thread(target=fork_late)
thread.start()
begun.wait(60)
fork("early")
forked.set()
thread.join()
print("parent", gc.isenabled(), flush=True)
"""


def test_forks_of_two_threads_leave_the_collector_on() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["early True", "late True", "parent True"]


def test_a_hook_that_an_interrupt_has_ended_leaves_the_collector_on() -> None:
    """Python ignores an exception in a fork hook, so the hook after a fork may run although the hook before it failed."""
    collecting = _Collecting()
    collecting.after_fork_in_parent()
    try:
        collecting.before_fork()
        assert not gc.isenabled()
        collecting.after_fork_in_parent()
        assert gc.isenabled()
    finally:
        gc.enable()
