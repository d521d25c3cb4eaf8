"""append_to: micro-batches written by the driver and by the sink form one stream, written exactly once."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from brokerd.sink import foreach_batch
from brokerd.sink.foreach_batch import ROW_BYTES_MAX, ROWS_MAX, VERY_FEW_ROWS_MAX, Query
from brokerd.spark import append_to
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import Pairs, by_key, frame_of, pairs_of, read, read_stream, run, write
from tests.support.daemon import DaemonProcess


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each micro-batch, True if the driver wrote it."""
    taken: list[bool] = []
    few_rows = foreach_batch._few_rows

    def note(rows: DataFrame, query: Query) -> Any:
        few = few_rows(rows, query)
        taken.append(few is not None)
        return few

    monkeypatch.setattr(foreach_batch, "_few_rows", note)
    return taken


def numbers(first: int, end: int, size: int = 0) -> Pairs:
    return [(b"%d" % (number % 7), (b"%d" % number).ljust(size, b".")) for number in range(first, end)]


def copy(
    spark: SparkSession, address: str, source: str, function: Callable[[DataFrame, int], None], checkpoint: Path, **options: Any
) -> list[int]:
    frame = read_stream(spark, address, source, **options).select("key", "value")
    return run(
        frame.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )


def test_small_and_large_micro_batches_are_written_once_each_also_when_replayed_the_other_way(
    spark: SparkSession,
    daemon: DaemonProcess,
    new_topic: NewTopic,
    tmp_path: Path,
    ways: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = new_topic(3), new_topic(3)
    function = pickle.loads(pickle.dumps(append_to(target, {"bootstrap.servers": daemon.address})))
    given = numbers(0, ROWS_MAX + 500)
    rounds = [given[:50], given[50 : ROWS_MAX + 200], given[ROWS_MAX + 200 :]]
    for number, part in enumerate(rounds):
        write(frame_of(spark, part), daemon.address, source)
        copy(spark, daemon.address, source, function, tmp_path)
        assert by_key(pairs_of(read(spark, daemon.address, target).collect())) == by_key(
            [row for one in rounds[: number + 1] for row in one]
        )
        # As if the driver had died after the write and before Spark recorded it. The replay uses the other writer.
        for name in (str(number), f".{number}.crc"):
            (tmp_path / "commits" / name).unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            for limit in ("ROWS_MAX", "VERY_FEW_ROWS_MAX"):
                patch.setattr(foreach_batch, limit, 10 if ways[-1] else 100_000)
            copy(spark, daemon.address, source, function, tmp_path)
        assert by_key(pairs_of(read(spark, daemon.address, target).collect())) == by_key(
            [row for one in rounds[: number + 1] for row in one]
        )
    assert ways == [True, False, False, True, True, False]


def test_a_query_that_becomes_append_to_or_the_sink_writes_no_micro_batch_twice(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target, servers = new_topic(2), new_topic(2), {"bootstrap.servers": daemon.address}

    def forget(batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (tmp_path / "commits" / name).unlink(missing_ok=True)

    def sink() -> None:
        frame = read_stream(spark, daemon.address, source).select("key", "value")
        writer = frame.writeStream.format("brokerd").options(**servers, topic=target)
        run(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())

    def function() -> None:
        copy(spark, daemon.address, source, append_to(target, servers), tmp_path)

    ways_in_turn = itertools.cycle((sink, function))
    for batch in range(2):
        write(frame_of(spark, numbers(10 * batch, 10 * batch + 10)), daemon.address, source)
        next(ways_in_turn)()
        forget(batch)  # as if the driver had died before Spark recorded it
        next(ways_in_turn)()
        assert sorted(pairs_of(read(spark, daemon.address, target).collect())) == sorted(numbers(0, 10 * batch + 10))
        next(ways_in_turn)


def test_writes_to_two_topics_are_two_writes_whatever_their_labels(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic
) -> None:
    topics, rows = [new_topic(1), new_topic(1)], frame_of(spark, numbers(0, 2))
    servers = {"bootstrap.servers": daemon.address, "txnAppId": f"to {topics[0]}"}
    for version, labels in enumerate((("daily", "daily"), (topics[1], None))):
        for topic, label in zip(topics, labels, strict=True):
            append_to(topic, servers, label=label)(rows, version)
            found = pairs_of(read(spark, daemon.address, topic).collect())
            assert sorted(found) == sorted(numbers(0, 2) * (version + 1))


def test_large_rows_go_to_the_sink(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path, ways: list[bool]
) -> None:
    source, target = new_topic(1), new_topic(1)
    for number, size in enumerate((ROW_BYTES_MAX - 1, ROW_BYTES_MAX)):
        function = append_to(target, {"bootstrap.servers": daemon.address})  # it has not seen small rows
        write(frame_of(spark, numbers(number, number + 1, size)), daemon.address, source)
        copy(spark, daemon.address, source, function, tmp_path)
    assert ways == [True, False]
    assert [len(value or b"") for _, value in pairs_of(read(spark, daemon.address, target).collect())] == [
        ROW_BYTES_MAX - 1,
        ROW_BYTES_MAX,
    ]


@pytest.mark.parametrize("query", Query)
def test_all_columns_of_few_rows_come_to_the_driver_and_each_counts(spark: SparkSession, query: Query) -> None:
    columns = ["'t' AS topic", "int(id) AS partition", "string(id) AS key", "id AS offset", "timestamp_millis(id) AS timestamp"]
    for rows, headers, size in ((9, 1, 1), (9, 1, ROW_BYTES_MAX), (9, ROW_BYTES_MAX // 8 + 1, 1), (ROWS_MAX + 1, 1, 1)):
        entry = "struct('12345678' AS key, CAST(NULL AS BINARY) AS value)"
        wide = [f"array_repeat({entry}, {headers}) AS headers", f"binary(repeat('v', {size})) AS value"]
        few = foreach_batch._few_rows(spark.range(0, rows, 1, 4).selectExpr(*columns, *wide), query)
        if (query is Query.VERY_FEW and rows <= VERY_FEW_ROWS_MAX) or (rows, headers, size) == (9, 1, 1):
            assert few is not None
            taken = [row for part in few for row in part.to_pylist()]
            assert sorted(row["key"] for row in taken) == [str(number) for number in range(9)]
            assert taken[0].keys() - {"offset"} == {"topic", "partition", "key", "timestamp", "headers", "value"}
            assert taken[0]["timestamp"].timestamp() * 1_000 == int(taken[0]["key"])
            assert {type(column) for column in few[0].schema.types} == {type(column) for column in few[-1].schema.types}
            assert all(row["headers"] == [{"key": "12345678", "value": None}] * headers for row in taken)
            assert all(row["value"] == b"v" * size for row in taken)
        else:
            assert few is None


@pytest.mark.parametrize("count", [0, VERY_FEW_ROWS_MAX, VERY_FEW_ROWS_MAX + 1])
def test_very_few_rows_are_taken_without_a_second_query(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    second: list[bool] = []
    monkeypatch.setattr(foreach_batch, "_small_rows", lambda _, *, has_tasks: second.append(has_tasks))
    few = foreach_batch._few_rows(spark.range(0, count, 1, 4).selectExpr("string(id) AS value"), Query.VERY_FEW)
    if count > VERY_FEW_ROWS_MAX:
        assert second == [False]
    else:
        assert few is not None
        assert sum(part.num_rows for part in few) == count
        assert second == []


@pytest.mark.parametrize("query", [Query.ONE_TASK, Query.TASKS])
def test_a_large_row_beside_columns_without_nulls_is_for_the_sink(spark: SparkSession, query: Query) -> None:
    frame = spark.range(0, 9, 1, 4).selectExpr(
        "'t' AS topic", "string(id) AS key", f"repeat('v', int(id) * {ROW_BYTES_MAX}) AS value"
    )
    assert foreach_batch._few_rows(frame, query) is None
    none = foreach_batch._few_rows(frame.where("key = 'none'"), query)
    assert none is not None
    assert sum(part.num_rows for part in none) == 0
    few = foreach_batch._few_rows(frame.where("key = '0'"), query)
    assert few is not None
    assert [row for part in few for row in part.to_pylist()] == [{"topic": "t", "key": "0", "value": ""}]


def test_rows_that_cannot_be_taken_unchecked_are_checked_the_next_time(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = append_to(new_topic(1), {"bootstrap.servers": daemon.address, "txnAppId": "large rows"})
    taken: list[Query] = []

    def take(_: DataFrame, query: Query) -> list[pa.RecordBatch]:
        taken.append(query)
        if query is Query.VERY_FEW:
            raise RuntimeError("bigger than spark.driver.maxResultSize")
        return []

    monkeypatch.setattr(foreach_batch, "_few_rows", take)
    monkeypatch.setattr(foreach_batch, "ONE_TASK_MAX_MS", sys.maxsize)  # a slow query is another reason for many tasks
    rows = frame_of(spark, numbers(0, 5))
    function(rows, 0)
    with pytest.raises(RuntimeError):
        function(rows, 1)
    function(rows, 1)
    assert taken == [Query.TASKS, Query.VERY_FEW, Query.TASKS]


def test_the_query_of_few_rows_is_one_task(spark: SparkSession) -> None:
    frame = spark.range(0, 20, 1, 4).selectExpr("reflect('org.apache.spark.TaskContext', 'getPartitionId') AS value")
    for query in Query:
        few = foreach_batch._few_rows(frame, query)
        assert few is not None
        found = {row["value"] for part in few for row in part.to_pylist()}
        assert found == ({"0", "1", "2", "3"} if query is Query.TASKS else {"0"})


def test_readers_do_not_wait_for_a_write_whose_commit_failed(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = new_topic(1)
    function = append_to(target, {"bootstrap.servers": daemon.address, "txnAppId": f"copy of {target}"})

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(foreach_batch, "commit_parts", fail)
        with pytest.raises(KeyboardInterrupt):
            function(frame_of(spark, numbers(0, 5)), 0)
    write(frame_of(spark, numbers(5, 9)), daemon.address, target)
    assert sorted(pairs_of(read(spark, daemon.address, target).collect())) == sorted(numbers(5, 9))


def test_two_writes_of_one_micro_batch_have_a_label_each(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(1), new_topic(1)
    write(frame_of(spark, numbers(0, 20)), daemon.address, source)
    servers = {"bootstrap.servers": daemon.address}
    low, high = (append_to(target, servers, label=label) for label in ("low", "high"))

    def both(rows: DataFrame, batch_id: int) -> None:
        low(rows.where("int(string(value)) < 10"), batch_id)
        high(rows.where("int(string(value)) >= 10"), batch_id)
        high(rows.where("false"), batch_id)  # accepted: a write without rows loses none

    copy(spark, daemon.address, source, both, tmp_path / "labels")
    assert sorted(pairs_of(read(spark, daemon.address, target).collect())) == sorted(numbers(0, 20))

    def twice(rows: DataFrame, batch_id: int) -> None:
        low(rows, batch_id)
        low(rows, batch_id)

    with pytest.raises(StreamingQueryException, match="TxnConflictError"):
        copy(spark, daemon.address, source, twice, tmp_path / "twice")
