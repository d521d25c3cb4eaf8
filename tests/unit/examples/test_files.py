"""Goal: the demo reads exactly a file's rows: none added or lost, no key changed, no value cut. Method: the demo reads files whose
content is stated here, or written by the csv module or Arrow.
"""

from __future__ import annotations

import csv
import datetime
import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_parts.files

    yield demo_parts.files
    for name in [name for name in sys.modules if name.startswith("demo_parts")]:
        del sys.modules[name]


def rows(files: Any, path: Path, key: str) -> list[tuple[bytes | None, str]]:
    table = files.records_of(path, key)
    return list(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


def given(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_keeps_quoted_newlines_doubled_quotes_and_leading_zeros(files: Any, tmp_path: Path) -> None:
    held = [
        ["007", 'he said "no", twice\nand again', ""],
        ["7", "a\r\nb", " padded "],
        ["", "1e5", "true"],
        ["naïve ключ", "x" * 200_000, "`"],
    ]
    path = tmp_path / "odd.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["the `key`.x", "text", "c"], *held])
    found = rows(files, path, "the `key`.x")
    assert [key for key, _ in found] == [row[0].encode() for row in held]
    assert [list(json.loads(value).values()) for _, value in found] == held
    assert list(json.loads(found[0][1])) == ["the `key`.x", "text", "c"]


def test_csv_of_windows_and_empty_lines(files: Any, tmp_path: Path) -> None:
    path = given(tmp_path, "w.csv", "\ufeffid,v\r\n1,a\r\n\r\n2,b\r\n")
    assert rows(files, path, "id") == [(b"1", '{"id": "1", "v": "a"}'), (b"2", '{"id": "2", "v": "b"}')]


LINES = """{"id": "007", "v": 1.10}

  {"id": 7, "v": "a\\u00e9"}\r
{"id": 1.10}
{"id": null}
{"v": 12345678901234567890123}
{"id": true}"""


def test_json_lines_are_kept_character_by_character(files: Any, tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl", "a.NDJSON"):
        found = rows(files, given(tmp_path, name, LINES), "id")
        assert [key for key, _ in found] == [b"007", b"7", b"1.10", None, None, b"true"]
        assert [value for _, value in found] == [line.strip() for line in LINES.splitlines() if line.strip()]


def test_json_documents_are_their_elements(files: Any, tmp_path: Path) -> None:
    first, second = '{"id": "a",\n  "v": [1, {"id": 2}]}', '{"id":"b"}'
    expected = [(b"a", first), (b"b", second)]
    assert rows(files, given(tmp_path, "array.json", f"\n[\n{first},\n{second}\n]\n"), "id") == expected
    assert rows(files, given(tmp_path, "after.json", f"{first}\n{second}"), "id") == expected
    assert rows(files, given(tmp_path, "one.json", first), "id") == expected[:1]


def test_parquet_keeps_every_digit(files: Any, tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "at": pa.array([at, None], pa.timestamp("us", tz="UTC")),
            "fine": pa.array([1_767_323_045_678_901_234, None], pa.timestamp("ns")),
            "price": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
            "raw": pa.array([b"\xff\x00", b"text"], pa.binary()),
            "x y`": pa.array(["007", None]),
            "nested": pa.array([{"d": datetime.date(2026, 1, 2), "l": [at]}, None]),
            "number": pa.array([float("nan"), 0.1]),
        }
    )
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    (key, value), (no_key, _) = rows(files, path, "x y`")
    assert (key, no_key) == (b"007", None)
    said = json.loads(value)
    assert said["at"] == "2026-01-02 03:04:05.678901Z"
    assert said["fine"] == "2026-01-02 03:04:05.678901234"
    assert (said["price"], said["raw"], said["number"]) == ("1.10", "/wA=", "nan")
    assert said["nested"]["d"] == "2026-01-02"
    assert said["nested"]["l"][0].startswith("2026-01-02 03:04:05.678901")
    assert [key for key, _ in rows(files, path, "raw")] == [b"\xff\x00", b"text"]
    assert rows(files, path, "at")[0][0] == b"2026-01-02 03:04:05.678901Z"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "", " holds no rows; a .csv file starts with its column names"),
        ("a.csv", "id,v\n", " holds no rows"),
        ("a.csv", "id,v\n1,a\n2\n", ", line 3: 1 fields, but there are 2 columns"),
        ("a.csv", 'id,v\n1,"a\nb"\n2,"open\n', ", line 4: unexpected end of data"),
        ("a.csv", 'id,v\n1,"a"b\n', ", line 2: ',' expected after '\"'"),
        ("a.csv", b"id,v\n1,\xff\n", ", line 2: not UTF-8 text"),
        ("a.csv", "id,id\n1,2\n", " has more than one column 'id'"),
        ("a.csv", "x,y\n1,2\n", " has no column 'id'; there are: x, y"),
        ("a.json", "", " holds no rows"),
        ("a.jsonl", "\n \n", " holds no rows"),
        ("a.json", "[]", " holds no rows"),
        ("a.json", '{"id": 1}\n{"id": 2\n{"id": 3}\n', ", line 2: Expecting ',' delimiter"),
        ("a.json", '{"id": 1}\n{"id": 2} {"id": 3}\n', ", line 2: more follows the row, from column 10 on"),
        ("a.json", '{"id": 1}\n5\n', ", line 2: a row must be a JSON object"),
        ("a.json", '[{"id": 1},\n\n5]', ", line 3: a row must be a JSON object"),
        ("a.json", '[{"id": 1}\n{"id": 2}]', ", line 2: a comma or the array's end is missing"),
        ("a.json", '[{"id": 1},\n', ", line 1: the array does not end"),
        ("a.json", '[{"id": 1},\n]', ", line 2: nothing follows the comma"),
        ("a.json", '[{"id": 1}]\n7', ", line 2: more follows the array"),
        ("a.json", '{"id": [1]}', ", line 1: 'id' is a list or an object, which cannot be a key"),
        ("a.json", '{"id": NaN}', ", line 1: NaN is not a JSON number"),
        ("a.jsonl", '{"id": 1}\n{"id": ' + "[" * 100_000, ", line 2: nested too deeply"),
        ("a.json", b'{"id": 1}\n{"id": "\xff"}', ", line 2: not UTF-8 text"),
        ("a.json", '{"x": 1}\n{"y": 1}\n', " has no column 'id'; there are: x, y"),
        ("a.parquet", "no parquet", "cannot read "),
        ("a.xml", "<a/>", " is not a .json, .jsonl, .ndjson, .csv or .parquet file"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_file_and_line(
    files: Any, tmp_path: Path, name: str, content: str | bytes, problem: str
) -> None:
    path = given(tmp_path, name, content)
    with pytest.raises(ValueError) as caught:
        files.records_of(path, "id")
    told = str(caught.value)
    assert told.startswith((f"{path}{problem}", f"{problem}{path}"))


def test_parquet_without_rows_and_files_that_are_not_there(files: Any, tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), path)
    with pytest.raises(ValueError, match=r"none\.parquet holds no rows"):
        files.records_of(path, "id")
    with pytest.raises(ValueError, match=r"cannot read .*gone.csv: No such file or directory"):
        files.records_of(tmp_path / "gone.csv", "id")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv: Is a directory"):
        files.records_of(tmp_path / "folder.csv", "id")
