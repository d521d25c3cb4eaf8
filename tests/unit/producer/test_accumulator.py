"""Unit tests of the accumulator, its batches and the metrics. tests/model tests delivery as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.config.client import ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerUnreachableError
from brokerd.ids import TopicPartition
from brokerd.producer.core.accumulator import (
    NEVER_MS,
    REQUEST_FILL_BYTES,
    BatchState,
    BufferPool,
    LeaderOf,
    Piece,
    ProducerBatch,
    RecordAccumulator,
)
from brokerd.producer.core.metrics import WINDOW_MS, WindowedStat
from brokerd.producer.core.transport import BATCH_OVERHEAD_BYTES, RequestLimits
from tests.support.producer_simulation import WaitingAppend

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
LIMITS = RequestLimits(1_000, 100_000_000)


def accumulator(**settings: Any) -> RecordAccumulator:
    config = from_mapping(ProducerConfig, {"batch.size": 100, "linger.ms": 5, "max.request.size": 1_000} | settings)
    return RecordAccumulator(config, BufferPool(1_000))


def append(queue: RecordAccumulator, tp: TopicPartition = TP, size: int = 40, now_ms: int = 0) -> ProducerBatch:
    assert queue.pool.admits(size)
    queue.pool.used_bytes += size
    return queue.append(tp, Piece([], 1, size, 0), now_ms)[0]


def leader(_tp: TopicPartition) -> int:
    return 0


def always(_batch: ProducerBatch) -> bool:
    return True


def looked(queue: RecordAccumulator, leader_of: LeaderOf, now_ms: int) -> tuple[set[int], int, set[str]]:
    check = queue.ready(leader_of, always, now_ms)
    return set(check.nodes), check.next_check_ms, check.leaderless_topics


def drained(queue: RecordAccumulator, limits: RequestLimits, now_ms: int) -> list[ProducerBatch]:
    return queue.drain(queue.ready(leader, always, now_ms), 0, limits)


def test_a_batch_closes_when_the_next_piece_does_not_fit() -> None:
    queue = accumulator()
    first, second, third = append(queue), append(queue), append(queue)
    assert first is second is not third
    assert (first.state, third.state) == (BatchState.CLOSED, BatchState.OPEN)
    assert append(queue, size=500).size_bytes == 500  # larger than batch.size: a batch of its own
    assert append(queue).size_bytes == 40


def test_ready_for_each_reason_and_for_no_other() -> None:
    assert looked(accumulator(), leader, 0) == (set(), NEVER_MS, set())
    queue = accumulator()
    append(queue)
    assert looked(queue, leader, 4) == (set(), 5, set())
    assert set(queue.ready(leader, always, 5).nodes) == {0}  # linger
    assert looked(queue, lambda _tp: -1, 5) == (set(), NEVER_MS, {"t"})
    append(queue, size=60, now_ms=4)
    assert set(queue.ready(leader, always, 4).nodes) == {0}  # full

    queue = accumulator()
    append(queue)
    call = WaitingAppend(0, 1)
    assert not queue.pool.admits(5_000, call)
    assert set(queue.ready(leader, always, 0).nodes) == {0}  # memory exhausted
    call.is_over = True
    assert set(queue.ready(leader, always, 0).nodes) == set()
    queue.begin_flush()
    assert set(queue.ready(leader, always, 0).nodes) == {0}  # flushed
    append(queue, OTHER)
    assert drained(queue, LIMITS, 0)[0].tp == TP  # records appended after the flush began still linger
    assert looked(queue, leader, 0) == (set(), 5, set())
    queue.is_closed = True
    assert set(queue.ready(leader, always, 0).nodes) == {0}  # closing


def test_muted_and_backing_off_are_not_ready() -> None:
    queue = accumulator(**{"linger.ms": 0})
    append(queue)
    (batch,) = drained(queue, LIMITS, 0)
    append(queue)
    assert looked(queue, leader, 9) == (set(), NEVER_MS, set())  # muted
    batch.come_back()
    queue.unmute(TP)
    queue.reenqueue(batch, 50)
    assert looked(queue, leader, 20) == (set(), 50, set())  # backing off, and later batches wait behind it
    assert drained(queue, LIMITS, 50) == [batch]


def test_a_request_holds_one_batch_a_partition_and_a_large_one_goes_alone() -> None:
    queue = accumulator(**{"linger.ms": 0, "max.request.size": 500})
    for tp in (TP, TP, OTHER):
        append(queue, tp, size=100)
    assert [batch.tp for batch in drained(queue, LIMITS, 0)] == [TP]
    assert [batch.tp for batch in drained(queue, LIMITS, 0)] == [OTHER]
    assert drained(queue, LIMITS, 0) == []
    queue = accumulator(**{"linger.ms": 0, "max.request.size": 500})
    append(queue, TP, size=900)
    append(queue, OTHER, size=10)
    assert [batch.size_bytes for batch in drained(queue, LIMITS, 0)] == [900]


def test_one_look_serves_several_requests_and_knows_what_stays_behind() -> None:
    queue = accumulator(**{"max.in.flight.batches.per.partition": 5})
    for _ in range(2):
        append(queue, TP, size=100)
    append(queue, TP, size=40, now_ms=3)
    append(queue, OTHER, size=100)
    check = queue.ready(leader, always, 3)
    requests = []
    for _ in range(3):
        batches = queue.drain(check, 0, LIMITS)
        queue.check_again(check, 0, batches, 3)
        requests.append([batch.tp for batch in batches])
    assert requests == [[TP, OTHER], [TP], []]
    assert check.next_check_ms == 3 + 5, "what is left lingers"


def test_a_full_request_leaves_the_other_partitions_to_the_next_ones() -> None:
    config = from_mapping(ProducerConfig, {"linger.ms": 0})
    assert config.max_request_size > 2 * REQUEST_FILL_BYTES
    queue = RecordAccumulator(config, BufferPool(8 * REQUEST_FILL_BYTES))
    tps = [TopicPartition("t", number) for number in range(5)]
    for tp in tps:
        append(queue, tp, size=REQUEST_FILL_BYTES // 2)
    requests = [[batch.tp for batch in drained(queue, LIMITS, 0)] for _ in range(3)]
    assert requests == [tps[:2], tps[2:4], tps[4:]]


def test_a_request_is_no_larger_than_the_node_takes() -> None:
    queue = accumulator(**{"linger.ms": 0})
    tps = [TopicPartition("t", number) for number in range(5)]
    for tp in tps:
        append(queue, tp, size=50)
    limits = RequestLimits(1_000, BATCH_OVERHEAD_BYTES + 2 * (50 + BATCH_OVERHEAD_BYTES))
    requests = [[batch.tp for batch in drained(queue, limits, 0)] for _ in range(3)]
    assert requests == [tps[:2], tps[2:4], tps[4:]]


def test_metrics_forget_after_two_windows() -> None:
    stat = WindowedStat(0)
    stat.record(10, 0)
    stat.record(30, 1_000)
    assert (stat.average(1_000), stat.maximum(1_000)) == (20, 30)
    assert stat.rate(1_000) == pytest.approx(40 / 30)
    assert stat.maximum(WINDOW_MS) == 30
    assert stat.rate(WINDOW_MS * 3 // 2) == pytest.approx(40 / 45)
    assert stat.maximum(WINDOW_MS * 2) == 0
    assert stat.average(WINDOW_MS * 100) == 0


def test_a_batch_ends_once_except_for_late_answers() -> None:
    batch = in_flight()
    assert batch.complete(7, 1)
    with pytest.raises(AssertionError):
        batch.complete(7, 1)
    given_up = in_flight()
    given_up.fail(BrokerUnreachableError("lost"))
    assert (given_up.is_done, given_up.is_in_flight) == (True, True)
    assert not given_up.complete(7, 1)
    assert (given_up.state, given_up.base_offset) == (BatchState.ENDED, -1)


def in_flight() -> ProducerBatch:
    batch = ProducerBatch(TP, 0)
    batch.close()
    batch.send()
    return batch


@pytest.mark.parametrize(
    "move",
    [
        lambda batch: batch.send(),  # twice
        lambda batch: batch.split_into([]),
        lambda batch: batch.add(Piece([], 1, 1, 0)),
        lambda batch: batch.clear_sequence(),
    ],
)
def test_a_batch_in_flight_neither_grows_nor_is_split_nor_sent_again(move: Callable[[ProducerBatch], object]) -> None:
    with pytest.raises(AssertionError):
        move(in_flight())
