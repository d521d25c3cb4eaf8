"""Goal: what `consume --json` prints is read back as the same record, and what is no record is named."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from brokerd.cli.record_lines import json_printer, records_from_json
from brokerd.record.schema import SCHEMA_0
from tests.unit.cli.test_record_format import TOPICS, fetched

NOW_MS = 1_700_000_000_000


def read(*lines: bytes, partition_count: int | None = None) -> list[dict[str, object]]:
    found = records_from_json(lines, headers=[], timestamp_ms=NOW_MS, partition_count=partition_count)
    assert found.bad is None
    return found.arrow_batch.to_pylist()  # type: ignore[no-any-return]


def test_records_survive_the_way_out_and_back() -> None:
    rows = [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"\xff"}, {"key": "none", "value": None}], "timestamp": 0},
        {"key": b"\xff\x00", "value": b"\x80", "headers": [], "timestamp": NOW_MS * 1_000 + 1},
        {"key": None, "value": "naïve \u2028 😀".encode(), "headers": None, "timestamp": NOW_MS * 1_000 + 999_999},
        {"key": b"", "value": None, "headers": None, "timestamp": 4_102_444_800_000_001},
        {"key": b'"\n\\', "value": b"", "headers": None, "timestamp": 1},
    ]
    columns = pa.RecordBatch.from_pylist(rows, schema=SCHEMA_0.arrow)
    lines = bytes(json_printer(TOPICS)(fetched(columns))).split(b"\n")
    found = records_from_json(lines, headers=[], timestamp_ms=5, partition_count=4)
    assert found.bad is None
    assert found.arrow_batch.equals(columns)
    assert found.partitions == [3] * len(rows)


def test_only_a_value_is_needed() -> None:
    (row,) = read(b'{"value": "x"}')
    assert (row["key"], row["value"], row["headers"]) == (None, b"x", None)
    assert records_from_json([b'{"value":null}'], headers=[("a", "1")], timestamp_ms=1).arrow_batch.to_pylist()[0]["headers"] == [
        {"key": "a", "value": b"1"}
    ]
    times = records_from_json([b'{"value":"", "timestamp":-1}', b"", b'{"value":""}'], headers=[], timestamp_ms=NOW_MS)
    assert times.arrow_batch.column("timestamp").cast(pa.int64()).to_pylist() == [NOW_MS * 1_000] * 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("[1]", "not a JSON object"),
        ('{"valeu": "x"}', "unknown field 'valeu': did you mean 'value'?"),
        ('{"key": "k"}', "it has no value: use null for a tombstone"),
        ('{"value": 5}', "value must be a JSON string or null; use value_base64 for bytes that are not UTF-8 text"),
        ('{"value": "a", "value_base64": "YQ=="}', "value and value_base64 are mutually exclusive"),
        ('{"value_base64": "Y"}', "value_base64 is not base64"),
        ('{"value": "a", "value": "b"}', "it has 'value' twice"),
        ('{"value": "a", "headers": [{"key": "h", "value": "1", "value": "2"}]}', "it has 'value' twice"),
        ('{"value": "\\ud800"}', "value holds half of a surrogate pair, which is not valid text"),
        ('{"value": "", "headers": {}}', "headers must be a list"),
        ('{"value": "", "headers": [{"value": "x"}]}', "a header must be an object with key and value"),
        ('{"value": "", "headers": [{"key": "a", "vlaue": "x"}]}', "unknown field of a header 'vlaue': did you mean 'value'?"),
        ('{"value": "", "timestamp": "now"}', "timestamp must be a number of ms since 1970"),
        ('{"value": "", "timestamp": -2}', "timestamp must be a number of ms since 1970"),
        ('{"value": "", "timestamp": 1e30}', "timestamp must be a number of ms since 1970"),
        ('{"value": "", "timestamp": NaN}', "timestamp must be a number of ms since 1970"),
        ('{"value": ""}', "it names no partition"),
        ('{"value": "", "partition": 4}', "the topic has partitions 0 to 3, not 4"),
        ('{"value": ' + "[" * 100_000, "JSON nested too deeply"),
        ('{"value": "", "timestamp": ' + "9" * 5_000 + "}", "a number in it has thousands of digits"),
    ],
)
def test_line_that_is_no_record_is_named_and_those_before_it_are_kept(line: str, problem: str) -> None:
    good = json.dumps({"value": "x", "partition": 1}).encode()
    found = records_from_json([good, b"", line.encode(), good], headers=[], timestamp_ms=NOW_MS, partition_count=4)
    assert found.bad == (2, problem)
    assert found.partitions == [1]
    assert found.arrow_batch.num_rows == 1
