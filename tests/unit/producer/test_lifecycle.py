"""At exit, all producers share the time limit of one, and all send before the first is waited for."""

from __future__ import annotations

from typing import cast

from brokerd.clock import SystemClock
from brokerd.producer.producer import Producer, close_each
from tests.support.broker_double import double_of
from tests.support.clock import ManualClock


class Slow:
    """A producer whose broker does not respond: `close` takes its whole time-out."""

    def __init__(self, clock: ManualClock, calls: list[str]) -> None:
        self.abandoned_count = 0
        self._clock = clock
        self._calls = calls

    def flush(self, timeout: float | None = None) -> None:
        self._calls.append(f"flush {timeout}")
        raise TimeoutError

    def close(self, timeout: float | None = None) -> None:
        assert timeout is not None
        self._calls.append(f"close {timeout}")
        self._clock.advance(int(timeout * 1000))


def test_all_begin_to_send_before_one_is_waited_for_and_share_its_time() -> None:
    clock, calls = ManualClock(), list[str]()
    close_each(cast("list[Producer]", [Slow(clock, calls), Slow(clock, calls)]), clock)
    assert calls == ["flush 0", "flush 0", "close 10.0", "close 0.0"]


def test_one_that_has_ended_does_not_keep_the_others_from_being_closed() -> None:
    """Such as one whose `close` was interrupted: its sender went on."""
    broker = double_of(1)
    ended = Producer(transport_factory=broker.transport)
    other = Producer(transport_factory=broker.transport, linger_ms=60_000)
    ended.close()
    future = other.send("t", b"v")
    close_each([ended, other], SystemClock())
    assert future.result(0).offset == 0
