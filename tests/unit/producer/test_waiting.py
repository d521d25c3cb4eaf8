"""A waiting call gets its result once there is one, even without a wake-up, and is refused where it would wait forever. The tests
play the sender's side of the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from brokerd.clock import SystemClock
from brokerd.errors import ProducerClosedError
from brokerd.producer.waiting import SharedLock, Wait
from tests.support.wait import DEADLINE_S, wait_until


class Box:
    """Content that calls wait for."""

    def __init__(self) -> None:
        self.shared = SharedLock(SystemClock())
        self.content: str | None = None
        self.polls = 0

    def wait(self, *, is_patient: bool = False) -> Wait[str]:
        """A wait for the content."""

        def poll(_now_ms: int) -> str | None:
            self.polls += 1
            return self.content

        return Wait(poll, is_due=lambda: not is_patient or self.content is not None)

    def put(self, content: str) -> None:
        """Delivers the content, as the sender would."""
        with self.shared.lock:
            self.content = content
            self.shared.tell_waiting()

    @property
    def is_waited_for(self) -> bool:
        """True while a call waits."""
        with self.shared.lock:
            return bool(self.shared._waits)


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("is_in_task", [False, True])
def test_a_call_gets_what_comes(box: Box, others: ThreadPoolExecutor, *, is_in_task: bool) -> None:
    wait = box.wait()
    asked = others.submit(asyncio.run, box.shared.wait_in_task(wait)) if is_in_task else others.submit(box.shared.wait, wait)
    wait_until(lambda: box.is_waited_for)
    box.put("it")
    assert asked.result(DEADLINE_S) == "it"
    assert wait.is_over


def test_a_patient_call_is_not_woken_in_vain(box: Box, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.producer.waiting._LOOK_AGAIN_S", DEADLINE_S)
    asked = others.submit(box.shared.wait, box.wait(is_patient=True))
    wait_until(lambda: box.is_waited_for)
    for _ in range(5):
        with box.shared.lock:
            box.shared.tell_waiting()
    assert box.polls == 1
    box.put("it")
    assert asked.result(DEADLINE_S) == "it"
    assert box.polls == 2


def test_a_call_looks_again_though_nobody_tells_it(box: Box, others: ThreadPoolExecutor) -> None:
    asked = others.submit(box.shared.wait, box.wait())
    wait_until(lambda: box.is_waited_for)
    with box.shared.lock:
        box.content = "it"
    assert asked.result(DEADLINE_S) == "it"


def test_calls_are_refused_when_the_sender_ends(box: Box, others: ThreadPoolExecutor) -> None:
    before = others.submit(box.shared.wait, box.wait())
    wait_until(lambda: box.is_waited_for)
    box.shared.end()
    with pytest.raises(ProducerClosedError):
        before.result(DEADLINE_S)
    with pytest.raises(ProducerClosedError):
        box.shared.wait(box.wait())
    box.put("it")
    assert box.shared.wait(box.wait()) == "it", "what is there already is returned"


def test_the_senders_thread_does_not_wait_for_itself(box: Box) -> None:
    box.shared.own()
    with pytest.raises(RuntimeError, match="a callback cannot wait"):
        box.shared.wait(box.wait())
    box.put("it")
    assert box.shared.wait(box.wait()) == "it"


def test_a_signals_handler_does_not_wait_for_the_call_that_it_has_interrupted(box: Box) -> None:
    with box.shared.lock, pytest.raises(RuntimeError, match="set a flag in the handler"):
        box.shared.wait(box.wait())
    box.put("it")
    assert box.shared.wait(box.wait()) == "it"
