"""Producer scenarios that several tests share: how to build and drive them."""

from __future__ import annotations

import random
from typing import Any

from brokerd.config.client import ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.ids import ProducerIdAndEpoch, TopicPartition
from brokerd.producer.core.accumulator import BufferPool, Piece, RecordAccumulator
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.transport import RequestLimits
from tests.support.producer_simulation import Op, Simulation

PARTITIONS = 64
HOT = 0
# Delivers one record of partition 0 through node 0.
OPENED: list[Op] = [("call", 0), ("append", 0, 1), ("call", 0), ("tick", 5), ("open", 0), ("request", 0), ("answer", 0)]


def five_in_flight(**settings: Any) -> Simulation:
    """A simulation with five batches in flight, of two records each."""
    defaults: dict[str, Any] = {"max.in.flight.batches.per.partition": 5, "linger.ms": 0, "batch.size": 200}
    return Simulation(1, **defaults | settings)


def do(simulation: Simulation, ops: list[Op]) -> Simulation:
    """Executes operations in order."""
    for op in ops:
        getattr(simulation, "do_" + op[0])(*op[1:])
        simulation.step()
    return simulation


def assert_nobody_starves() -> None:
    """64 partitions have waiting batches, one of them refilled constantly, and a request holds 40 batches: every partition's batch
    leaves within two drains."""
    settings = {"batch.size": 1_000, "max.request.size": 40 * 1_128, "linger.ms": 0, "max.in.flight.batches.per.partition": 5}
    config = from_mapping(ProducerConfig, settings)
    identity = Identity(config, random.Random(1))
    identity.on_granted(ProducerIdAndEpoch(1, 0), 0)
    accumulator = RecordAccumulator(config, BufferPool(2**40))
    partitions = list(range(PARTITIONS))
    random.Random(1).shuffle(partitions)
    for partition in partitions:
        for _ in range(20 if partition == HOT else 3):
            accumulator.append(TopicPartition("t", partition), Piece([0], 1, 1_000, 0), 0)
    limits = RequestLimits(PARTITIONS, config.max_request_size)
    left: set[int] = set()
    for now_ms in range(2):
        accumulator.append(TopicPartition("t", HOT), Piece([0], 1, 1_000, 0), now_ms)
        for batch in accumulator.drain(accumulator.ready(lambda _tp: 0, identity.may_drain, now_ms), 0, limits):
            identity.assign(batch)
            left.add(batch.tp.partition)
    assert left == set(range(PARTITIONS)), f"{sorted(set(range(PARTITIONS)) - left)} starve"
