"""Goal: records that were read but not committed by a transaction are read again, wherever the group's offset is and whichever
thread uses the consumer; nothing beyond them is committed before. Method: a broker in memory; the calls that a transaction makes.
"""

from __future__ import annotations

import threading

import pytest

from brokerd import Consumer
from brokerd.errors import ConsumerStateError, UnknownGroupError, UnknownTopicIdError, WakeupError
from tests.support.consumers import LONG_MS, T0, fill, offsets, read, settings, user_of
from tests.support.fake_broker import FakeBroker, Partition
from tests.support.wait import DEADLINE_S, wait_until


@pytest.fixture
def partition(broker: FakeBroker) -> Partition:
    (partition,) = broker.create("t")
    return partition


def reader(broker: FakeBroker, **given: object) -> Consumer:
    consumer = Consumer(settings(broker, group_id="g", enable_auto_commit=False, **given))
    consumer.assign([T0])
    return consumer


def expected(consumer: Consumer) -> int:
    """The group's offset that a transaction of the records read expects."""
    _, begun = consumer.transaction_input({T0: 0})
    return begun[T0][1]


@pytest.mark.parametrize("reset", ["latest", "none"])
def test_a_group_without_an_offset_goes_back_to_where_reading_began(broker: FakeBroker, partition: Partition, reset: str) -> None:
    fill(partition, [3])
    with reader(broker, auto_offset_reset=reset) as consumer:
        if reset == "none":
            consumer.seek(T0, 3)
        assert consumer.position(T0) == 3
        fill(partition, [2])
        assert offsets(read(consumer, 2)) == [3, 4]
        assert expected(consumer) == -1
        consumer.transaction_failed([T0])
        fill(partition, [1])
        assert consumer.poll(LONG_MS, 1)[0].offset == 3
        consumer.transaction_failed([T0])
        broker.groups["g"] = {partition.tp: (1, "")}
        assert consumer.poll(LONG_MS, 1)[0].offset == 1, "another one has committed"
        assert expected(consumer) == 1


def test_what_is_read_anew_before_a_transaction_commits_is_not_its_input(broker: FakeBroker, partition: Partition) -> None:
    """A partition that is given up and assigned again begins at the group's offset, below the one about to be committed."""
    fill(partition, [3])
    with reader(broker, auto_offset_reset="earliest") as consumer:
        read(consumer, 3)
        assert expected(consumer) == -1
        consumer.assign([])
        consumer.assign([T0])
        assert consumer.position(T0) == 0
        consumer.transaction_committed({T0: 3})
        assert expected(consumer) == -1, "which the broker refuses: these records are written"
        consumer.transaction_committed({T0: 3})
        assert expected(consumer) == 3


@pytest.mark.parametrize("committed", [None, 4])
@pytest.mark.parametrize("has_failed", [False, True])
def test_a_topic_that_is_seen_again_is_read_from_what_its_group_has(
    broker: FakeBroker, partition: Partition, committed: int | None, *, has_failed: bool
) -> None:
    """Otherwise records that another program has committed would be processed twice, or uncommitted ones skipped."""
    fill(partition, [3])
    with reader(broker, auto_offset_reset="latest") as consumer:
        consumer.seek(T0, 1)
        assert offsets(read(consumer, 2)) == [1, 2]
        topic = broker.topics.pop("t")
        with pytest.raises(UnknownTopicIdError):
            consumer.poll(LONG_MS)
        if has_failed:
            consumer.transaction_failed([T0])
        broker.topics["t"] = topic
        fill(partition, [3])
        if committed is not None:
            broker.groups["g"] = {partition.tp: (committed, "")}
        assert consumer.poll(LONG_MS, 1)[0].offset == (1 if committed is None else committed)
        assert expected(consumer) == (-1 if committed is None else committed)


@pytest.mark.parametrize("is_gone_with_its_topic", [False, True])
def test_a_group_that_has_lost_its_offset_does_not_begin_again(
    broker: FakeBroker, partition: Partition, *, is_gone_with_its_topic: bool
) -> None:
    """The offset has expired, or was deleted. Transactions have committed records beyond the offset where reading began."""
    fill(partition, [5])
    with reader(broker) as consumer:
        read(consumer, 3)
        assert expected(consumer) == -1
        consumer.transaction_committed({T0: 3})
        assert read(consumer, 2)
        assert expected(consumer) == 3
        if is_gone_with_its_topic:  # as it seems to a principal that has lost its rights
            topic = broker.topics.pop("t")
            fill(partition, [1])
            with pytest.raises(UnknownTopicIdError):
                consumer.poll(LONG_MS)
            broker.topics["t"] = topic
        consumer.transaction_failed([T0])
        for _ in range(2):
            with pytest.raises(UnknownGroupError, match=r"group 'g' had the offset 3 and has none now.* seek\(\)"):
                consumer.poll(LONG_MS)
        consumer.seek(T0, 3)
        assert offsets(read(consumer, 2)) == [3, 4]
        assert expected(consumer) == -1


@pytest.mark.parametrize("is_seen_again", [False, True])
def test_a_topic_that_is_gone_when_a_transaction_fails_may_come_back(
    broker: FakeBroker, partition: Partition, *, is_seen_again: bool
) -> None:
    """The look-up of the group's offset finds the topic gone. The offset where reading began is valid for the old topic only."""
    fill(partition, [5])
    with reader(broker, auto_offset_reset="latest") as consumer:
        consumer.seek(T0, 1)
        assert offsets(read(consumer, 2)) == [1, 2]
        topic = broker.topics.pop("t")
        broker.errors["FetchGroupOffsets"] = [UnknownTopicIdError("no such topic")]
        consumer.transaction_failed([T0])
        with pytest.raises(UnknownTopicIdError):
            consumer.poll(LONG_MS)
        if is_seen_again:
            broker.topics["t"] = topic
            assert offsets(read(consumer, 2)) == [1, 2]
        else:
            (other,) = broker.create("t")
            fill(other, [2])
            assert consumer.position(T0) == 2


def test_a_partition_resumed_while_its_topic_is_gone_is_read_once_it_is_back(broker: FakeBroker, partition: Partition) -> None:
    fill(partition, [5])
    with reader(broker) as consumer:
        assert read(consumer, 2)
        consumer.pause(T0)
        consumer.transaction_failed([T0])
        topic = broker.topics.pop("t")
        broker.errors["FetchGroupOffsets"] = [UnknownTopicIdError("no such topic")]
        with pytest.raises(UnknownTopicIdError):
            consumer.poll(LONG_MS)
        consumer.resume(T0)
        broker.topics["t"] = topic
        wait_until(lambda: consumer.poll(10) != [], deadline_s=5)


def test_another_topic_of_that_name_is_begun_like_one_that_was_never_read(broker: FakeBroker, partition: Partition) -> None:
    fill(partition, [5])
    with reader(broker) as consumer:
        read(consumer, 3)
        consumer.transaction_committed({T0: 3})
        broker.topics.pop("t")
        with pytest.raises(UnknownTopicIdError):
            read(consumer, 3)
        (other,) = broker.create("t")
        fill(other, [2])
        assert offsets(read(consumer, 2)) == [0, 1]


def test_a_seek_after_a_failure_counts_and_the_group_is_asked_again(broker: FakeBroker, partition: Partition) -> None:
    fill(partition, [5])
    with reader(broker) as consumer:
        read(consumer, 5)
        consumer.transaction_failed([T0])
        broker.groups["g"] = {partition.tp: (2, "")}
        consumer.seek(T0, 4)
        with pytest.raises(ConsumerStateError, match="poll\\(\\) first"):
            expected(consumer)
        assert offsets(read(consumer, 1)) == [4]
        assert expected(consumer) == 2


def test_a_consumer_that_another_thread_uses_goes_back_with_its_next_call(broker: FakeBroker, partition: Partition) -> None:
    """Otherwise a later transaction would commit offsets beyond records that the failed one has not written."""
    fill(partition, [2])
    with reader(broker) as consumer:
        assert offsets(read(consumer, 2)) == [0, 1]
        assert expected(consumer) == -1
        polled: list[int] = []
        polling = threading.Thread(target=lambda: polled.extend(offsets(consumer.poll(LONG_MS))), name="polling")
        polling.start()
        wait_until(lambda: user_of(consumer) == "polling")
        consumer.transaction_failed([T0])
        fill(partition, [1])
        polling.join(DEADLINE_S)
        assert polled == [2]
        with pytest.raises(ConsumerStateError, match="since a transaction failed"):
            expected(consumer)
        fill(partition, [1])
        assert consumer.poll(LONG_MS, 1)[0].offset == 0
        assert expected(consumer) == -1


def test_what_process_has_committed_is_what_a_transaction_expects(broker: FakeBroker, partition: Partition) -> None:
    """Otherwise the consumer's own commit would be taken for another program's, and the transaction refused."""
    fill(partition, [3])
    with reader(broker, auto_commit_interval_ms=0) as consumer:
        with pytest.raises(WakeupError):
            consumer.process(lambda record: consumer.wakeup() if record.offset == 2 else None, workers=1)
        assert broker.groups["g"][partition.tp][0] == 3
        assert expected(consumer) == 3
