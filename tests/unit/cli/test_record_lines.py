"""Goal: lines become records byte for byte, however the input is chunked. Each format letter prints its field exactly, on the fast
and the slow path. Records printed by `consume --json` are read back unchanged.
"""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from brokerd.cli.record_lines import LineSplitter, format_printer, json_printer, records_from_json, records_from_lines, unescaped
from brokerd.client.columns import BatchSlice, FetchedBatch, decode_slice
from brokerd.errors import ConfigError
from brokerd.record.batch import RecordBatch
from brokerd.record.schema import SCHEMA_0
from tests.support.records import SAMPLE, TIMESTAMP_MS, TP, header_of, key_values, new_batch


@pytest.mark.parametrize("delimiter", [b"\n", b"::", b"ab"])
def test_lines_do_not_depend_on_how_the_input_is_cut(delimiter: bytes) -> None:
    chance = random.Random(1)
    for _ in range(300):
        data = bytes(chance.choice(b"a:b\nx") for _ in range(chance.randrange(60)))
        splitter = LineSplitter(delimiter)
        lines = []
        at = 0
        while at < len(data):
            size = chance.randrange(1, 8)
            lines += splitter.split(data[at : at + size])
            at += size
        lines += splitter.last()
        expected = data.split(delimiter)
        assert lines == (expected[:-1] if expected[-1] == b"" else expected)


def test_escapes() -> None:
    assert unescaped(r"a\tb\n\0\\n\q") == "a\tb\n\0\\n\\q"


def test_lines_with_keys_headers_and_nulls() -> None:
    batch = records_from_lines(
        [b"k1:v1", b"no key", b":empty key", b"k2:a:b", b"k3:NULL", b"NULL:v", b""],
        key_separator=b":",
        headers=[("h", "1"), ("g", "")],
        null_marker=b"NULL",
        timestamp_ms=1_700_000_000_123,
    )
    assert batch.schema == SCHEMA_0.arrow
    assert batch.column("key").to_pylist() == [b"k1", None, b"", b"k2", b"k3", None, None]
    assert batch.column("value").to_pylist() == [b"v1", b"no key", b"empty key", b"a:b", None, b"v", b""]
    assert batch.column("headers").to_pylist()[0] == [{"key": "h", "value": b"1"}, {"key": "g", "value": b""}]
    assert batch.column("timestamp").cast("int64").to_pylist() == [1_700_000_000_123_000] * 7


def test_lines_without_a_separator_are_values() -> None:
    batch = records_from_lines([b"a:b"], key_separator=None, headers=[], null_marker=None, timestamp_ms=0)
    assert batch.column("key").to_pylist() == [None]
    assert batch.column("value").to_pylist() == [b"a:b"]
    assert batch.column("headers").to_pylist() == [None], "as other producers write a record without headers"


TOPICS = {TP.topic_id: "t"}


def fetched(columns: pa.RecordBatch = SAMPLE, *, first: int = 0, log_append_time: bool = False) -> FetchedBatch:
    data = new_batch(columns)
    header = header_of(data)._replace(base_offset=100, stamp_flags=int(log_append_time), append_timestamp=5)
    piece = BatchSlice(TP, RecordBatch(header, data), 100 + first, 100 + columns.num_rows)
    batch = decode_slice(piece, max_uncompressed_bytes=1 << 20, check_crc=True)
    assert batch is not None
    return batch


def printed(template: str, batch: FetchedBatch) -> bytes:
    return bytes(memoryview(format_printer(template, TOPICS)(batch)))


def test_values_alone() -> None:
    assert printed("%s\n", fetched()) == b"one\n\n\n" + b"four" * 10 + b"\n"


def test_values_of_a_cut_batch() -> None:
    assert printed("%s\n", fetched(first=2)) == b"\n" + b"four" * 10 + b"\n"
    assert printed("%s|", fetched(key_values([b"a", b"bb", b"ccc"]), first=1)) == b"bb|ccc|"


def test_keys_and_values() -> None:
    assert printed("%k: %s\n", fetched()) == b"k1: one\n: \nk1: \n: " + b"four" * 10 + b"\n"


def test_text_alone() -> None:
    assert printed("x%%\n", fetched()) == b"x%\n" * 4


def test_every_letter() -> None:
    lines = printed("%t %p %o %T %K %k %S %s [%h] %%\n", fetched()).decode().splitlines()
    assert lines[0] == f"t 3 100 {TIMESTAMP_MS} 2 k1 3 one [h=x,other=] %"
    assert lines[1] == f"t 3 101 {TIMESTAMP_MS + 1} -1  0  [] %"
    assert lines[2] == f"t 3 102 {TIMESTAMP_MS + 2} 2 k1 -1  [] %"


def test_fast_and_slow_path_agree() -> None:
    batch = fetched(first=1)
    fast = printed("%k=%s;", batch)
    slow = b"".join(line.partition(b"|")[2] for line in printed("%o|%k=%s;\0", batch).split(b"\0"))
    assert fast == slow


@pytest.mark.parametrize(("template", "problem"), [("%z", "unknown letter '%z'"), ("50%", "single '%'")])
def test_wrong_format_is_told(template: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        format_printer(template, TOPICS)


def test_json_lines() -> None:
    lines = [json.loads(line) for line in bytes(json_printer(TOPICS)(fetched())).splitlines()]
    assert lines[0] == {
        "topic": "t",
        "partition": 3,
        "offset": 100,
        "timestamp": TIMESTAMP_MS,
        "timestamp_type": "CreateTime",
        "key": "k1",
        "value": "one",
        "headers": [{"key": "h", "value": "x"}, {"key": "other", "value": None}],
    }
    assert lines[2]["value"] is None
    assert lines[2]["headers"] == []


def test_json_of_bytes_that_are_no_text_and_of_append_time() -> None:
    batch = fetched(key_values([b"\xff\x00"], keys=["ключ".encode()]), log_append_time=True)
    (line,) = bytes(json_printer(TOPICS)(batch)).decode().splitlines()
    assert "ключ" in line
    document = json.loads(line)
    assert document["value_base64"] == "/wA="
    assert "value" not in document
    assert (document["timestamp"], document["timestamp_type"]) == (5, "LogAppendTime")


def test_head_of_a_batch() -> None:
    batch = fetched()
    assert printed("%o,", batch.head(2)) == b"100,101,"
    assert batch.head(9) is batch


@pytest.mark.parametrize("timestamp_ms", [-1, 253_402_300_800_000, (2**63 - 1) // 1_000])
def test_times_beyond_the_calendar_are_numbers(timestamp_ms: int) -> None:
    batch = fetched(key_values([b"v"], timestamp_ms=timestamp_ms))
    assert printed("%T", batch) == b"%d" % timestamp_ms
    assert json.loads(bytes(json_printer(TOPICS)(batch)))["timestamp"] == timestamp_ms


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
