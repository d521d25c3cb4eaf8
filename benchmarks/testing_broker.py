"""Measures each step of a test with a broker of brokerd.testing, one broker after another.

The ceiling of "start, warm" is a fork of the same warm process that only reports itself; that of "start, cold" is `brokerd start`,
which starts an interpreter and imports everything each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.environment import Broker as CommandLineBroker
from benchmarks.measure import Row, quantiles
from brokerd.testing import Broker
from brokerd.testing.warm_process import end, new_keeper

_COLD_ROUNDS = 5
_ROWS = [(f"k{number % 7}", f"v{number}") for number in range(100)]


def run(data_dir: str | None, *, brokers: int, say: Callable[[str], None]) -> list[Row]:
    """Measures; returns one row per step: count, median and 99th percentile."""
    cold, command_line = [], []
    for _ in range(_COLD_ROUNDS):
        end()  # makes the next broker start another warm process
        broker = Broker()
        cold.append(_timed(broker.start))
        broker.close()
        command_line.append(_timed(lambda: _start_and_stop(data_dir)))
    say(f"  {brokers} brokers from a warm process")
    steps: dict[str, list[float]] = {
        name: [] for name in ("fork", "start, warm", "first topic, rows in and out", "next rows", "close")
    }
    for _ in range(brokers):
        steps["fork"].append(_timed(lambda: new_keeper().end(60)))
        broker = Broker()
        steps["start, warm"].append(_timed(broker.start))
        steps["first topic, rows in and out"].append(_timed(lambda broker=broker: _rows_in_and_out(broker, "one")))  # type: ignore[misc]
        steps["next rows"].append(_timed(lambda broker=broker: _rows_in_and_out(broker, "two")))  # type: ignore[misc]
        steps["close"].append(_timed(broker.close))
    steps |= {"start, cold": cold, "brokerd start and stop": command_line}
    return [{"step": name, **quantiles(seconds)} for name, seconds in steps.items()]


def _rows_in_and_out(broker: Broker, name: str) -> None:
    topic = broker.create_topic(name, partitions=4)
    topic.append(_ROWS)
    assert len(topic.rows()) == len(_ROWS)


def _start_and_stop(data_dir: str | None) -> None:
    with CommandLineBroker(data_dir, {}):
        pass


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
