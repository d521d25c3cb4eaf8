"""Goal: `brokerd.read` returns the records between its bounds to any reader of Arrow streams, as often as requested. Method: a
broker in memory, and pyarrow as the reader.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

import brokerd
from brokerd import TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.client.offsets import LastRecords, OffsetSpec
from brokerd.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.consumers import T0, T1, fill
from tests.support.fake_broker import FakeBroker


def read(broker: FakeBroker, **given: Any) -> Any:
    return brokerd.read("t", bootstrap_servers=f"127.0.0.1:{broker.port}", **given)


def test_all_records_up_to_the_end_of_now_as_often_as_asked(broker: FakeBroker) -> None:
    first, second = broker.create("t", 2)
    fill(first, [5, 5])
    fill(second, [3])
    reader = read(broker)
    fill(first, [5])
    assert reader.offsets == {T0: (0, 10), T1: (0, 3)}
    for _ in range(2):
        table = pa.table(reader)
        assert table.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
        table.validate(full=True)
        rows = table.select(["partition", "offset"]).to_pylist()
        assert [row["offset"] for row in rows if row["partition"] == 0] == list(range(10))
        assert [row["offset"] for row in rows if row["partition"] == 1] == [0, 1, 2]
    assert pa.RecordBatchReader.from_stream(reader).read_all().num_rows == 13


def test_columns_and_partitions_may_be_chosen(broker: FakeBroker) -> None:
    first, second = broker.create("t", 2)
    fill(first, [5])
    fill(second, [3])
    table = pa.table(read(broker, columns=["offset", "value"], partitions=[1]))
    assert table.to_pylist() == [{"offset": number, "value": b"%d" % number} for number in range(3)]


def test_topic_without_records_is_a_stream_without_batches(broker: FakeBroker) -> None:
    broker.create("t")
    table = pa.table(read(broker, columns=["value"]))
    assert (table.num_rows, table.schema.names) == (0, ["value"])


def test_stream_that_is_left_early_frees_its_connection(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5] * 50)
    batches = read(broker, max_partition_fetch_bytes=1)._batches()
    assert next(batches).num_rows == 5
    batches.close()
    assert list(batches) == []


def test_a_reader_is_no_sequence_of_batches(broker: FakeBroker) -> None:
    """pandas.DataFrame takes any iterable for rows, and would have one column of batches."""
    broker.create("t")
    assert not hasattr(read(broker), "__iter__")


@pytest.mark.parametrize(
    ("bound", "wanted"),
    [
        ("earliest", OffsetSpec.EARLIEST),
        ("latest", OffsetSpec.LATEST),
        ("-10m", START_WALL_MS - 600_000),
        ("-500ms", START_WALL_MS - 500),
        ("-90000d", 0),
        ("@1234", 1_234),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        (datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), 1_769_860_800_000),
        (datetime.datetime(2026, 1, 31, 12), round(datetime.datetime(2026, 1, 31, 12).timestamp() * 1_000)),  # noqa: DTZ001
        (datetime.date(2026, 1, 31), round(datetime.datetime(2026, 1, 31).timestamp() * 1_000)),  # noqa: DTZ001
        (-7, LastRecords(7, 10)),
        ("-7", LastRecords(7, 10)),
    ],
)
def test_bounds_are_offsets_of_an_end_or_a_time(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, bound: Any, wanted: object
) -> None:
    fill(broker.create("t")[0], [10])
    asked: list[object] = []
    list_offsets = BlockingClient.list_offsets

    def note(client: BlockingClient, given: Any, isolation: str) -> Any:
        asked.extend(given.values())
        return list_offsets(client, given, isolation)

    monkeypatch.setattr(BlockingClient, "list_offsets", note)
    read(broker, start=bound, clock=ManualClock())
    assert asked == [OffsetSpec.LATEST, *[one for one in [wanted] if not isinstance(one, OffsetSpec)]], "one request for both ends"


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({"start": 7}, (7, 10)),
        ({"start": "7"}, (7, 10)),
        ({"start": 1_200}, (10, 10)),
        ({"start": 2, "end": 4}, (2, 4)),
        ({"start": -3}, (7, 10)),
        ({"end": -3}, (0, 7)),
        ({"start": 4, "end": 2}, (2, 2)),
    ],
)
def test_a_number_is_an_offset(broker: FakeBroker, given: dict[str, Any], offsets: tuple[int, int]) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5, 5])
    assert read(broker, **given).offsets == {T0: offsets}


def test_several_topics_are_refused_with_the_line_that_works(broker: FakeBroker) -> None:
    for topic in ("t", "u"):
        fill(broker.create(topic)[0], [3])
    with pytest.raises(TypeError, match=r"not \['t', 'u'\]; several as one table: pa\.concat_tables\(") as raised:
        brokerd.read(["t", "u"])  # type: ignore[arg-type]
    line = str(raised.value).partition("one table: ")[2].replace("read(topic)", "read(topic, **to)")
    to = {"bootstrap_servers": f"127.0.0.1:{broker.port}"}
    assert eval(line, {"pa": pa, "brokerd": brokerd, "topics": ["t", "u"], "to": to}).num_rows == 6


def test_a_start_behind_the_end_is_nothing(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5])
    assert read(broker, start="latest", end="earliest").offsets == {TopicPartition("t", 0): (0, 0)}


def test_records_that_retention_took_meanwhile_are_an_error(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5, 5])
    reader = read(broker)
    partition.log_start_offset = 5
    with pytest.raises(OffsetOutOfRangeError):
        reader.to_reader().read_all()


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"start": "yesterday"}, ConfigError, r"start takes earliest, latest, N \(that offset\), .*not 'yesterday'"),
        ({"start": True}, TypeError, "start must be text, an offset or a datetime, not True"),
        ({"end": None}, TypeError, "end must be text"),
        ({"end": 2**63}, ConfigError, "end must be between"),
        ({"columns": ["valu"]}, ValueError, "columns must be some of key, value"),
        ({"columns": []}, ValueError, "columns must be some of"),
        ({"columns": "value"}, ValueError, "columns must be some of"),
        ({"group_id": "g"}, ConfigError, r"unknown setting 'group\.id'"),
        ({"partitions": [3]}, UnknownTopicOrPartitionError, "topic 't' has no partition 3, it has 0 to 0"),
    ],
)
def test_arguments_are_checked(broker: FakeBroker, given: dict[str, Any], error: type[Exception], match: str) -> None:
    broker.create("t")
    with pytest.raises(error, match=match):
        read(broker, **given)


def test_unknown_topic_is_told(broker: FakeBroker) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"there is no topic 't': create it \(brokerd topics create t "):
        read(broker)
