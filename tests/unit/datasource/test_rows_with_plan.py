"""The rows of small batches travel with their plan. PySpark's own partitions_func runs here as its runner calls it."""

from __future__ import annotations

import io
import json
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import ArrayType, StructType

from brokerd.datasource import stream_reader
from brokerd.datasource.source import BrokerdDataSource
from brokerd.datasource.stream_reader import BYTES_WITH_PLAN, ROWS_WITH_PLAN, BrokerdStreamReader
from brokerd.errors import BrokerUnreachableError, CorruptMessageError
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker
from tests.support.wait import DEADLINE_S
from tests.unit.datasource.reading import ALL_COLUMNS
from tests.unit.datasource.streaming import Offset, latest, reader_for

SCHEMA = from_arrow_schema(ALL_COLUMNS)


def planned(
    reader: BrokerdStreamReader, start: Offset, end: Offset, schema: StructType = SCHEMA
) -> tuple[int, list[dict[str, Any]] | None]:
    """The number of planned tasks, and the rows that Spark gets with the plan; None if tasks read them."""
    infile, outfile = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        text = json.dumps(offset).encode()
        infile.write(len(text).to_bytes(4, "big") + text)
    infile.seek(0)
    runner.partitions_func(reader, BrokerdDataSource({}), schema, 10_000, infile, outfile)
    assert type(reader) is BrokerdStreamReader, "Spark asks it for its progress again"
    outfile.seek(0)
    tasks = number(outfile)
    for _ in range(tasks):
        outfile.read(number(outfile))
    kind = number(outfile)
    if kind != runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        return tasks, None if kind == runner.PREFETCHED_RECORDS_NOT_FOUND else []
    assert number(outfile) == SpecialLengths.START_ARROW_STREAM
    return tasks, pa.ipc.open_stream(outfile).read_all().to_pylist()


def number(file: io.BytesIO) -> int:
    return int.from_bytes(file.read(4), "big", signed=True)


def first_batch(broker: FakeBroker, **options: Any) -> tuple[BrokerdStreamReader, Offset, Offset]:
    reader = reader_for(broker, startingOffsets="earliest", **options)
    return reader, reader.initialOffset(), latest(reader, reader.initialOffset())


def by_tasks(reader: BrokerdStreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    return [row for one in reader.partitions(start, end) for batch in reader.read(one) for row in batch.to_pylist()]


def test_a_small_batch_needs_no_task_and_has_the_same_rows(broker: FakeBroker) -> None:
    reader, start, end = first_batch(broker)
    tasks, rows = planned(reader, start, end)
    assert rows is not None
    assert tasks == 1, "for all rows, in case that Spark has lost them"
    assert len(rows) == 20
    assert by_tasks(reader, start, end) == rows
    assert planned(reader, start, end) == (tasks, rows), "a replayed batch"


def test_rows_are_read_while_spark_writes_the_offsets(broker: FakeBroker) -> None:
    reader, start, end = first_batch(broker)
    assert reader._ahead is not None
    reader._ahead.plan.result(DEADLINE_S)
    asked = broker.calls.copy()
    _, rows = planned(reader, start, end)
    assert rows is not None
    assert len(rows) == 20
    assert broker.calls == asked, "nothing is left to ask for"


def test_a_plan_made_ahead_serves_its_own_batch_only(broker: FakeBroker) -> None:
    reader, start, end = first_batch(broker)
    fill(broker.topics["events"][0], [5])
    later = latest(reader, end)
    assert planned(reader, start, end)[1] == by_tasks(reader, start, end), "a batch planned again"
    latest(reader, end)
    assert planned(reader, start, later)[1] == by_tasks(reader, start, later)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({"taskPerPartition": "true"}, 2), ({"minPartitions": 2}, 2), ({"maxRecordsPerPartition": 5}, 4)],
)
def test_options_give_every_partition_a_task(broker: FakeBroker, options: dict[str, Any], tasks: int) -> None:
    assert planned(*first_batch(broker, **options)) == (tasks, None)


def test_many_rows_are_read_by_tasks(broker: FakeBroker) -> None:
    fill(broker.topics["events"][0], [ROWS_WITH_PLAN - 20])
    assert planned(*first_batch(broker))[1] is not None
    fill(broker.topics["events"][1], [1])
    tasks, rows = planned(*first_batch(broker))
    assert (tasks, rows) == (1, None)


def test_large_rows_are_read_by_tasks(broker: FakeBroker) -> None:
    fill(broker.topics["events"][0], [3], value_bytes=BYTES_WITH_PLAN // 2)
    reader, start, end = first_batch(broker)
    assert planned(reader, start, end)[1] is None
    fetches = broker.calls["Fetch"]
    assert fetches > 0
    assert planned(reader, start, end)[1] is None
    assert broker.calls["Fetch"] == fetches, "not read in vain again"
    assert len(by_tasks(reader, start, end)) == 23


def test_one_large_row_does_not_keep_small_batches_from_their_plans_for_ever(broker: FakeBroker) -> None:
    log = broker.topics["events"][0]
    fill(log, [1], value_bytes=2 * BYTES_WITH_PLAN)
    reader, start, large = first_batch(broker)
    assert planned(reader, start, large)[1] is None
    fill(log, [100])
    small = latest(reader, large)
    with_plan = [planned(reader, large, small)[1] is not None for _ in range(100)]
    assert with_plan[0] is False
    assert with_plan[-1] is True


def test_what_fails_with_the_plan_is_left_to_tasks(broker: FakeBroker) -> None:
    broker.errors["Fetch"] = [CorruptMessageError("rotten")] * 3  # set first: latestOffset begins the plan
    reader, start, end = first_batch(broker)
    assert planned(reader, start, end)[1] is None


def test_a_broker_that_goes_is_waited_for_once(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_ranges(*_: object) -> NoReturn:
        raise BrokerUnreachableError("no broker responded for 60 s")

    monkeypatch.setattr(stream_reader, "read_ranges", read_ranges)
    reader, start, end = first_batch(broker)
    calls = broker.calls.copy()
    with pytest.raises(BrokerUnreachableError, match="no broker responded for 60 s"):
        reader.partitions(start, end)
    assert broker.calls == calls, "it is not asked for sizes"


def test_a_filter_leaves_the_same_rows_with_the_plan(broker: FakeBroker) -> None:
    reader, start, end = first_batch(broker, where="partition = 1 AND offset >= 4")
    _, rows = planned(reader, start, end)
    assert rows is not None
    assert [(row["partition"], row["offset"]) for row in rows] == [(1, offset) for offset in range(4, 10)]
    reader, start, end = first_batch(broker, where="timestamp < '1971-01-01 00:00:00Z'")
    assert not planned(reader, start, end)[1]


@pytest.mark.parametrize(
    ("of_column", "of_field", "is_with_plan"), [({}, {}, True), ({"comment": "all"}, {}, False), ({}, {"comment": "one"}, False)]
)
def test_a_schema_with_metadata_gets_its_rows_from_tasks(
    broker: FakeBroker, of_column: dict[str, str], of_field: dict[str, str], is_with_plan: bool
) -> None:
    """Spark compares the rows' schema with its own, metadata included: the batch would fail after every restart."""
    header = StructType().add("key", "string", metadata=of_field).add("value", "binary")
    columns = StructType().add("value", "binary").add("headers", ArrayType(header), metadata=of_column)
    options = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "subscribe": "events", "startingOffsets": "earliest"}
    reader = BrokerdDataSource(options).streamReader(columns)
    assert isinstance(reader, BrokerdStreamReader)
    start = reader.initialOffset()
    tasks, rows = planned(reader, start, latest(reader, start), columns)
    assert (tasks, rows is not None) == (1, is_with_plan)


def test_another_pyspark_gets_its_tasks(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "_TAKES_ROWS", False)
    assert planned(*first_batch(broker)) == (1, None)


def test_this_pyspark_takes_rows_with_a_plan() -> None:
    assert stream_reader._TAKES_ROWS
