"""Goal: the bridge between threads and an event loop ends all that it has started, however the process ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from brokerd.client.blocking import LoopThread
from brokerd.errors import ClientError
from tests.support.heartbeat import beat, cancelled
from tests.support.interrupts import STRUCK, strike
from tests.support.wait import DEADLINE_S


async def answer() -> int:
    return 42


def test_run_returns_and_raises_what_the_coroutine_does() -> None:
    loop_thread = LoopThread()

    async def fail() -> None:
        raise ValueError("no")

    assert loop_thread.run(answer()) == 42
    with pytest.raises(ValueError, match="no"):
        loop_thread.run(fail())
    loop_thread.close()


@pytest.mark.parametrize("moment", ["behind its end", "with its last step", "afterwards"])
def test_a_call_that_races_with_close_is_refused(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    loop_thread = LoopThread()
    loop, told = loop_thread.loop, threading.Event()
    monkeypatch.setattr(loop_thread, "_check_open", lambda coro: None)  # as if it had found the loop open
    calls = []

    def late() -> None:
        calls.append(loop_thread.submit(answer(), told.set))

    if moment == "behind its end":
        held = threading.Event()
        loop_thread.call_soon(held.wait)
        loop_thread.end()
        late()
        held.set()
    elif moment == "with its last step":
        close = loop.close

        def close_behind_it() -> None:
            late()
            close()

        monkeypatch.setattr(loop, "close", close_behind_it)
    loop_thread.close()
    if moment == "afterwards":
        late()
    assert told.wait(DEADLINE_S)
    with pytest.raises(concurrent.futures.CancelledError):
        calls[0].outcome()
    if moment == "afterwards":
        with pytest.raises(ClientError, match="is closed"):
            loop_thread.run(answer())


def test_use_after_a_fork_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loop_thread = LoopThread()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ClientError, match="forked"):
            loop_thread.run(answer())
        loop_thread.close()
    assert loop_thread.run(answer()) == 42
    loop_thread.close()


def test_forgotten_clients_do_not_keep_the_interpreter_alive() -> None:
    program = (
        "from brokerd.client.leases import lease_client\n"
        "from brokerd.config.client import ClientConfig\n"
        "from brokerd.errors import BrokerUnreachableError\n"
        "config = ClientConfig(bootstrap_servers='127.0.0.1:1', api_timeout_ms=1)\n"
        "with lease_client(config) as client:\n"
        "    try: client.metadata()\n"
        "    except BrokerUnreachableError: print('unreachable')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "unreachable\n", "")


# Python warns that a coroutine was never awaited if the interrupt strikes before the loop has it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
def test_whoever_is_struck_while_he_waits_leaves_the_loop_to_others() -> None:
    loop_thread = LoopThread()
    at = 1
    places = (*STRUCK, concurrent.futures.__path__[0], threading.__file__)
    with ThreadPoolExecutor(1) as others:
        while strike(lambda: loop_thread.run(answer()), at, places):
            # If the loop waited for a lock that the interrupted call never released, this call would hang.
            assert others.submit(loop_thread.run, answer()).result(DEADLINE_S) == 42
            at += 1
    assert at > 50
    loop_thread.close()


# --- awaited by a task of another loop


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()


async def test_an_outcome_is_awaited(loop_thread: LoopThread) -> None:
    goes_on = asyncio.Event()

    async def work() -> int:
        await goes_on.wait()
        return 42

    waiting = asyncio.create_task(loop_thread.awaited(work()))
    await beat()
    assert not waiting.done()
    loop_thread.call_soon(goes_on.set)
    assert await waiting == 42


def test_work_that_nobody_waits_for_is_cancelled(loop_thread: LoopThread) -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    async def work() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    async def scenario() -> None:
        waiting = asyncio.create_task(loop_thread.awaited(work()))
        assert await asyncio.to_thread(has_begun.wait, DEADLINE_S)
        await cancelled(waiting)

    asyncio.run(scenario())
    assert has_ended.wait(DEADLINE_S)
