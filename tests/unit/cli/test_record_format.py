"""Goal: what is printed of a record is what it holds, in every letter, fast path and slow path alike."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from brokerd.cli.record_lines import format_printer, json_printer
from brokerd.client.columns import BatchSlice, FetchedBatch, decode_slice
from brokerd.errors import ConfigError
from brokerd.record.batch import RecordBatch
from tests.support.records import SAMPLE, TIMESTAMP_MS, TP, header_of, key_values, new_batch

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
