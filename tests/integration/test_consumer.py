"""Goal: with a real broker that is killed, restarted, stopped and trimmed, a consumer reads each committed record once, in order,
and its positions are right. Method: `brokerd.testing`, a producer that writes meanwhile, and a model of the log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd import Consumer, ConsumerRecord, Producer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.client.offsets import OffsetAndTimestamp
from brokerd.config.client import ClientConfig
from brokerd.ids import TopicIdPartition
from brokerd.testing import Broker
from tests.support.wait import DEADLINE_S

LONG_MS = int(DEADLINE_S * 1000)
PARTITIONS = 3
TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]
QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 1, "auto.offset.reset": "earliest"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", PARTITIONS)
        yield broker


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, **QUICK}) as consumer:
        consumer.assign(TPS)
        yield consumer


def read_all(consumer: Consumer) -> dict[int, list[bytes | None]]:
    """Values up to the current ends, by partition."""
    ends = consumer.end_offsets(TPS)
    values: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for record in consumer.poll(100):
            values[record.partition].append(record.value)
    return values


def test_kills_and_restarts_lose_and_repeat_nothing(broker: Broker, consumer: Consumer) -> None:
    count = 3_000
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1, "retry.backoff.ms": 1}) as producer:

        def write() -> None:
            for number in range(count):
                producer.send("t", value=b"%d" % number, partition=number % PARTITIONS)
                if number % 500 == 499:
                    producer.flush()

        writer = threading.Thread(target=write)
        writer.start()
        seen: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        troubles = iter((broker.kill, broker.start, broker.restart, broker.pause, broker.resume, broker.restart))
        while sum(map(len, seen.values())) < count:
            for record in consumer.poll(LONG_MS if sum(map(len, seen.values())) == 0 else 200, 250):
                assert record.value is not None
                seen[record.partition].append(int(record.value))
            next(troubles, lambda: None)()
        writer.join(DEADLINE_S)
    assert seen == {number: list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)}
    assert consumer.poll(0) == []


def test_a_group_goes_on_where_it_has_got_to_over_deaths_of_reader_and_broker(broker: Broker) -> None:
    """A reader that dies has committed no record that it has not processed. Uncommitted records are read again, and no others."""
    topic = broker.topic("t")
    settings = {"bootstrap.servers": broker.bootstrap_servers, **QUICK, "group.id": "g", "auto.commit.interval.ms": 0}
    processed: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for life in range(6):
        topic.append([{"value": b"x", "partition": n % PARTITIONS} for n in range(60)])
        consumer = Consumer(settings)
        consumer.assign(TPS)
        for record in consumer:
            processed[record.partition].append(record.offset)
            if sum(len(set(offsets)) for offsets in processed.values()) == 60 * life + 40:
                break
        (broker.kill, broker.restart, lambda: None)[life % 3]()
        if life % 3 == 0:
            broker.start()
        consumer.close()  # does not commit the record in hand
    with Consumer({**settings, "auto.offset.reset": "none"}) as consumer:
        consumer.assign(TPS)
        ends = consumer.end_offsets(TPS)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(LONG_MS):
                processed[record.partition].append(record.offset)
    for offsets in processed.values():
        assert list(dict.fromkeys(offsets)) == list(range(120)), "each, in order"
        assert len(offsets) <= 120 + 6, "one again for each life, at most"
    with Consumer(settings) as consumer:
        assert {tp: one.offset for tp, one in consumer.committed(TPS).items() if one is not None} == ends


def test_transactions_are_read_once_they_are_committed_and_positions_reach_the_ends(broker: Broker, consumer: Consumer) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "linger.ms": 0}) as producer:
        for number in range(6):
            with_error = number % 2
            try:
                with producer.transaction():
                    for partition in range(PARTITIONS):
                        producer.send("t", value=b"%d" % number, partition=partition)
                    assert consumer.poll(0) == []
                    if with_error:
                        raise LookupError
            except LookupError:
                continue
            assert read_all(consumer) == {partition: [b"%d" % number] for partition in range(PARTITIONS)}
    assert read_all(consumer) == {partition: [] for partition in range(PARTITIONS)}
    assert consumer.end_offsets(TPS) == {tp: consumer.position(tp) for tp in TPS}


def test_a_reader_behind_retention_goes_on_at_the_first_record_there_is(broker: Broker, consumer: Consumer) -> None:
    topic = broker.topic("t")
    topic.append([{"value": b"%d" % number, "partition": 0} for number in range(10)])
    assert [record.offset for record in consumer.poll(LONG_MS, 2)] == [0, 1]
    consumer.seek(TPS[0], 2)
    with BlockingClient(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as client:
        tp = TopicIdPartition(client.metadata(["t"]).topics["t"].topic_id, 0)
        assert client.delete_records({tp: 6}) == {tp: 6}
    assert next(consumer).offset == 6
    assert consumer.beginning_offsets(TPS[:1]) == {TPS[0]: 6}


def test_records_are_found_by_time(broker: Broker, consumer: Consumer) -> None:
    broker.topic("t").append([{"value": b"x", "partition": 1, "timestamp": 1_700_000_000_000 + number} for number in range(10)])
    found = consumer.offsets_for_times({TPS[1]: 1_700_000_000_004, TPS[0]: 0})
    assert found[TPS[0]] is None
    first = found[TPS[1]]
    assert isinstance(first, OffsetAndTimestamp)
    assert first[:2] == (4, 1_700_000_000_004)
    assert consumer.offsets_for_times({TPS[1]: 1_800_000_000_000}) == {TPS[1]: None}


def test_poll_of_a_stopped_broker_returns_in_time_and_goes_on_afterwards(broker: Broker, consumer: Consumer) -> None:
    topic = broker.topic("t")
    topic.append([b"a"])
    assert [record.value for record in consumer.poll(LONG_MS)] == [b"a"]
    broker.pause()
    assert consumer.poll(50) == []
    broker.resume()
    topic.append([b"b"])
    assert [record.value for record in consumer.poll(LONG_MS)] == [b"b"]


def test_records_and_columns_say_the_same(broker: Broker, consumer: Consumer) -> None:
    rows = [
        {"key": b"k%d" % (n % 7), "value": None if n % 5 == 0 else b"v%d" % n, "headers": [("h", b"%d" % n)]} for n in range(500)
    ]
    broker.topic("t").append(rows)
    records: list[ConsumerRecord] = []
    while len(records) < len(rows):
        records += consumer.poll(LONG_MS)
    consumer.seek_to_beginning()
    columns: list[dict[str, Any]] = []
    while len(columns) < len(rows):
        columns += consumer.poll_arrow(LONG_MS).to_pylist()
    as_rows = [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestampType": record.timestamp_type,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in records
    ]
    times = [int(row.pop("timestamp").timestamp() * 1000) for row in columns]

    def place(row: Any) -> tuple[int, int]:
        return row["partition"], row["offset"]

    assert sorted(as_rows, key=place) == sorted(columns, key=place)
    assert sorted(times) == sorted(record.timestamp for record in records)
