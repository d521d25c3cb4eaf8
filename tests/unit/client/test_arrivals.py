"""Goal: who reads arrivals waits for them, or is told of each. Method: one thread that is both."""

from __future__ import annotations

import queue

import pytest

from brokerd.client.consumer.arrivals import Arrivals


def test_each_item_is_told_once_it_is_there() -> None:
    told: list[bool] = []
    arrivals: Arrivals[str] = Arrivals(lambda: told.append(arrivals.empty()))
    with pytest.raises(queue.Empty):
        arrivals.get(0)
    arrivals.put("a")
    arrivals.put("b")
    assert told == [False, False]
    assert [arrivals.get(None), arrivals.get(1)] == ["a", "b"]
    assert arrivals.empty()
