"""What a fork does to the garbage collector: a child leaves alone what its parent had, and both go on collecting as before."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
