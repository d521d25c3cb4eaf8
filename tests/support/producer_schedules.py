"""Schedules for producer_simulation.py: made from a seed, run, and shrunk when they fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.support.producer_simulation import NO_LIMIT, Op, Simulation
from tests.support.simulated_network import ALL_ERRORS, ERRORS, RESIGNED


def schedule(seed: int, length: int = 45) -> tuple[dict[str, Any], list[Op]]:
    """A seed's settings and operations."""
    rng = random.Random(seed)
    settings: dict[str, Any] = {
        "max.in.flight.batches.per.partition": rng.choice((1, 5)),
        "linger.ms": rng.choice((0, 5)),
        "max.in.flight.requests.per.connection": rng.choice((1, 5, 5)),
        "start": rng.choice(("fresh", "fresh", "wrap", "last epoch")),
    }
    kinds: dict[str, tuple[float, Callable[[], tuple[Any, ...]]]] = {
        "append": (14, lambda: (rng.randrange(3), rng.randint(1, 4))),
        "tick": (8, lambda: (rng.choice((1, 5, 20, 50, 120, 450)),)),
        "request": (16, lambda: (rng.randrange(4),)),
        "answer": (14, lambda: (rng.randrange(4), rng.choice((1, 1, 1, 2)))),
        "open": (8, lambda: (rng.randrange(4),)),
        "call": (8, lambda: (rng.randrange(3), rng.random() < 0.85)),
    }
    faults: dict[str, tuple[float, Callable[[], tuple[Any, ...]]]] = {
        "request_error": (4, lambda: (rng.randrange(4), rng.randrange(len(ERRORS)), rng.random() < 0.6, rng.random() < 0.1)),
        "cut": (4, lambda: (rng.randrange(4),)),
        "drop_request": (2, lambda: (rng.randrange(4),)),
        "drop_answer": (2, lambda: (rng.randrange(4),)),
        "swap": (1, lambda: (rng.randrange(4),)),
        "throttle": (2, lambda: (rng.randrange(4), rng.choice((10, 100, 300)))),
        "leader": (2, lambda: (rng.randrange(3), rng.choice((-1, 0, 1)))),
        "limit": (2, lambda: (rng.randrange(3), rng.choice((0, 1, 1, 2, 3, NO_LIMIT)))),
        "forget": (1, lambda: (rng.randrange(3),)),
        "flush": (2, tuple),
        "abort": (0.3, tuple),
        "expire": (0.7, tuple),
    }
    if rng.random() < 0.8:
        # Most schedules have a few kinds of faults only: deep combinations of few find more than shallow mixes of all.
        faults = {name: faults[name] for name in rng.sample(sorted(faults), rng.randint(1, 5))}
    kinds |= faults
    names = list(kinds)
    weights = [kinds[name][0] for name in names]
    ops: list[Op] = [("call", 0), ("append", 0, 1), ("call", 0), ("call", 0), ("tick", 5), ("open", 0)]
    for name in rng.choices(names, weights, k=length):
        arguments = kinds[name][1]()
        if name == "request_error":
            ops.append(("request", *arguments))
        elif name == "expire":
            ops += [("tick", 1_400), ("tick", 1_700)]
        else:
            ops.append((name, *arguments))
    return settings, ops


def schedule_with_members(seed: int) -> tuple[dict[str, Any], list[Op]]:
    """A seed's schedule, with some records sent in transactions."""
    settings, ops = schedule(seed)
    settings["start"] = "fresh"
    rng = random.Random(seed)
    for _ in range(rng.randint(2, 8)):
        ops.insert(rng.randrange(len(ops)), (rng.choice(("begin", "begin", "commit", "commit", "abort_member")),))
    if rng.random() < 0.2:
        ops.insert(rng.randrange(len(ops)), ("expire_members",))
    return settings, [("begin",), *ops] if rng.random() < 0.7 else ops


def schedule_with_elections(seed: int) -> tuple[dict[str, Any], list[Op]]:
    """A schedule with elections, deposed leaders that do not know it, lagging nodes, and leaders that refuse batches because they
    cannot reach the coordinator."""
    rng = random.Random(seed)
    settings: dict[str, Any] = {
        "max.in.flight.batches.per.partition": rng.choice((1, 5)),
        "linger.ms": 0,
        "batch.size": 200,
        "request.timeout.ms": rng.choice((400, 3_000)),
    }
    kinds: dict[str, tuple[float, Callable[[], list[Op]]]] = {
        "append": (8, lambda: [("append", rng.randrange(2), rng.randint(1, 2))]),
        "serve": (8, lambda: [("serve", rng.randrange(2))]),
        "ask": (6, lambda: [("tick", 120), ("ask",), ("tick", 50)]),
        "read": (2, lambda: [("request", rng.randrange(4), rng.choice((-1, rng.randrange(len(ALL_ERRORS)))))]),
        "depose": (2, lambda: [("depose", 0, rng.randrange(2))]),
        "leader": (2, lambda: [("leader", 0, rng.choice((-1, 0, 1)))]),
        "hear": (0.5, lambda: [("hear",)]),
        "old_metadata": (3, lambda: [("tick", 120), ("old_metadata", rng.randrange(3)), ("tick", 50)]),
        "cut": (4, lambda: [("cut", rng.randrange(4)), ("tick", 20)]),
        "open": (2, lambda: [("open", rng.randrange(4))]),
        "drop": (1, lambda: [("drop_request", rng.randrange(4))]),
        "wait": (1, lambda: [("tick", rng.choice((450, 1_000, 2_000)))]),
    }
    names, weights = list(kinds), [weight for weight, _ in kinds.values()]
    ops: list[Op] = [("call", 0), ("append", 0, 1), ("ask",), ("serve", 0)]
    for name in rng.choices(names, weights, k=40):
        ops += kinds[name][1]()
    return settings, ops


def schedule_with_recreations(seed: int) -> tuple[dict[str, Any], list[Op]]:
    """Another schedule with deletions and re-creations of the topic. Later a lagging node reports the old topic or none. Batches
    under way may be refused by a leader of the old topic that resigns."""
    settings, ops = (schedule, schedule_with_elections, schedule_with_members)[seed % 3](seed)
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        later = rng.randrange(6, len(ops))
        ops[later:later] = [("tick", 120), ("old_metadata", rng.randrange(3)), ("tick", 50)]
        at, stream = rng.randrange(5, later), rng.randrange(3)
        heard: list[Op] = [("tick", 120), ("ask",), ("tick", 50)]
        refused: list[Op] = [("request", stream, RESIGNED), ("answer", stream)]
        ops[at:at] = [("recreate", rng.randrange(2), rng.choice((1, 3, 3))), *rng.choice(([], heard, heard + refused))]
    return settings, ops


def run_seed_with_recreations(seed: int) -> None:
    """Runs a seed's schedule with re-created topics."""
    settings, ops = schedule_with_recreations(seed)
    Simulation(seed, **settings).run(ops)


def run_seed_with_elections(seed: int) -> None:
    """Runs a seed's schedule with elections."""
    settings, ops = schedule_with_elections(seed)
    Simulation(seed, **settings).run(ops)


def run_seed_with_members(seed: int) -> None:
    """Runs a seed's schedule with transactions."""
    settings, ops = schedule_with_members(seed)
    Simulation(seed, **settings).run(ops)


def run_seed(seed: int) -> None:
    """Runs a seed's schedule."""
    settings, ops = schedule(seed)
    Simulation(seed, **settings).run(ops)


def report(seed: int, scheduled: Callable[[int], tuple[dict[str, Any], list[Op]]] = schedule) -> str:
    """A failing seed's schedule, shrunk, with its trace and error, as text."""
    settings, ops = scheduled(seed)
    small = shrink(seed, settings, ops)
    simulation = Simulation(seed, **settings)
    simulation.trace = []
    try:
        simulation.run(small)
    except Exception as error:
        lines = [f"seed {seed}, settings {settings}", f"operations {small}", *simulation.trace, f"{type(error).__name__}: {error}"]
        return "\n".join(lines)
    return f"seed {seed} does not fail any more"


def failure_of(seed: int, settings: dict[str, Any], ops: list[Op]) -> Exception | None:
    """The error of a failing schedule, or None."""
    try:
        Simulation(seed, **settings).run(ops)
    except Exception as error:
        return error
    return None


def shrink(seed: int, settings: dict[str, Any], ops: list[Op]) -> list[Op]:
    """The smallest part found of a failing schedule that still fails: leaves out halves, quarters, down to single operations."""
    size = max(1, len(ops) // 2)
    while True:
        at = 0
        before = len(ops)
        while at < len(ops):
            candidate = ops[:at] + ops[at + size :]
            if failure_of(seed, settings, candidate) is not None:
                ops = candidate
            else:
                at += size
        if size == 1 and len(ops) == before:
            return ops
        size = max(1, size // 2)
