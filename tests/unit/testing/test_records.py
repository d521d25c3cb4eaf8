"""Goal: all inputs of `Topic.append` become the same columns, and the error for an invalid value names its row and field."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from brokerd.testing.records import Record, empty_table, to_records, to_table

NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
NOON_MS = 1_769_860_800_250


class Row(tuple[Any, ...]):
    """A double of Spark's Row: a tuple with named fields."""

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"key": self[0], "value": self[1]}


class Frame:
    """A double of Spark's DataFrame."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.table({"key": ["k"], "value": ["v"]})


def rows_of(data: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = to_table(data).to_pylist()
    return rows


@pytest.mark.parametrize(
    "data",
    [
        [("k", "v")],
        [(b"k", b"v")],
        [["k", b"v"]],
        [{"key": "k", "value": "v"}],
        [Row(("k", "v"))],
        (("k", memoryview(b"v")) for _ in range(1)),
        [Record(b"k", b"v", "t", 0, 7, NOON, [])._replace(timestamp=None, partition=None, headers=None)],  # type: ignore[arg-type]
    ],
)
def test_rows_of_every_kind_are_the_same_columns(data: object) -> None:
    assert rows_of(data) == [{"key": b"k", "value": b"v"}]


def test_values_alone_have_no_key_and_none_is_a_tombstone() -> None:
    assert rows_of(["a", b"b", None]) == [{"key": None, "value": b"a"}, {"key": None, "value": b"b"}, {"key": None, "value": None}]


def test_all_fields_of_a_mapping() -> None:
    given = {"key": "k", "value": "v", "headers": {"h": "x"}, "timestamp": NOON, "partition": 3}
    other = {"value": "w", "headers": [("h", None), ("h", b"y")], "timestamp": NOON_MS}
    assert rows_of([given, other]) == [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}], "timestamp": NOON, "partition": 3},
        {
            "key": None,
            "value": b"w",
            "headers": [{"key": "h", "value": None}, {"key": "h", "value": b"y"}],
            "timestamp": NOON,
            "partition": -1,
        },
    ]


def test_no_rows_are_no_rows() -> None:
    assert to_table([]).num_rows == 0


def test_tables_and_dataframes_keep_their_columns() -> None:
    table = pa.table({"key": ["k"], "value": ["v"]})
    assert to_table(table) is table
    assert rows_of(table.to_batches()[0]) == rows_of(table)
    assert rows_of(table.to_reader()) == rows_of(table), "the Arrow C stream, as Polars and pandas have it"
    assert rows_of(Frame()) == rows_of(table)


def test_a_tables_partitions_are_numbers_and_minus_one_where_there_is_none() -> None:
    table = to_table(pa.table({"partition": pa.array([2, None], pa.int64()), "value": ["a", "b"]}))
    assert table.column("partition").to_pylist() == [2, -1]
    assert table.schema.field("partition").type == pa.int32()


def test_rows_of_a_topic_can_be_appended_to_another() -> None:
    read = pa.table(
        {
            "key": [b"k"],
            "value": [b"v"],
            "partition": pa.array([1], pa.int32()),
            "offset": [7],
            "topic": ["t"],
            "timestampType": [0],
        }
    )
    assert rows_of(read) == [{"key": b"k", "value": b"v", "partition": 1}]
    record = Record(b"k", b"v", "t", 1, 7, NOON, [("h", b"x")])
    assert rows_of([record]) == [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}], "timestamp": NOON, "partition": 1}
    ]
    assert to_records(to_table([record]).append_column("offset", pa.array([7])), "t") == [record]


def test_a_timestamp_that_no_datetime_holds_leads_to_arrow() -> None:
    table = to_table([{"value": b"v", "timestamp": 253_402_300_800_000, "partition": 0}]).append_column("offset", [[0]])
    with pytest.raises(ValueError, match=r"after the year 9999, which no datetime holds: read the topic with arrow\(\)$"):
        to_records(table, "t")


def test_a_topic_without_records_has_no_rows() -> None:
    assert to_records(empty_table(), "t") == []


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"one", TypeError, r"append takes rows .* \(one alone goes into a list\), not bytes"),
        ({"value": "one"}, TypeError, "one alone goes into a list"),
        (7, TypeError, "append takes rows .*, not int"),
        ([("k", "v"), 7], TypeError, "row 1 is int: append takes rows"),
        ([("k", "v", "w")], TypeError, "row 0 is tuple"),
        ([("k", 7)], TypeError, "row 0: value must be bytes, text or None, not int: serialize it first"),
        ([("k", "v"), (1.5, "v")], TypeError, "row 1: key must be bytes"),
        ([{"value": "v", "valeu": 1}], ValueError, "row 0 has an unknown field 'valeu': a record has key, value"),
        ([{"value": "v", "headers": "h"}], TypeError, "row 0: headers must be a mapping"),
        ([{"value": "v", "headers": {"h": 1}}], TypeError, "row 0: header 'h' must be bytes"),
        ([{"value": "v", "timestamp": "noon"}], TypeError, "row 0: timestamp must be a datetime, or ms since 1970, not str"),
        ([{"value": "v", "timestamp": NOON.replace(tzinfo=None)}], ValueError, "row 0: timestamp .* has no time zone"),
        ([{"value": "v"}, {"value": "v", "partition": "0"}], TypeError, "row 1: partition must be an int, not str"),
        ([{"value": "v", "partition": True}], TypeError, "row 0: partition must be an int, not bool"),
        ([{"value": "v", "partition": 1.0}], TypeError, "row 0: partition must be an int, not float"),
        ([{"value": "v", "partition": -1}], ValueError, "row 0: partition is -1: give 0 to 2147483647, or none"),
        ([{"value": "v", "partition": 2**31}], ValueError, "row 0: partition is 2147483648: give 0 to"),
        ([{"value": "v", "timestamp": -1}], ValueError, "row 0: timestamp is -1 ms since 1970: give 0 to 9223372036854775"),
        ([{"value": "v", "timestamp": 2**70}], ValueError, "row 0: timestamp is 1180591620717411303424 ms since 1970"),
        ([{"value": "v", "timestamp": NOON.replace(year=1900)}], ValueError, "row 0: timestamp is -.* ms since 1970"),
        ([{"value": "v", "headers": [5]}], TypeError, "row 0: a header must be a pair of name and value, not int"),
        ([{"value": "v", "headers": [("a", "b", "c")]}], TypeError, "row 0: a header must be a pair of name and value, not tuple"),
        ([{"value": "v", "headers": {5: "x"}}], TypeError, "row 0: a header's name must be text, not int"),
        ([{5: "v"}], ValueError, "row 0 has an unknown field '5'"),
        (pa.table({"value": ["v"], "partition": ["0"]}), TypeError, "column 'partition' must be integers, not string"),
        (pa.table({"value": ["v"], "amount": [1]}), ValueError, "unknown column 'amount': a record has key, value"),
    ],
)
def test_what_no_record_can_hold_is_refused_by_row_and_field(data: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        to_table(data)
