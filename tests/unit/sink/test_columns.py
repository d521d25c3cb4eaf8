"""How columns become records: types, nulls, topics, partitions, the order of rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from brokerd.errors import ConfigError, InvalidRecordError
from brokerd.producer.core.partitioner import murmur2
from brokerd.record.schema import SCHEMA_0
from brokerd.sink.options import check_columns
from brokerd.sink.task import TopicRows, to_records

HEADERS = "array<struct<key:string,value:binary>>"


def records(arrow_batch: pa.RecordBatch, topic: str | None = "events") -> list[TopicRows]:
    return list(to_records(arrow_batch, topic=topic))


def test_value_alone_is_enough() -> None:
    check_columns([("value", "string")], topic="events", include_headers=False)
    (rows,) = records(pa.record_batch({"value": pa.array(["a", None, "é"])}))
    assert rows.topic == "events"
    assert rows.records.to_pydict() == {"value": ["a", None, "é"]}
    assert rows.partitions is None


def test_what_is_no_part_of_a_record_is_left_out() -> None:
    batch = pa.record_batch(
        {"offset": [7], "value": ["a"], "partition": [3], "key": ["k"], "timestampType": [0], "topic": ["elsewhere"]}
    )
    (rows,) = records(batch)
    assert rows.records.to_pydict() == {"key": ["k"], "value": ["a"]}


def test_slices_are_read_at_their_own_rows() -> None:
    whole = pa.record_batch({"value": pa.array(["a", "b", "c", "d"]), "partition": pa.array([0, 1, None, 3], pa.int32())})
    (rows,) = records(whole.slice(1, 2))
    assert rows.records.column("value").to_pylist() == ["b", "c"]
    assert rows.partitions is not None
    assert rows.partitions.tolist() == [1, -1]


def test_header_without_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], SCHEMA_0.column("headers").type)
    with pytest.raises(InvalidRecordError, match="every header needs a key"):
        records(pa.record_batch({"value": pa.array(["x"]), "headers": headers}))


def test_topic_option_overrides_the_column() -> None:
    (rows,) = records(pa.record_batch({"value": pa.array(["a", "b"]), "topic": pa.array(["x", None])}), topic="events")
    assert rows.topic == "events"
    assert rows.records.num_rows == 2


def test_rows_are_parted_by_topic_and_keep_their_order() -> None:
    batch = pa.record_batch(
        {
            "value": pa.array(["a1", "b1", "a2", "b2", "a3"]),
            "topic": pa.array(["a", "b", "a", "b", "a"]),
            "partition": pa.array([4, 1, None, 2, 0], pa.int32()),
        }
    )
    first, second = records(batch, topic=None)
    assert (first.topic, first.records.column("value").to_pylist()) == ("a", ["a1", "a2", "a3"])
    assert (second.topic, second.records.column("value").to_pylist()) == ("b", ["b1", "b2"])
    assert first.partitions is not None
    assert second.partitions is not None
    assert (first.partitions.tolist(), second.partitions.tolist()) == ([4, -1, 0], [1, 2])


def test_null_topic_is_an_error_that_counts_the_rows() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b", "c"]), "topic": pa.array(["x", None, None])})
    with pytest.raises(InvalidRecordError, match="column 'topic' is null in 2 of 3 rows"):
        records(batch, topic=None)


@pytest.mark.parametrize("name", ["", "a b"])
def test_what_can_be_no_topics_name_is_refused_at_once(name: str) -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b"]), "topic": pa.array(["x", name])})
    with pytest.raises(InvalidRecordError, match=f"column 'topic' holds '{name}', which is not a topic's name"):
        records(batch, topic=None)


@pytest.mark.parametrize("number", [-1, 2**31])
def test_impossible_partition_is_refused(number: int) -> None:
    batch = pa.record_batch({"value": pa.array(["a"]), "partition": pa.array([number], pa.int64())})
    with pytest.raises(InvalidRecordError, match=f"holds {number}, which is not a partition"):
        records(batch)


def test_empty_batch_has_no_records() -> None:
    assert records(pa.record_batch({"value": pa.array([], pa.string())})) == []


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([("key", "string")], r"column 'value' is missing \(found: key\); value \(string or binary\) is required"),
        ([("value", "int")], r"column 'value' is int, but must be string or binary; cast it"),
        ([("value", "string"), ("key", "bigint")], r"column 'key' is bigint"),
        ([("value", "string"), ("Key", "string")], r"column 'Key' is not one that the sink writes \(did you mean 'key'\?\)"),
        ([("value", "string"), ("id", "bigint")], r"column 'id' is not one that the sink writes; drop it, or rename it"),
        ([("value", "string"), ("partition", "string")], r"column 'partition' is string, but must be int"),
        ([("value", "string"), ("topic", "binary")], r"column 'topic' is binary, but must be string; cast it to string"),
        ([("value", "string"), ("timestamp", "bigint")], r"column 'timestamp' is bigint, but must be timestamp"),
        ([("value", "string"), ("headers", "map<string,binary>")], r"column 'headers' is map<string,binary>, but must be array"),
        ([("value", "string"), ("headers", HEADERS)], r"not written with option includeHeaders=false"),
        ([("value", "string"), ("value", "string")], r"column 'value' is given twice"),
    ],
)
def test_wrong_columns_are_refused_by_name(columns: list[tuple[str, str]], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_columns(columns, topic="events", include_headers=False)


def test_without_topic_option_or_column_the_write_is_refused() -> None:
    with pytest.raises(ConfigError, match="set option 'topic', or add a column 'topic'"):
        check_columns([("value", "string")], topic=None, include_headers=False)


def test_what_the_source_reads_can_be_written_as_it_is() -> None:
    columns = [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", HEADERS),
    ]
    check_columns(columns, topic=None, include_headers=True)


@pytest.mark.parametrize("topic", [None, "all"])
def test_hashes_of_keys_go_with_their_rows(topic: str | None) -> None:
    keys = [str(number) for number in range(30)]
    batch = pa.record_batch({"key": keys, "value": keys, "topic": ["abc"[number % 3] for number in range(30)]})
    given = murmur2(pa.array(keys, pa.binary()))
    for rows in to_records(batch, topic=topic, key_hashes=given):
        assert rows.key_hashes is not None
        assert rows.key_hashes.tolist() == murmur2(rows.records.column("key").cast(pa.binary())).tolist()
