"""A task's at-least-once write to a fake broker: all rows arrive in order, errors end the task, producers outlive tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from brokerd.clock import Clock
from brokerd.datasource.source import BrokerdDataSource
from brokerd.errors import ConfigError, InvalidRecordError, UnknownTopicOrPartitionError
from brokerd.producer.waiting import SharedLock
from brokerd.record.batch import RecordBatch
from brokerd.sink.options import SinkOptions, parse_sink_options
from brokerd.sink.task import write_at_least_once
from brokerd.sink.writer import BrokerdBatchWriter, BrokerdStreamWriter, plan_write
from tests.support.clock import HastyClock
from tests.support.fake_broker import FakeBroker, Partition
from tests.support.records import header_of

VALUE = [("value", "string")]


def given(broker: FakeBroker, **options: Any) -> dict[str, str]:
    short = {
        "delivery": "at_least_once",
        "retry.backoff.ms": "1",
        "retry.backoff.max.ms": "2",
        "linger.ms": "5",
    }
    return {"bootstrap.servers": f"127.0.0.1:{broker.port}", **short, **{name: str(value) for name, value in options.items()}}


def options_for(broker: FakeBroker, **options: Any) -> SinkOptions:
    return parse_sink_options(given(broker, **options))


def values_in(partition: Partition) -> list[bytes]:
    """Values of a partition, in log order."""
    values: list[bytes] = []
    for _, _, data in partition.batches:
        arrow_batch = RecordBatch(header_of(data), data).to_arrow(max_uncompressed_bytes=1 << 30)
        values += arrow_batch.column("value").to_pylist()
    return values


def numbered(first: int, end: int, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(first, end)], **columns})


def test_rows_arrive_once_in_order(broker: FakeBroker) -> None:
    partitions = broker.create("events", 2)
    batches = (numbered(first, first + 50, partition=pa.array([first // 50 % 2] * 50, pa.int32())) for first in range(0, 500, 50))
    write_at_least_once(options_for(broker, topic="events"), batches)
    written = [[int(value) for value in values_in(partition)] for partition in partitions]
    assert written == [[n for n in range(500) if n // 50 % 2 == side] for side in (0, 1)]


def test_rows_go_to_the_topics_of_their_column(broker: FakeBroker) -> None:
    (a,), (b,) = broker.create("a"), broker.create("b")
    batch = pa.record_batch({"value": ["1", "2", "3"], "topic": ["a", "b", "a"]})
    write_at_least_once(options_for(broker), iter([batch]))
    assert (values_in(a), values_in(b)) == ([b"1", b"3"], [b"2"])


def test_a_task_without_rows_writes_nothing(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    write_at_least_once(options_for(broker, topic="events"), iter([]))
    write_at_least_once(options_for(broker, topic="events"), iter([numbered(0, 0)]))
    assert values_in(partition) == []


def test_next_task_uses_the_same_producer(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    options = options_for(broker, topic="events")
    for first, end in ((0, 10), (10, 30)):
        write_at_least_once(options, iter([numbered(first, end)]))
    assert [int(value) for value in values_in(partition)] == list(range(30))
    assert len(broker.hellos) == 1
    assert broker.calls["InitProducerId"] == 1


def test_bad_row_ends_the_task_and_the_next_one_has_a_producer_of_its_own(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    options = options_for(broker)
    bad = pa.record_batch({"value": ["1", "2"], "topic": ["events", None]})
    with pytest.raises(InvalidRecordError, match="column 'topic' is null in 1 of 2 rows"):
        write_at_least_once(options, iter([bad]))
    good = pa.record_batch({"value": ["3"], "topic": ["events"]})
    write_at_least_once(options, iter([good]))
    assert values_in(partition) == [b"3"]


def test_unknown_topic_in_the_column_ends_the_task(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    init = SharedLock.__init__

    def hasty(lock: SharedLock, clock: Clock) -> None:
        """max.block.ms passes in a few answers, however slow each of them is."""
        fast = HastyClock()
        fast.advance(clock.monotonic_ms())
        init(lock, fast)

    monkeypatch.setattr(SharedLock, "__init__", hasty)
    with pytest.raises(UnknownTopicOrPartitionError, match="nope"):
        write_at_least_once(options_for(broker), iter([pa.record_batch({"value": ["1"], "topic": ["nope"]})]))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"partition": pa.array([2] * 3, pa.int32())}, "partition 2 does not exist: the topic has partitions 0 to 1"),
        ({"timestamp": pa.array([-1] * 3, pa.timestamp("us", "UTC"))}, "column 'timestamp' has a time before 1970"),
    ],
)
def test_rows_that_the_producer_cannot_take_are_told_with_their_topic(
    broker: FakeBroker, columns: dict[str, pa.Array], sentence: str
) -> None:
    broker.create("events", 2)
    with pytest.raises(InvalidRecordError, match=f"rows for topic 'events' cannot be written: {sentence}"):
        write_at_least_once(options_for(broker, topic="events"), iter([numbered(0, 3, **columns)]))


def test_error_of_spark_itself_passes_through(broker: FakeBroker) -> None:
    broker.create("events")

    def failing() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 10)
        raise RuntimeError("the query's own mistake")

    with pytest.raises(RuntimeError, match="own mistake"):
        write_at_least_once(options_for(broker, topic="events"), failing())


def test_plan_refuses_before_any_task_runs(broker: FakeBroker) -> None:
    broker.create("events")
    plan_write(given(broker, topic="events"), VALUE, overwrite=False)
    with pytest.raises(ConfigError, match=r'write with \.mode\("append"\)'):
        plan_write(given(broker, topic="events"), VALUE, overwrite=True)
    with pytest.raises(ConfigError, match=r"a log cannot be overwritten.*\.withWatermark\(\.\.\.\).*\.foreachBatch\(write\)"):
        plan_write(given(broker, topic="events"), VALUE, overwrite=True, is_streaming=True)
    versioned = given(broker, topic="events", delivery="exactly_once", txnAppId="a", txnVersion=1)
    with pytest.raises(ConfigError, match="txnAppId and txnVersion are for batch writes"):
        plan_write(versioned, VALUE, overwrite=False, is_streaming=True)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'nope' does not exist: create it \(brokerd topics create nope"):
        plan_write(given(broker, topic="nope"), VALUE, overwrite=False)
    with pytest.raises(ConfigError, match="column 'value' is missing"):
        plan_write(given(broker, topic="events"), [("key", "string")], overwrite=False)


def test_a_topic_is_looked_up_for_a_plan_and_not_for_each_commit_and_abort(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BrokerdDataSource(given(broker, topic="nope"))
    columns = StructType().add("value", "string")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'nope' does not exist"):
        source.streamWriter(columns, overwrite=False)
    calls = broker.calls["Metadata"]
    monkeypatch.setattr("sys.argv", ["pyspark/daemon.py", "pyspark.sql.worker.python_streaming_sink_runner"])
    writer = source.streamWriter(columns, overwrite=False)
    writer.abort([None], 0)
    writer.commit([WriterCommitMessage()], 0)
    assert broker.calls["Metadata"] == calls


def test_writers_pickle_as_spark_ships_them(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    options = options_for(broker, topic="events")
    batch_writer = pickle.loads(pickle.dumps(BrokerdBatchWriter(options)))
    stream_writer = pickle.loads(pickle.dumps(BrokerdStreamWriter(options)))
    messages = [batch_writer.write(iter([numbered(0, 3)])), stream_writer.write(iter([numbered(3, 7)]))]
    messages = pickle.loads(pickle.dumps(messages))
    assert [int(value) for value in values_in(partition)] == list(range(7))
    batch_writer.commit(messages)
    batch_writer.abort([None, None])
    stream_writer.commit(messages, batchId=7)
    stream_writer.abort([None, None], batchId=7)


def test_a_task_parses_no_settings(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = broker.create("events")
    shipped = pickle.dumps(options_for(broker, topic="events"))
    monkeypatch.setattr("brokerd.config.settings._parse", None)
    write_at_least_once(pickle.loads(shipped), iter([numbered(0, 3)]))
    assert values_in(partition) == [b"0", b"1", b"2"]
