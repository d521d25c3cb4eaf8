"""Random schedules of sends, time, answers and faults against a model broker: each accepted record is in the log once, in
the order of sending; each future ends once and says the truth; memory is accounted to zero; nothing is ever stuck."""

from __future__ import annotations

import pytest

from tests.model.test_producer_mutants import MUTANTS
from tests.support.producer_schedules import failure_of, report, run_seed, schedule, shrink
from tests.support.producer_simulation import Simulation
from tests.support.scale import TEST_SCALE

SCHEDULES = 5_000 * TEST_SCALE
PARTS = 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(report(seed)) from error


def test_a_seed_replays_exactly() -> None:
    for seed in range(20):
        traces = []
        for _ in range(2):
            settings, ops = schedule(seed)
            simulation = Simulation(seed, **settings)
            simulation.trace = []
            simulation.run(ops)
            traces.append(simulation.trace)
        assert traces[0] == traces[1]


def test_a_failing_schedule_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["reenqueued_at_the_tail"][0](monkeypatch)
    seed = MUTANTS["reenqueued_at_the_tail"][1]
    settings, ops = schedule(seed)
    assert failure_of(seed, settings, ops) is not None
    small = shrink(seed, settings, ops)
    assert failure_of(seed, settings, small) is not None
    assert len(small) < len(ops) // 3
    assert all(failure_of(seed, settings, small[:i] + small[i + 1 :]) is None for i in range(len(small)))
