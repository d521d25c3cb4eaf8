"""Random schedules of sends, time, responses and faults against a model broker. Each accepted record is in the log once, in the
order of sending; each future completes once, with the true result; no memory leaks; and nothing gets stuck."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.model.test_producer_mutants import MUTANTS
from tests.support.broker_model import PartitionModel
from tests.support.planting import plant
from tests.support.producer_schedules import failure_of, report, run_seed, schedule, shrink
from tests.support.producer_simulation import Simulation
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays

SCHEDULES = 2_000 * TEST_SCALE
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(report(seed)) from error


def test_a_seed_replays_exactly() -> None:
    assert_replays(traced, range(20))


def traced(seed: int) -> list[str]:
    """The trace of one schedule."""
    settings, ops = schedule(seed)
    simulation = Simulation(seed, **settings)
    simulation.trace = []
    simulation.run(ops)
    return simulation.trace


def with_producers_pushed_out(seed: int) -> None:
    """Runs a seed's schedule with a broker that sometimes evicts a producer in favour of newer ones, whatever is in flight."""
    settings, ops = schedule(seed)
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        ops.insert(rng.randrange(6, len(ops)), ("push_out", rng.randrange(3)))
    Simulation(seed, **settings).run(ops)


def test_a_producer_pushed_out_by_newer_ones_writes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = 300 * TEST_SCALE
    for seed in range(seeds):
        with_producers_pushed_out(seed)
    monkeypatch.setattr(PartitionModel, "push_out", lambda self: self.producers.clear())  # keeps no record of the eviction
    with pytest.raises(AssertionError):
        any(map(with_producers_pushed_out, range(seeds)))


def test_a_failing_schedule_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_it, _ = MUTANTS["reenqueued_at_the_tail"]
    plant_it(partial(plant, monkeypatch.setattr))
    seed = next(seed for seed in range(3_000) if failure_of(seed, *schedule(seed)) is not None)
    settings, ops = schedule(seed)
    small = shrink(seed, settings, ops)
    assert failure_of(seed, settings, small) is not None
    assert len(small) < len(ops) // 3
    assert all(failure_of(seed, settings, small[:i] + small[i + 1 :]) is None for i in range(len(small)))
