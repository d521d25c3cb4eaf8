"""Goal: however a test process ends, its broker ends with it, and so does everything that belongs to the broker."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.testing.processes import in_session_of
from tests.support.child import child, first_line
from tests.support.wait import wait_until

PROGRAM = """
import os, signal, sys
from brokerd.testing import Broker
from brokerd.testing.warm_process import warm_pid
with Broker() as broker:
    broker.create_topic("t").append(["v"])
    print(warm_pid(), flush=True)
    {then}
"""


@contextmanager
def process_with_broker(then: str, directory: Path) -> Iterator[tuple[int, int]]:
    """A process with a broker: its id, and its warm process's."""
    environment = {**os.environ, "TMPDIR": str(directory)}
    with child([sys.executable, "-c", PROGRAM.format(then=then)], env=environment) as process:
        yield process.pid, int(first_line(process))
        process.wait()


def all_is_gone(warm: int, directory: Path) -> None:
    wait_until(lambda: not in_session_of(warm), what="the warm process and all its forks are gone")
    wait_until(lambda: not list(directory.iterdir()), what="the temporary directory is gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_a_signal_ends(number: signal.Signals, tmp_path: Path) -> None:
    with process_with_broker("signal.pause()", tmp_path) as (pid, warm):
        assert len(in_session_of(warm)) == 4, "warm process, keeper, broker, client"
        os.kill(pid, number)
    all_is_gone(warm, tmp_path)


@pytest.mark.parametrize("then", ["raise ValueError('in the test')", "os._exit(3)"])
def test_a_process_that_ends_by_itself(then: str, tmp_path: Path) -> None:
    with process_with_broker(then, tmp_path) as (_, warm):
        pass
    all_is_gone(warm, tmp_path)


def test_a_keeper_that_is_killed_takes_its_broker_with_it(tmp_path: Path) -> None:
    with process_with_broker("signal.pause()", tmp_path) as (pid, warm):
        (keeper,) = (int(one) for one in Path(f"/proc/{warm}/task/{warm}/children").read_text().split())
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: in_session_of(warm) == {warm}, what="keeper, broker and client are gone")
        os.kill(pid, signal.SIGKILL)
