"""Copying many bytes and reading many partitions block the event loop, so only one such operation runs per turn of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from brokerd.server.handlers import fetch, produce
from brokerd.server.handlers.fetch import FetchHandler
from brokerd.server.streams import LARGE_BYTES, LARGE_PARTITIONS
from brokerd.sharing import Caller, Turns
from tests.support.daemon import RunningDaemon
from tests.support.loop import TurnCount, counted_turns
from tests.support.raw_client import RawClient, values_batch
from tests.support.wait import wait_until

READERS = 4
LARGE = LARGE_BYTES + 1_000


class LoopTurns:
    """Records the turns of the daemon's loop in which something was done."""

    def __init__(self, turns: TurnCount) -> None:
        self.copies: Counter[int] = Counter()
        self._turns = turns

    def noting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that each call is recorded."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.copies[self._turns.now] += 1
            return work(*args, **kwargs)

        return noted


@pytest.fixture
def loop_turns(running: RunningDaemon) -> Iterator[LoopTurns]:
    """The recorder for the daemon's loop."""
    with counted_turns(running.loop) as turns:
        yield LoopTurns(turns)


def test_large_responses_that_become_due_at_once_are_copied_one_in_a_turn(
    running: RunningDaemon, client: RawClient, loop_turns: LoopTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tp,) = client.create_topic()
    readers = [client.fetcher() for _ in range(READERS)]
    for reader in readers:
        reader.post({tp: 0}, max_wait_ms=60_000)
    wait_until(lambda: len(running.daemon.broker.fetch_purgatory) == READERS)
    monkeypatch.setattr(fetch, "encode", loop_turns.noting(fetch.encode))
    monkeypatch.setattr(FetchHandler, "_write", loop_turns.noting(FetchHandler._write))
    client.producer().produce(tp, values_batch(tp, size=LARGE))
    for reader in readers:
        assert [len(batches) for batches in reader.answer()[1]] == [1]
    assert set(loop_turns.copies.values()) == {1}
    assert loop_turns.copies.total() == 2 * READERS


def test_wide_fetches_that_one_batch_wakes_are_read_one_in_a_turn(
    running: RunningDaemon, client: RawClient, loop_turns: LoopTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    tps = client.create_topic(partitions=LARGE_PARTITIONS + 1)
    readers = [client.fetcher() for _ in range(READERS)]
    for reader in readers:
        reader.post(dict.fromkeys(tps, 0), max_wait_ms=60_000)
    wait_until(lambda: len(running.daemon.broker.fetch_purgatory) == READERS)
    monkeypatch.setattr(fetch, "read", loop_turns.noting(fetch.read))
    monkeypatch.setattr(fetch, "encode", loop_turns.noting(fetch.encode))
    client.producer().produce(tps[0], values_batch(tps[0]))
    for reader in readers:
        assert len(reader.answer()[1][0]) == 1
    assert set(loop_turns.copies.values()) == {1}
    assert loop_turns.copies.total() == 2 * READERS


def test_large_requests_are_taken_in_one_in_a_turn(
    running: RunningDaemon, client: RawClient, loop_turns: LoopTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Caller] = []
    take = Turns.take

    async def noted(turns: Turns, caller: Caller) -> None:
        await take(turns, caller)
        waited.append(caller)

    tps = client.create_topic(partitions=READERS)
    producers = [client.producer() for _ in tps]
    for tp, producer in zip(tps, producers, strict=True):
        producer.produce(tp, values_batch(tp))
    monkeypatch.setattr("brokerd.server.handlers.produce.handle", loop_turns.noting(produce.handle))
    monkeypatch.setattr(running.daemon.broker.turns, "take", partial(noted, running.daemon.broker.turns))
    for tp, producer in zip(tps, producers, strict=True):
        producer.post([(tp, values_batch(tp, size=LARGE))])
    for producer in producers:
        assert producer.answer().results[0].base_offset == 1
    assert len(waited) == READERS, "requests seldom arrive in one turn, so the turns alone would tell little"
    assert set(loop_turns.copies.values()) == {1}
