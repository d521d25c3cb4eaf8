"""Goal: lines become records byte for byte, however the input is cut into chunks."""

from __future__ import annotations

import random

import pytest

from brokerd.cli.record_lines import LineSplitter, records_from_lines, unescaped
from brokerd.record.schema import SCHEMA_0


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
    assert batch.column("headers").to_pylist() == [[]]
