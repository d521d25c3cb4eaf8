"""Reads the rows of a file as records: keys and values exactly as in the file, in its order.

Spark's readers are not used: they guess types ("007" becomes 7), truncate times, and turn what they cannot parse into null, but the
final check compares with the file. JSON is written to the log character by character; a CSV row becomes a JSON object of strings; a
Parquet row becomes a JSON object whose times and decimals are strings, in full precision.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

_FIELD_CHARACTERS_MAX = 2**31 - 1  # longest CSV field; the csv module's default is 131,072
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.string())])
_SPACE = " \t\r\n"


class Record(NamedTuple):
    """A row of the file, to be written as a record."""

    key: bytes | None
    value: str  # JSON text


Written: TypeAlias = "tuple[int, str, Any]"  # position in the file, text, parsed value


def records_of(path: Path, key: str) -> pa.Table:
    """The rows of a .json, .jsonl, .ndjson, .csv or .parquet file, keyed by a column; a row without it has a null key.

    Raises ValueError that names the file, and the line if there is one.
    """
    readers = {".json": _of_json, ".jsonl": _of_json, ".ndjson": _of_json, ".csv": _of_csv, ".parquet": _of_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} is not a .json, .jsonl, .ndjson, .csv or .parquet file")
    try:
        rows = list(reader(path, key))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    if not rows:
        raise ValueError(f"{path} holds no rows")
    return pa.table([[row.key for row in rows], [row.value for row in rows]], schema=_SCHEMA)


def _text_of(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 text") from None


def _check_column(path: Path, key: str, columns: Sequence[str]) -> None:
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one column '{twice[0]}'")
    if key not in columns:
        raise ValueError(f"{path} has no column '{key}'; there are: {', '.join(columns)}")


# CSV


def _of_csv(path: Path, key: str) -> Iterator[Record]:
    before = csv.field_size_limit(_FIELD_CHARACTERS_MAX)
    reader = csv.reader(io.StringIO(_text_of(path), newline=""), strict=True)  # keeps line breaks within quotes
    try:
        yield from _csv_rows(path, key, reader)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(before)


def _csv_rows(path: Path, key: str, reader: Any) -> Iterator[Record]:
    columns: list[str] = next(reader, [])
    if not columns:
        raise ValueError(f"{path} holds no rows; a .csv file starts with its column names")
    _check_column(path, key, columns)
    at = columns.index(key)
    for row in reader:
        if not row:
            continue  # an empty line
        if len(row) != len(columns):
            raise ValueError(f"{path}, line {reader.line_num}: {len(row)} fields, but there are {len(columns)} columns")
        yield Record(row[at].encode(), json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False))


# JSON


class _Number(str):
    """A number as written: 1.10 is not 1.1, and no digit is lost."""

    __slots__ = ()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_JSON = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)


def _of_json(path: Path, key: str) -> Iterator[Record]:
    text = _text_of(path)
    columns: dict[str, None] = {}
    for at, written, said in _by_line(path, text) if _is_by_line(path, text) else _of_document(path, text):
        if not isinstance(said, dict):
            raise _wrong_json(path, text, at, "a row must be a JSON object")
        columns.update(dict.fromkeys(said))
        found = said.get(key)
        if isinstance(found, (dict, list)):
            raise _wrong_json(path, text, at, f"'{key}' is a list or an object, which cannot be a key")
        yield Record(_key_bytes(found), written)
    if columns:
        _check_column(path, key, list(columns))


def _is_by_line(path: Path, text: str) -> bool:
    """True for one object per line; False for an array, or objects that span lines."""
    if path.suffix.lower() != ".json":
        return True
    first = next((line for line in text.split("\n") if line.strip(_SPACE)), "")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _by_line(path: Path, text: str) -> Iterator[Written]:
    at = 0
    for line in text.split("\n"):
        written = line.strip(_SPACE)
        if written:
            said, end = _decoded(path, text, at, written, 0)
            if end < len(written):
                raise _wrong_json(path, text, at, f"more follows the row, from column {end + 1} on")
            yield at, written, said
        at += len(line) + 1


def _of_document(path: Path, text: str) -> Iterator[Written]:
    """The elements of an array, or consecutive objects, each as written."""
    at = _past_space(text, 0)
    is_array = text.startswith("[", at)
    if is_array:
        at = _past_space(text, at + 1)
    while at < len(text) and not (is_array and text[at] == "]"):
        said, end = _decoded(path, text, at, text, at)
        yield at, text[at:end], said
        at = _past_space(text, end)
        if is_array and text.startswith(",", at):
            at = _past_space(text, at + 1)
            if text.startswith("]", at):
                raise _wrong_json(path, text, at, "nothing follows the comma")
        elif is_array and not text.startswith("]", at):
            raise _wrong_json(path, text, at, "a comma or the array's end is missing")
    if is_array and _past_space(text, at + 1) < len(text):
        raise _wrong_json(path, text, _past_space(text, at + 1), "more follows the array")
    if is_array and at >= len(text):
        raise _wrong_json(path, text, len(text) - 1, "the array does not end")


def _decoded(path: Path, text: str, at: int, part: str, begin: int) -> tuple[Any, int]:
    """The value that starts at `begin` of `part`, and the position after it; `at` is its position in `text`."""
    try:
        return _JSON.raw_decode(part, begin)
    except json.JSONDecodeError as error:
        raise _wrong_json(path, text, at + error.pos - begin, error.msg) from None
    except RecursionError:
        raise _wrong_json(path, text, at, "nested too deeply") from None
    except ValueError as error:
        raise _wrong_json(path, text, at, str(error)) from None


def _wrong_json(path: Path, text: str, at: int, problem: str) -> ValueError:
    line = text.count("\n", 0, min(at, len(text))) + 1
    return ValueError(f"{path}, line {line}: {problem}")


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


# Parquet


def _of_parquet(path: Path, key: str) -> Iterator[Record]:
    try:
        table = pq.read_table(path) if path.is_dir() else pq.ParquetFile(path).read()
        _check_column(path, key, table.column_names)
        plain = table.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in table.schema]))
    except pa.ArrowException as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    for batch in plain.to_batches():
        for row in batch.to_pylist():
            found = row[key]
            if isinstance(found, (dict, list)):
                raise ValueError(f"{path}: '{key}' is a list or an object, which cannot be a key")
            yield Record(_key_bytes(found), json.dumps(_plain(row), ensure_ascii=False))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type to cast to: text for types that JSON lacks (times with all digits, decimals), also when nested."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) else kind


def _plain(value: Any) -> Any:
    """A value for JSON: bytes that are not text become base64, numbers that are not finite their names."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _key_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode("utf-8", "surrogatepass")
