"""The columns that a DataFrame may have, and the conversion of its Arrow batches to records. Works by column, never by row.

Types are checked once, on the driver, against Spark's schema. Arrow types are not checked: nullability, time zones and list item
names vary with Spark's settings, and the producer casts. The module also computes the sums over all rows of a transaction, by which
the broker tells a replay from another batch; they depend neither on the order of rows nor on how batches divide them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError, InvalidRecordError
from brokerd.ids import topic_name_problem
from brokerd.producer import columns
from brokerd.producer.core.membership import HASH_SUM_MODULUS, Totals
from brokerd.producer.core.partitioner import Int32s, murmur2
from brokerd.record.schema import HEADERS, KEY, SCHEMA_0, VALUE

_TEXT = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"

# Column -> the types it may have, in Spark's simpleString notation.
ACCEPTED: dict[str, tuple[str, ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint", "bigint"),
    "timestamp": ("timestamp",),
}

# Columns of the source that no writer can set: ignored, so that one topic can be copied to another unchanged.
SOURCE_ONLY = ("offset", "timestampType")

UNSET_PARTITION = -1

_ACCEPTED_TEXT = (
    "value (string or binary) is required; key (string or binary), headers, topic, partition (int) and timestamp are optional"
)


class TopicRows(NamedTuple):
    """Rows of one topic, in Spark's order."""

    topic: str
    records: pa.RecordBatch  # key, value, headers and timestamp, as far as present, in Spark's types
    partitions: npt.NDArray[np.int32] | None  # -1 = chosen by the partitioner; None = all rows are
    key_hashes: npt.NDArray[np.int32] | None = None  # the partitioner's hashes, if computed already


def check_columns(columns: Sequence[tuple[str, str]], *, topic: str | None, include_headers: bool) -> None:
    """Checks that a DataFrame's columns, as (name, Spark type), can become records. Raises ConfigError naming the column.

    `topic` is the sink's option: without it each row must name its topic. Unlike Spark's Kafka sink, which ignores unknown columns,
    this refuses them: the data of a mistyped `Key` would be lost silently.
    """
    names = [name for name, _ in columns]
    if "value" not in names:
        raise ConfigError(f"column 'value' is missing (found: {_listed(names)}); {_ACCEPTED_TEXT}")
    for name, kind in columns:
        if name in SOURCE_ONLY:
            continue
        if name not in ACCEPTED:
            raise ConfigError(
                f"column '{name}' is not one that the sink writes{_hint(name)}; drop it, or rename it: {_ACCEPTED_TEXT}"
            )
        if _plain_type(kind) not in ACCEPTED[name]:
            raise ConfigError(f"column '{name}' is {kind}, but must be {' or '.join(ACCEPTED[name])}; {_cast_text(name)}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"column '{twice}' is given twice: keep one")
    if "headers" in names and not include_headers:
        raise ConfigError("column 'headers' is not written with option includeHeaders=false: remove the option, or drop the column")
    if topic is None and "topic" not in names:
        raise ConfigError("no topic to write to: set option 'topic', or add a column 'topic'")


def to_records(
    arrow_batch: pa.RecordBatch, *, topic: str | None, key_hashes: npt.NDArray[np.int32] | None = None
) -> Iterator[TopicRows]:
    """Yields the rows of one Arrow batch as records, by topic in order of first appearance. Raises InvalidRecordError.

    Columns are passed on unchanged: the producer casts text to bytes, and gives rows without a timestamp the current time.
    """
    if arrow_batch.num_rows == 0:
        return
    names = arrow_batch.schema.names
    records = arrow_batch.select([name for name in SCHEMA_0.names if name in names])
    if HEADERS.name in names:
        _check_headers(arrow_batch.column(HEADERS.name))
    partitions = _partition_column(arrow_batch.column("partition")) if "partition" in names else None
    if topic is not None:
        yield TopicRows(topic, records, partitions, key_hashes)
    else:
        yield from _by_topic(arrow_batch.column("topic"), records, partitions, key_hashes)


def _by_topic(
    topics: pa.Array,
    records: pa.RecordBatch,
    partitions: npt.NDArray[np.int32] | None,
    key_hashes: npt.NDArray[np.int32] | None,
) -> Iterator[TopicRows]:
    if topics.null_count:
        raise InvalidRecordError(
            f"column 'topic' is null in {topics.null_count} of {len(topics)} rows: every row needs a topic, or set option 'topic'"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()  # one entry per topic, not per row
    for name in names:
        problem = topic_name_problem(name)
        if problem:  # the producer would wait max.block.ms for the topic to appear
            raise InvalidRecordError(f"column 'topic' holds '{name}', which is not a topic's name: {problem}")
    if len(names) == 1:
        yield TopicRows(names[0], records, partitions, key_hashes)
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        chosen = np.flatnonzero(codes == code)
        taken = [None if column is None else column[chosen] for column in (partitions, key_hashes)]
        yield TopicRows(name, records.take(pa.array(chosen)), *taken)


def _check_headers(headers: pa.Array) -> None:
    entries = headers.flatten()  # of this slice, without elements hidden by null lists
    if entries.null_count or pc.struct_field(entries, 0).null_count:
        raise InvalidRecordError(
            "a header or its key is null, but every header needs a key: filter such entries out of column 'headers'"
        )


def _partition_column(column: pa.Array) -> npt.NDArray[np.int32] | None:
    if column.null_count == len(column):
        return None
    lowest, highest = (pc.min(column).as_py(), pc.max(column).as_py())
    if lowest < 0 or highest > np.iinfo(np.int32).max:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRecordError(f"column 'partition' holds {wrong}, which is not a partition: partitions are numbered from 0")
    chosen: npt.NDArray[np.int32] = pc.fill_null(column.cast(pa.int32()), UNSET_PARTITION).to_numpy()
    return chosen


def _plain_type(kind: str) -> str:
    return "string" if kind.startswith(("varchar(", "char(")) else kind


def _hint(name: str) -> str:
    hint = did_you_mean(name, ACCEPTED, otherwise="")
    return f" ({hint})" if hint else ""


def _cast_text(name: str) -> str:
    if name in ("key", "value"):
        return f"cast it, such as CAST({name} AS STRING) or to_json(struct(*))"
    return f"cast it to {ACCEPTED[name][0]}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# The hash of a null key: a number beyond 32 bits, which no murmur2 equals, so that a null key differs from an empty one.
_NULL_KEY_HASH = 0x9E3779B97F4A7C15


class RowTotals:
    """Accumulates the sums over rows."""

    def __init__(self) -> None:
        self.totals = Totals()

    def add(self, rows: pa.RecordBatch) -> Int32s | None:
        """Adds rows with the columns key (optional) and value, in the types that Producer.send_batch takes. Returns the hashes of
        the keys, to be passed to it as `key_hashes`, or None without keys. Raises TypeError naming a column of a wrong type.
        """
        count = rows.num_rows
        value = columns.bytes_column(rows, VALUE)
        key = columns.bytes_column(rows, KEY) if KEY.name in rows.schema.names else None
        hashes = murmur2(key) if key is not None and key.null_count < count else None
        self.totals = self.totals.plus(Totals(count, _bytes_in(key), _bytes_in(value), _hash_sum(key, hashes, count)))
        return hashes


def _hash_sum(key: pa.Array | None, hashes: Int32s | None, count: int) -> int:
    if key is None or hashes is None:
        return count * _NULL_KEY_HASH % HASH_SUM_MODULUS
    total = int(hashes.view(np.uint32).sum(dtype=np.uint64))
    if key.null_count:
        empty_hash = int(murmur2(pa.array([b""])).view(np.uint32)[0])  # murmur2 hashes a null key as an empty one
        total += key.null_count * (_NULL_KEY_HASH - empty_hash)
    return total % HASH_SUM_MODULUS


def _bytes_in(column: pa.Array | None) -> int:
    if column is None or not len(column):
        return 0
    if not column.null_count:
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        return int(offsets[-1]) - int(offsets[0])
    return pc.sum(pc.binary_length(column)).as_py() or 0
