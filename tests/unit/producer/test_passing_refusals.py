"""A transient refusal costs only time. A permanent one is reported soon, with the broker's message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.errors import AuthenticationError, DeliveryTimeoutError, Fate, NotEnoughReplicasError, ProducerClosedError
from brokerd.ids import NO_LEADER
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, double_of
from tests.support.clock import HastyClock, ManualClock
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_members import wait_awake
from tests.unit.producer.test_producer import producer_of

REFUSAL = "127.0.0.1:9192 refused Produce: the token is not known here"


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(1)


def refuse(broker: BrokerDouble, count: int, *, may_pass: bool = True) -> None:
    for errors in (broker.metadata_errors, broker.identity_errors, broker.open_errors):
        errors.extend([AuthenticationError(REFUSAL, may_pass=may_pass)] * count)


def step_by_step(producer: Producer, clock: ManualClock, ms: int, condition: Callable[[], bool]) -> None:
    """Waits for a condition. The clock moves on by `ms` after each step of the sender, and no faster, however late that comes."""
    core, taken, seen = producer._core, 0, 0
    step = core.step

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal taken
        result = step(*arguments, **more)
        taken += 1
        return result

    def goes_on() -> bool:
        nonlocal seen
        if taken > seen:
            seen = taken
            clock.advance(ms)
        with producer._shared.lock:
            producer._wake()
        return condition()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "step", counted)
        wait_until(goes_on)


def test_refusals_at_the_start_that_pass_are_not_heard_of(broker: BrokerDouble) -> None:
    refuse(broker, 3)
    with producer_of(broker) as producer:
        assert producer.send("t", b"x").result(DEADLINE_S).offset == 0
        assert producer.first_error is None


def test_a_wrong_token_at_the_start_is_told_soon_in_the_brokers_words(broker: BrokerDouble) -> None:
    refuse(broker, 1_000)
    with producer_of(broker, HastyClock(), max_block_ms=2**31 - 1) as producer:
        with pytest.raises(ProducerClosedError, match=REFUSAL):
            producer.send("t", b"x")
        assert len(broker.metadata_errors) > 990


def test_what_cannot_pass_is_final_at_once(broker: BrokerDouble) -> None:
    refuse(broker, 1, may_pass=False)
    with producer_of(broker) as producer, pytest.raises(ProducerClosedError, match=REFUSAL):
        producer.send("t", b"x")


@pytest.mark.parametrize("refused", ["identity_errors", "open_errors"])
def test_records_without_a_right_fail_and_later_ones_go_through_once_it_is_granted(broker: BrokerDouble, refused: str) -> None:
    getattr(broker, refused).append(AuthenticationError(REFUSAL, may_pass=False))
    with producer_of(broker) as producer:
        with pytest.raises(AuthenticationError, match=REFUSAL):
            producer.send("t", b"x").result(DEADLINE_S)
        assert producer.send("t", b"y").result(DEADLINE_S).offset == 0


def test_a_refusal_says_whether_the_records_may_be_in_the_log(broker: BrokerDouble) -> None:
    with producer_of(broker) as producer:
        broker.open_errors.append(AuthenticationError(REFUSAL, may_pass=False))
        with pytest.raises(AuthenticationError, match=f"{REFUSAL}; .* they are not in the log"):
            producer.send("t", b"x").result(DEADLINE_S)
        producer.send("t", b"y").result(DEADLINE_S)
        broker.open_errors.append(AuthenticationError(REFUSAL, may_pass=False))
        broker.faults.append(Fault(kill_after=True))
        with pytest.raises(AuthenticationError, match=f"{REFUSAL}; .* they may still be in the log"):
            producer.send("t", b"z").result(DEADLINE_S)
    assert broker.values("t", 0) == [b"y", b"z"]


def test_refusals_around_a_restart_cost_a_running_producer_nothing(broker: BrokerDouble) -> None:
    with producer_of(broker) as producer:
        producer.send("t", b"x").result(DEADLINE_S)
        refuse(broker, 20)
        broker.faults.append(Fault(kill_before=True))
        assert producer.send("t", b"y").result(DEADLINE_S).offset == 1
        assert producer.first_error is None


def test_refusals_that_do_not_pass_are_named_when_the_time_is_over(broker: BrokerDouble) -> None:
    clock = ManualClock()
    with producer_of(broker, clock, request_timeout_ms=40_000, delivery_timeout_ms=60_000) as producer:
        producer.partitions_for("t")
        broker.open_errors.extend([AuthenticationError(REFUSAL)] * 100_000)
        refused = producer.send("t", b"x")
        wait_awake(producer, clock, lambda: len(broker.open_errors) < 99_999)
        clock.advance(60_000)
        wait_awake(producer, clock, refused.done)
        error = refused.exception(0)
        assert isinstance(error, DeliveryTimeoutError)
        assert REFUSAL in str(error)
        broker.open_errors.clear()
        passed = producer.send("t", b"x")
        wait_awake(producer, clock, passed.done)
        assert passed.exception(0) is None


def test_what_keeps_acknowledgements_waiting_is_told_once(broker: BrokerDouble, caplog: pytest.LogCaptureFixture) -> None:
    few = "t-0: 1 of 2 replicas are in sync"
    clock = ManualClock()

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    def retry(producer: Producer, ms: int) -> None:
        """Waits for ten refused retries, about `ms` apart."""
        for _ in range(10):
            before = len(broker.faults)
            wait_awake(producer, clock, lambda before=before: len(broker.faults) < before)  # type: ignore[misc]
            clock.advance(ms)

    with producer_of(broker, clock, request_timeout_ms=40_000, delivery_timeout_ms=120_000) as producer:
        producer.partitions_for("t")
        broker.faults.extend([Fault(error=NotEnoughReplicasError(few, fate=Fate.NOT_APPENDED))] * 30)
        late = producer.send("t", b"x")
        retry(producer, 50)
        assert told() == []
        retry(producer, 1_000)
        retry(producer, 1_000)
        assert late.result(DEADLINE_S).offset == 0
    (text,) = told()
    assert text.startswith("acknowledgements have waited for ")
    assert text.endswith(f" s: {few}: retrying for up to delivery.timeout.ms (120000 ms)")


def test_records_that_wait_for_a_leader_are_told_of_and_why(broker: BrokerDouble, caplog: pytest.LogCaptureFixture) -> None:
    why, clock = "t-0 has no leader at present", ManualClock()
    broker.topics["t"].leaders[0] = NO_LEADER

    def is_told() -> bool:
        assert clock.monotonic_ms() < 10_000, "it is told after five seconds"
        return any(record.levelname == "WARNING" for record in caplog.records)

    with producer_of(broker, clock, request_timeout_ms=10_000, delivery_timeout_ms=10**9) as producer:
        producer.partitions_for("t")
        late = producer.send("t", b"x")
        step_by_step(producer, clock, 200, is_told)
        clock.advance(10**9)
        wait_awake(producer, clock, late.done)
        error = late.exception(0)
    text = next(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert text.endswith(f" s: {why}: retrying for up to delivery.timeout.ms (1000000000 ms)")
    assert isinstance(error, DeliveryTimeoutError)
    assert str(error).endswith(f"they are not in the log; last trouble: {why}")


def test_an_epoch_without_a_leader_is_forgotten_if_none_is_heard_of_for_long(broker: BrokerDouble) -> None:
    """etcd was restored to a state before that epoch, so no node reports it again."""
    clock, topic = ManualClock(), broker.topics["t"]
    leader, topic.leaders[0], topic.epochs = topic.leaders[0], NO_LEADER, (5,)

    with producer_of(broker, clock, request_timeout_ms=1_000, delivery_timeout_ms=2_000) as producer:
        producer.partitions_for("t")
        topic.leaders[0], topic.epochs = leader, (4,)
        late = producer.send("t", b"x")
        step_by_step(producer, clock, 200, late.done)
        assert isinstance(late.exception(0), DeliveryTimeoutError)
        sent = producer.send("t", b"y")
        step_by_step(producer, clock, 50, sent.done)
        assert sent.result(0).offset == 0
