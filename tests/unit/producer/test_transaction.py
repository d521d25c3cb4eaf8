"""Transactions of one producer: committed or aborted as a whole, once per version, despite faults and interrupts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from brokerd.client.broker_client import BrokerClient, CallRetries
from brokerd.errors import (
    AlreadyCommittedError,
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    CorruptMessageError,
    DeliveryTimeoutError,
    Fate,
    ProducerFencedError,
    ReplayMismatchError,
    TransactionStateError,
    TxnAbortedError,
)
from brokerd.producer.producer import Producer
from brokerd.producer.transaction import ABORT_TIMEOUT_MS
from tests.support.broker_double import BrokerDouble, CoordinatorDouble, Fault, double_of
from tests.support.interrupts import Struck, strike
from tests.support.ports import held_port
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S
from tests.unit.producer.test_producer import FAST

STRIDE = max(1, 9 // TEST_SCALE)


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(2)


@pytest.fixture
def coordinator(broker: BrokerDouble) -> CoordinatorDouble:
    return CoordinatorDouble(broker)


def producer_of(broker: BrokerDouble, coordinator: CoordinatorDouble, **settings: object) -> Producer:
    given = {**FAST, "transactional.id": "orders", **settings}
    return Producer(given, transport_factory=broker.transport, coordinator=coordinator)


@pytest.fixture
def producer(broker: BrokerDouble, coordinator: CoordinatorDouble) -> Iterator[Producer]:
    with producer_of(broker, coordinator) as made:
        yield made


def test_a_block_is_committed_as_a_whole(broker: BrokerDouble, producer: Producer) -> None:
    with producer.transaction() as transaction:
        futures = [producer.send("t", b"%d" % number) for number in range(5)]
        producer.flush()
        assert broker.committed_values("t") == []
    assert transaction.is_committed
    assert (transaction.version, producer.last_committed_version()) == (0, 0)
    assert all(future.exception(0) is None for future in futures)
    assert sorted(broker.committed_values("t")) == [b"0", b"1", b"2", b"3", b"4"]


def test_versions_follow_each_other_across_producers(broker: BrokerDouble, coordinator: CoordinatorDouble) -> None:
    seen = []
    for _ in range(2):
        with producer_of(broker, coordinator) as producer:
            for _ in range(2):
                with producer.transaction() as transaction:
                    producer.send("t", b"x")
                seen.append(transaction.version)
    assert seen == [0, 1, 2, 3]


def test_an_exception_aborts(broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer) -> None:
    def block() -> None:
        with producer.transaction():
            producer.send("t", b"x").result(DEADLINE_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    (end,) = coordinator.ends
    assert not end.is_commit
    assert broker.transactions.aborted == {end.members[0].producer_id}
    with producer.transaction() as transaction:
        producer.send("t", b"y")
    assert transaction.version == 0
    assert broker.committed_values("t") == [b"y"]


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_transaction_is_used_once(producer: Producer, is_aborted: bool) -> None:
    """A second block would reuse the first one's offsets and outcome."""
    transaction = producer.transaction()
    with pytest.raises(ZeroDivisionError) if is_aborted else contextlib.nullcontext(), transaction:
        with pytest.raises(TransactionStateError, match="was used before"), transaction:
            pass
        if is_aborted:
            raise ZeroDivisionError
    with pytest.raises(TransactionStateError, match=r"was used before: call producer\.transaction\(\) for each one"), transaction:
        pass
    assert transaction.is_committed is not is_aborted


def test_a_transaction_that_could_not_begin_is_begun_again(producer: Producer) -> None:
    transaction = producer.transaction()
    with producer.transaction(), pytest.raises(TransactionStateError, match="is open"), transaction:
        pass
    with transaction:
        producer.send("t", b"x")
    assert (transaction.is_committed, transaction.version) == (True, 1)


def test_a_transaction_without_records_is_committed_too(broker: BrokerDouble, producer: Producer) -> None:
    with producer.transaction():
        pass
    assert producer.last_committed_version() == 0
    assert not broker.inits


def test_a_version_is_committed_once(broker: BrokerDouble, producer: Producer) -> None:
    with producer.transaction(7):
        producer.send("t", b"x")
    expected = "transaction 7 of 'orders' is committed already: continue with 8"
    with pytest.raises(AlreadyCommittedError, match=expected), producer.transaction(7):
        producer.send("t", b"again")
    with pytest.raises(ProducerFencedError, match="transaction 6 of 'orders' comes after 7"), producer.transaction(6):
        producer.send("t", b"back")
    written = []
    for version, part in enumerate([b"a", b"b", b"c"], 6):
        if version <= producer.last_committed_version():
            continue
        with producer.transaction(version):
            written.append(producer.send("t", part))
    assert sorted(broker.committed_values("t")) == [b"c", b"x"]


def test_a_record_that_fails_aborts_the_transaction(
    broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer
) -> None:
    def block() -> None:
        with producer.transaction():
            producer.send("t", b"fine", partition=0).result(DEADLINE_S)
            broker.faults.append(Fault(error=CorruptMessageError("no", fate=Fate.NOT_APPENDED)))
            producer.send("t", b"x", partition=0)

    with pytest.raises(CorruptMessageError):
        block()
    assert [end.is_commit for end in coordinator.ends] == [False]
    assert broker.committed_values("t") == []


def test_a_commit_that_arrived_is_found_by_the_next_attempt(
    broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer
) -> None:
    coordinator.lost_after = 1
    with pytest.raises(DeliveryTimeoutError, match="begin it again as version 0"), producer.transaction(0):
        producer.send("t", b"x")
    assert [end.is_commit for end in coordinator.ends] == [True, False]
    with pytest.raises(AlreadyCommittedError), producer.transaction(0):
        producer.send("t", b"x")
    assert broker.committed_values("t") == [b"x"]


def test_a_commit_that_never_arrived_is_aborted(broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer) -> None:
    coordinator.lost_before = 1
    with pytest.raises(DeliveryTimeoutError), producer.transaction(0):
        producer.send("t", b"x")
    with producer.transaction(0):
        producer.send("t", b"x")
    assert broker.committed_values("t") == [b"x"]


def test_a_transaction_that_expired_is_said_so(broker: BrokerDouble, producer: Producer) -> None:
    def block() -> None:
        with producer.transaction():
            producer.send("t", b"x").result(DEADLINE_S)
            broker.transactions.expire("orders")

    with pytest.raises(TxnAbortedError):
        block()
    with producer.transaction() as transaction:
        producer.send("t", b"y")
    assert transaction.version == 0
    assert broker.committed_values("t") == [b"y"]


def test_of_two_producers_with_one_version_one_is_committed_and_the_other_knows(
    broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer
) -> None:
    with producer_of(broker, coordinator) as other:

        def block() -> None:
            with producer.transaction():
                producer.send("t", b"x").result(DEADLINE_S)
                with other.transaction():
                    other.send("t", b"x").result(DEADLINE_S)

        with pytest.raises(BrokerdError) as caught:
            block()
        assert isinstance(caught.value, ReplayMismatchError), "equal rows are not taken for the same transaction"
        assert len(broker.committed_values("t")) == 1


def test_one_transaction_at_a_time(producer: Producer) -> None:
    with producer.transaction():
        with pytest.raises(TransactionStateError, match="transaction 0 of 'orders' is open"), producer.transaction():
            pass
        producer.send("t", b"x")
    assert producer.last_committed_version() == 0


def test_without_a_transactional_id_there_are_none(broker: BrokerDouble, coordinator: CoordinatorDouble) -> None:
    with producer_of(broker, coordinator, **{"transactional.id": ""}) as producer:
        for call in (producer.transaction, producer.last_committed_version):
            with pytest.raises(ConfigError, match=r"transactional\.id"):
                call()


@pytest.mark.parametrize("name", ["x" * 250, "a\nb"])
def test_a_transactional_id_that_no_broker_takes_is_refused(
    broker: BrokerDouble, coordinator: CoordinatorDouble, name: str
) -> None:
    with pytest.raises(ConfigError, match="at most 249 characters that can be printed"):
        producer_of(broker, coordinator, **{"transactional.id": name})


def test_a_version_below_zero_is_refused(producer: Producer) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        producer.transaction(-1)


def test_an_abort_that_fails_leaves_it_to_expiry(
    broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.lost_before = 1

    def block() -> None:
        with producer.transaction():
            producer.send("t", b"x").result(DEADLINE_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert "could not be aborted; if it is not committed, it expires in 900000 ms" in caplog.text
    assert producer.config.delivery_timeout_ms > ABORT_TIMEOUT_MS


def test_struck_anywhere_a_transaction_is_committed_or_not_and_the_next_one_works(
    broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer
) -> None:
    def block() -> None:
        with producer.transaction():
            for number in range(3):
                producer.send("t", b"%d" % number)

    block()  # does one-time work before the strikes
    at, committed = 1, 1
    while True:
        where = strike(block, at, is_signal=True)
        values = broker.committed_values("t")
        assert len(values) % 3 == 0, f"{where}: half a transaction"
        assert all(values.count(b"%d" % number) == len(values) // 3 for number in range(3)), where
        assert len(values) // 3 - committed in (0, 1), where
        if not where:
            break
        try:
            block()
        except TransactionStateError:  # struck after `__enter__`, before the body: `__exit__` did not run
            producer.abort_member()
            block()
        committed = len(broker.committed_values("t")) // 3
        at += STRIDE
    assert at > 100, "all of it is struck"


def test_a_second_interrupt_while_aborting_leaves_it_to_expiry(
    broker: BrokerDouble, coordinator: CoordinatorDouble, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_more: object) -> None:
        raise Struck

    end = coordinator.end
    monkeypatch.setattr(coordinator, "end", interrupted)

    def block() -> None:
        with producer.transaction():
            producer.send("t", b"x").result(DEADLINE_S)
            raise KeyboardInterrupt

    with pytest.raises(Struck):
        block()
    monkeypatch.setattr(coordinator, "end", end)
    with producer.transaction():
        producer.send("t", b"y")
    assert broker.committed_values("t") == [b"y"]


def test_an_unreachable_broker_is_said_so_at_the_beginning(
    coordinator: CoordinatorDouble, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_transactional_id: str, *, timeout_ms: int | None = None) -> int:
        assert timeout_ms == producer.config.max_block_ms
        raise BrokerUnreachableError("gone")

    monkeypatch.setattr(coordinator, "last_version", gone)
    with pytest.raises(BrokerUnreachableError), producer.transaction():
        pass
    monkeypatch.undo()
    with producer.transaction():
        producer.send("t", b"x")


def test_a_transaction_that_begins_waits_for_max_block_ms(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real coordinator client, and no broker."""
    asked: list[int | None] = []
    retries = BrokerClient.retries

    def noted(client: BrokerClient, now_ms: int, timeout_ms: int | None = None) -> CallRetries:
        if client.config.bootstrap_servers.endswith(f":{port}"):  # clients of earlier tests may still be running
            asked.append(timeout_ms)
        return retries(client, now_ms, timeout_ms)

    monkeypatch.setattr(BrokerClient, "retries", noted)
    with held_port() as port:
        given = {**FAST, "transactional.id": "orders", "max.block.ms": 20, "bootstrap.servers": f"127.0.0.1:{port}"}
        producer = Producer(given, transport_factory=broker.transport)
        with producer, pytest.raises(BrokerUnreachableError, match="no broker responded"), producer.transaction():
            pass
    assert asked == [20]
