"""A Consumer and a fake broker: settings, batches, reading a number of records."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd import Consumer, ConsumerRecord, TopicPartition
from brokerd.record.header import Attributes
from tests.support.fake_broker import FakeBroker, Partition
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S

LONG_MS = int(DEADLINE_S * 1000)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def settings(broker: FakeBroker, **given: object) -> dict[str, object]:
    quick = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 2, "fetch.max.wait.ms": 10, "auto.offset.reset": "earliest"}
    return {"bootstrap.servers": f"127.0.0.1:{broker.port}", **quick, **{name.replace("_", "."): v for name, v in given.items()}}


def fill(partition: Partition, counts: Sequence[int], *, value_bytes: int = 0, is_log_append_time: bool = False) -> None:
    """Puts batches of `counts` records. Each value is its offset as text, padded to `value_bytes`."""
    for count in counts:
        first = partition.end_offset
        values = [(b"%d" % (first + number)).ljust(value_bytes, b".") for number in range(count)]
        partition.put(new_batch(key_values(values), tp=partition.tp), is_log_append_time=is_log_append_time)


def filled(broker: FakeBroker, counts: list[int]) -> Partition:
    """Creates topic t with one partition, and fills it."""
    (partition,) = broker.create("t")
    fill(partition, counts)
    return partition


def put_marker(partition: Partition) -> int:
    attributes = int(Attributes.CONTROL | Attributes.TRANSACTIONAL)
    return partition.put(new_batch(key_values([b"m"]), tp=partition.tp, attributes=attributes))


def committed(broker: FakeBroker, number: int = 0, topic: str = "t", group: str = "g") -> int | None:
    entry = broker.groups.get(group, {}).get(broker.topics[topic][number].tp)
    return None if entry is None else entry[0]


def offsets(records: list[ConsumerRecord]) -> list[int]:
    assert [record.value for record in records] == [b"%d" % record.offset for record in records]
    return [record.offset for record in records]


def user_of(consumer: Consumer) -> str:
    """The name of the thread that is inside a call, or ""."""
    use = consumer._guard._use
    return "" if use is None or use.is_left else use.thread_name


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Reads `count` records."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += consumer.poll(LONG_MS, count - len(records))
    return records
