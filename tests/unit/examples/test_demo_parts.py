"""Goal: the demo's figures say what they measure, and what Spark said is shown when it is wanted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Batch(NamedTuple):
    """A micro-batch as Spark reports it."""

    numInputRows: int  # noqa: N815 (Spark's name)
    durationMs: Mapping[str, int]  # noqa: N815


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_parts.session
    import demo_parts.timing

    yield demo_parts
    for name in [name for name in sys.modules if name.startswith("demo_parts")]:
        del sys.modules[name]


def test_first_micro_batch_is_in_one_figure_and_not_in_the_other(parts: Any) -> None:
    batches = [Batch(100, {"triggerExecution": 9_000}), Batch(0, {"triggerExecution": 50}), Batch(300, {"triggerExecution": 500})]
    timing = parts.timing.timing_of(batches, 10.0)
    assert timing == (400, 10.0, 300, 0.5)
    whole, later = timing.lines()
    assert whole.split()[:2] == ["40", "rows/s"]
    assert later.split()[:2] == ["600", "rows/s"]


def test_one_micro_batch_has_one_figure(parts: Any) -> None:
    timing = parts.timing.timing_of([Batch(100, {"triggerExecution": 900})], 1.0)
    assert len(timing.lines()) == 1


def test_last_words_are_the_end_of_the_log(parts: Any, tmp_path: Path) -> None:
    assert parts.session.last_words(tmp_path) == ""
    (tmp_path / "spark.log").write_text("".join(f"line {number}\n" for number in range(1_000)))
    words = parts.session.last_words(tmp_path).splitlines()
    assert "What Spark had to say last:" in words
    assert words[-1] == "line 999"
    assert len(words) < 50


def test_ctrl_c_while_spark_starts_waits_until_it_is_up(parts: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    done: list[str] = []

    def start() -> None:
        with parts.session.interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is before
