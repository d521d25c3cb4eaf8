"""A producer as a transaction's member: requests its id lazily, ends as a whole, and keeps its stream for the next member."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    AbortedBatchError,
    AlreadyCommittedError,
    BrokerUnreachableError,
    ConfigError,
    DeliveryTimeoutError,
    Fate,
    InvalidTxnStateError,
    MessageTooLargeError,
    ProducerClosedError,
    ProducerFencedError,
    StorageError,
    TransactionStateError,
    TxnConflictError,
    UnknownTopicIdError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.membership import MemberReport, Membership, TransactionEnd
from brokerd.producer.core.streams import Command, RequestProducerId, SendHeartbeat
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, double_of
from tests.support.clock import ManualClock
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import producer_of

COUNTER = itertools.count()


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(2)


@pytest.fixture
def producer(broker: BrokerDouble) -> Iterator[Producer]:
    with producer_of(broker) as made:
        yield made


def member(version: int = 1, timeout_ms: int = 900_000) -> Membership:
    return Membership("id", version, f"execution of {version}", "run", "a test", next(COUNTER).to_bytes(16), timeout_ms)


def wait_awake(producer: Producer, clock: ManualClock, condition: Callable[[], bool]) -> None:
    """Waits for a condition, advancing the manual clock and waking the producer before each check."""

    def goes_on() -> bool:
        clock.advance(1)
        with producer._shared.lock:
            producer._wake()
        return condition()

    wait_until(goes_on)


def has_heartbeats(broker: BrokerDouble, count: int) -> bool:
    return len(broker.heartbeats) == count


def commit(broker: BrokerDouble, membership: Membership, report: MemberReport) -> int:
    listed = [report]
    end = TransactionEnd(*membership[:4], is_commit=True, members=listed, partitions=report.partitions)
    return broker.transactions.end(end, broker.held_records)


def test_a_member_reports_what_it_wrote(broker: BrokerDouble, producer: Producer) -> None:
    membership = member()
    producer.begin_member(membership)
    for number in range(3):
        producer.send("t", b"%d" % number, partition=number % 2)
    report = producer.end_member()
    topic_id = broker.topics["t"].topic_id
    assert report.records == 3
    assert sorted(report.partitions) == [TopicIdPartition(topic_id, 0), TopicIdPartition(topic_id, 1)]
    assert broker.committed_values("t") == []
    assert commit(broker, membership, report) == 1
    assert sorted(broker.committed_values("t")) == [b"0", b"1", b"2"]
    assert all(request.membership == membership and request.acks == -1 for request in broker.requests)


def test_a_member_without_a_row_asks_for_nothing(broker: BrokerDouble, producer: Producer) -> None:
    producer.begin_member(member())
    assert producer.end_member() == MemberReport()
    assert not broker.inits


def test_a_member_that_waits_for_its_first_row_shows_that_it_lives() -> None:
    """Its siblings have ended: only its heartbeats keep the transaction open."""
    identity = Identity(ProducerConfig(bootstrap_servers="h:1"), random.Random(1), member(timeout_ms=3_000))
    commands: list[Command] = []
    assert identity.step(commands, 10_000, has_rows=False) == 11_000
    assert identity.step(commands, 10_999, has_rows=False) == 11_000
    assert commands == []
    identity.step(commands, 11_000, has_rows=False)
    assert [type(command) for command in commands] == [RequestProducerId]
    identity.on_granted(ProducerIdAndEpoch(7, 0), 11_001)
    commands.clear()
    assert identity.step(commands, 11_001, has_rows=False) == 12_001
    identity.step(commands, 12_001, has_rows=False)
    assert [type(command) for command in commands] == [SendHeartbeat]


def test_members_follow_each_other_on_the_same_stream_with_ids_of_their_own(broker: BrokerDouble, producer: Producer) -> None:
    reports = []
    for version in range(4):
        membership = member(version)
        producer.begin_member(membership)
        producer.send("t", b"x", partition=0)
        reports.append(producer.end_member())
        commit(broker, membership, reports[-1])
    assert len({report.producer_id for report in reports}) == 4
    assert [report.records for report in reports] == [1] * 4
    assert len(broker.hellos) == 1


def test_a_producer_is_itself_before_and_after_a_member(broker: BrokerDouble, producer: Producer) -> None:
    producer.send("t", b"before", partition=0)
    producer.flush()
    producer.begin_member(member())
    assert producer.delivered() == {}
    producer.send("t", b"inside", partition=0)
    producer.end_member()
    producer.send("t", b"after", partition=0)
    producer.flush()
    assert broker.values("t", 0) == [b"before", b"inside", b"after"]
    assert broker.committed_values("t") == [b"before", b"after"]
    assert producer.delivered()[TopicPartition("t", 0)].record_count == 2
    (entry,) = [entry for number, entry in broker.topics["t"].partitions[0].producers.items() if number == 1001]
    assert (entry.epoch, entry.last_sequence) == (0, 1), "one id and one epoch, as if the member had not been"


@pytest.mark.parametrize(
    "error", [AlreadyCommittedError("a"), TxnConflictError("b"), ProducerFencedError("c"), InvalidTxnStateError("d")]
)
def test_a_member_that_gets_no_id_fails_with_its_rows_and_the_next_one_works(
    broker: BrokerDouble, producer: Producer, error: WireError
) -> None:
    broker.identity_errors.append(error)
    producer.begin_member(member())
    future = producer.send("t", b"x")
    assert isinstance(future.exception(DEADLINE_S), type(error))
    with pytest.raises(type(error)):
        producer.send("t", b"y")
    with pytest.raises(type(error)):
        producer.end_member()
    assert not broker.requests
    producer.begin_member(member(2))
    producer.send("t", b"z")
    assert producer.end_member().records == 1


def test_an_id_is_asked_for_again_after_a_passing_failure(broker: BrokerDouble, producer: Producer) -> None:
    broker.identity_errors.extend([StorageError("disk"), BrokerUnreachableError("gone")])
    producer.begin_member(member())
    producer.send("t", b"x")
    assert producer.end_member().records == 1
    assert len(broker.inits) == 3


def test_one_failed_batch_fails_the_member_and_all_its_rows(broker: BrokerDouble, producer: Producer) -> None:
    producer.begin_member(member())
    broker.faults.append(Fault(error=MessageTooLargeError("no", fate=Fate.NOT_APPENDED)))
    first = producer.send("t", b"x", partition=0)
    assert isinstance(first.exception(DEADLINE_S), MessageTooLargeError)
    with pytest.raises(MessageTooLargeError):
        producer.send("t", b"y", partition=1)
    with pytest.raises(MessageTooLargeError):
        producer.end_member()
    assert broker.identities.next_producer_id == 1001, "no epoch is raised, and no other id asked for"


def test_a_fenced_batch_fails_the_member_alone(broker: BrokerDouble, producer: Producer) -> None:
    producer.begin_member(member())
    broker.faults.append(Fault(error=InvalidTxnStateError("not open", fate=Fate.NOT_APPENDED)))
    producer.send("t", b"x")
    with pytest.raises(InvalidTxnStateError):
        producer.end_member()
    producer.send("t", b"plain")
    producer.flush()
    assert producer.first_error is None


def test_rows_that_expire_fail_the_member(broker: BrokerDouble) -> None:
    clock = ManualClock()
    with producer_of(broker, clock, delivery_timeout_ms=1_000, request_timeout_ms=500) as producer:
        producer.begin_member(member())
        producer.send("t", b"warm", partition=1).result(DEADLINE_S)
        broker.topics["t"].leaders[0] = -1
        broker.faults.append(Fault(drop_request=True))
        first = producer.send("t", b"x", partition=0)
        clock.advance(900)
        wait_awake(producer, clock, first.done)
        assert isinstance(first.exception(0), DeliveryTimeoutError)
        with pytest.raises(DeliveryTimeoutError):
            producer.end_member()


def test_aborting_gives_up_and_names_the_id(broker: BrokerDouble, producer: Producer) -> None:
    producer.begin_member(member())
    producer.send("t", b"x", partition=0).result(DEADLINE_S)
    broker.faults.append(Fault(drop_answer=True))
    late = producer.send("t", b"y", partition=0)
    wait_until(lambda: not broker.faults)
    report = producer.abort_member()
    assert report.producer_id == 1001
    assert isinstance(late.exception(0), AbortedBatchError)
    assert producer.abort_member() == report, "nothing is open: the last one's report"
    producer.send("t", b"z", partition=1).result(DEADLINE_S)
    assert broker.committed_values("t") == [b"z"]


def test_an_id_that_does_not_come_is_not_waited_for_long(broker: BrokerDouble, producer: Producer) -> None:
    broker.is_next_grant_lost = True
    producer.begin_member(member(1))
    producer.send("t", b"x")
    wait_until(lambda: bool(broker.inits))
    assert producer.abort_member(timeout=0).producer_id == -1
    producer.begin_member(member(2))
    producer.send("t", b"y")
    assert producer.end_member().producer_id == 1002


def test_heartbeats_every_third_of_the_timeout_while_the_member_is_open(broker: BrokerDouble) -> None:
    clock = ManualClock()
    with producer_of(broker, clock) as producer:
        membership = member(timeout_ms=30_000)
        producer.begin_member(membership)
        clock.advance(60_000)
        producer.send("t", b"x").result(DEADLINE_S)
        assert not broker.heartbeats, "without an id there is nothing to keep open"
        for count in (1, 2, 3):
            clock.advance(10_000)
            wait_awake(producer, clock, partial(has_heartbeats, broker, count))
        assert broker.heartbeats == [membership] * 3
        broker.heartbeat_errors.append(BrokerUnreachableError("gone"))
        clock.advance(10_000)
        wait_awake(producer, clock, partial(has_heartbeats, broker, 5))
        producer.end_member()
        clock.advance(100_000)
        producer.send("t", b"y").result(DEADLINE_S)
        assert len(broker.heartbeats) == 5


def test_a_member_that_the_broker_has_ended_fails_at_its_heartbeat(broker: BrokerDouble) -> None:
    clock = ManualClock()
    with producer_of(broker, clock) as producer:
        producer.begin_member(member(timeout_ms=3_000))
        producer.send("t", b"x").result(DEADLINE_S)
        broker.transactions.expire("id")
        clock.advance(1_000)
        wait_awake(producer, clock, lambda: producer._core.stopped_by is not None)
        with pytest.raises(InvalidTxnStateError):
            producer.send("t", b"y")
        with pytest.raises(InvalidTxnStateError):
            producer.end_member()


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"enable_idempotence": False}, {"acks": "all", "retries": 0}])
def test_settings_that_no_transaction_can_have_are_refused(broker: BrokerDouble, settings: dict[str, Any]) -> None:
    with producer_of(broker, **settings) as producer, pytest.raises(ConfigError, match="a transaction needs"):
        producer.begin_member(member())
    with pytest.raises(ConfigError, match=r"transactional\.id needs"):
        producer_of(broker, transactional_id="orders", **settings)


def test_one_member_at_a_time(broker: BrokerDouble, producer: Producer) -> None:
    with pytest.raises(TransactionStateError, match="no transaction is open"):
        producer.end_member()
    assert producer.abort_member() == MemberReport()
    producer.begin_member(member())
    with pytest.raises(TransactionStateError, match="transaction 1 of 'id' is open"):
        producer.begin_member(member(2))
    producer.abort_member()
    broker.faults.append(Fault(drop_answer=True))
    producer.send("t", b"x")
    with pytest.raises(TransactionStateError, match="flush"):
        producer.begin_member(member())
    producer.close(0)


def test_a_closed_producer_begins_no_member(broker: BrokerDouble, producer: Producer) -> None:
    producer.begin_member(member())
    producer.send("t", b"x")
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.end_member()
    assert producer.abort_member().records == 1
    with pytest.raises(ProducerClosedError):
        producer.begin_member(member())


def test_a_producer_with_a_transactional_id_sends_inside_transactions_only(broker: BrokerDouble) -> None:
    with producer_of(broker, transactional_id="orders") as producer:
        for _ in range(2):
            assert producer.partitions_for("t") == 2, "to ask is no transaction"
            with pytest.raises(TransactionStateError, match=r"with producer\.transaction"):
                producer.send("t", b"x")
            producer.begin_member(member())
            producer.send("t", b"y").result(DEADLINE_S)
            producer.end_member()
        assert len(broker.requests) == 2


def test_rows_of_a_failed_member_are_refused_however_they_are_sent(broker: BrokerDouble, producer: Producer) -> None:
    producer.partitions_for("t")
    broker.identity_errors.append(AlreadyCommittedError("committed"))
    producer.begin_member(member())
    producer.send("t", b"x").exception(DEADLINE_S)
    for rows in (1, 50_000):
        batch = pa.RecordBatch.from_pydict({"key": [b"k"] * rows, "value": [b"0123456789"] * rows})
        with pytest.raises(AlreadyCommittedError):
            producer.send_batch("t", batch)


@pytest.mark.parametrize("rows", [1, 50_000])
def test_a_member_that_has_written_nothing_to_a_topic_goes_on_when_it_is_recreated(
    broker: BrokerDouble, producer: Producer, rows: int
) -> None:
    """A producer that serves one Spark task after another may still know the former topic when the next task begins."""
    for version in range(1, 11):
        producer.begin_member(member(version))
        producer.send_batch("t", pa.RecordBatch.from_pydict({"value": [b"%d" % version] * rows}))
        report = producer.end_member()
        assert report.records == rows
        assert {tp.topic_id for tp in report.partitions} == {broker.topics["t"].topic_id}
        assert sum(len(broker.values("t", number)) for number in range(2)) == rows
        broker.create_topic("t", 2)


def test_a_member_ends_whose_topic_is_recreated_with_another_number_of_partitions(broker: BrokerDouble, producer: Producer) -> None:
    """Its rows have partitions of the former topic: equal keys could be in two partitions of the new one. Which members have sent
    rows before they hear of the new topic is left to chance."""
    ended = 0
    for version in range(1, 31):
        producer.begin_member(member(version))
        producer.send("t", b"x", partition=0)
        try:
            producer.end_member()
        except UnknownTopicIdError:
            ended += 1
            producer.abort_member()
        broker.create_topic("t", 2 + version)
    assert ended


def test_a_member_whose_topic_is_recreated_ends(broker: BrokerDouble, producer: Producer) -> None:
    """A member has one epoch, and its earlier records are gone with the old topic."""
    producer.begin_member(member())
    producer.send("t", b"old", partition=0).result(DEADLINE_S)
    broker.create_topic("t", 2)
    with producer._shared.lock:
        producer._core.topics.request_refresh()
        producer._wake()
    wait_until(lambda: producer._core.identity.error is not None)
    with pytest.raises(UnknownTopicIdError, match="topic 't' was deleted or recreated"):
        producer.send("t", b"new", partition=0)
    with pytest.raises(UnknownTopicIdError, match="topic 't' was deleted or recreated"):
        producer.end_member()
    producer.abort_member()
    producer.begin_member(member(2))
    producer.send("t", b"new", partition=0)
    assert producer.end_member().records == 1
    assert broker.values("t", 0) == [b"new"]
