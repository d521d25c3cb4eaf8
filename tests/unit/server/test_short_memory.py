"""When memory is short, its senders are looked for at once, whatever was done about memory just before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.server import background
from brokerd.server.limits.fruitless import FruitlessCalls
from brokerd.server.limits.memory_guard import Suspect
from tests.support.clock import ManualClock

LIMIT_BYTES = 400_000_000
GREEDY = ("10.0.0.1", 1)


class Process:
    """A broker whose memory is as the test says; it notes what is done about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.resident_bytes = self.kept_bytes = 0
        self.given_back = 0
        self.is_anybody_there = True
        self.ended: list[set[tuple[str, int]]] = []
        broker: Any = SimpleNamespace(
            config=BrokerConfig(max_memory_bytes=LIMIT_BYTES), clock=self.clock, fruitless=FruitlessCalls()
        )
        monkeypatch.setattr(background, "resident_bytes", lambda: self.resident_bytes)
        monkeypatch.setattr(background, "give_back_memory", self._give_back)
        monkeypatch.setattr(background, "disconnect_all", self.ended.append)
        self.jobs = background.Background(broker, SimpleNamespace())
        monkeypatch.setattr(self.jobs, "suspects", self._suspects)

    def _give_back(self) -> None:
        self.given_back += 1
        self.resident_bytes -= self.kept_bytes

    async def _suspects(self) -> list[Suspect]:
        return [Suspect(GREEDY, 200_000_000)] if self.is_anybody_there else []

    def look(self, *, used_bytes: int, kept_bytes: int) -> None:
        """Does what the broker does every 50 ms; `kept_bytes` are resident, but not in use."""
        self.resident_bytes, self.kept_bytes = used_bytes + kept_bytes, kept_bytes
        asyncio.run(self.jobs._memory())
        self.clock.advance(50)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_senders_are_looked_for_just_after_memory_was_given_back(process: Process) -> None:
    process.look(used_bytes=LIMIT_BYTES - 100_000_000, kept_bytes=150_000_000)
    assert (process.given_back, process.ended) == (1, [])
    process.look(used_bytes=LIMIT_BYTES + 50_000_000, kept_bytes=10_000_000)
    assert process.ended == [{GREEDY}]


def test_memory_below_the_limit_is_kept_for_the_next_request(process: Process) -> None:
    process.look(used_bytes=LIMIT_BYTES - 200_000_000, kept_bytes=150_000_000)
    assert (process.given_back, process.ended) == (0, [])


def test_memory_of_which_nobody_is_to_blame_is_not_given_back_at_every_look(process: Process) -> None:
    process.is_anybody_there = False
    for _ in range(20):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000, kept_bytes=0)
    assert process.given_back == 4
    assert process.ended == []
