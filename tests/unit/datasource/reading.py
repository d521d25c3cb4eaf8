"""Shared by the readers' tests: a topic in the fake broker, and options that reach it. No assertions here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from brokerd.datasource.options import SourceOptions, parse_source_options
from brokerd.datasource.schema import source_schema
from tests.support.fake_broker import FakeBroker, Partition
from tests.support.records import key_values, new_batch

ALL_COLUMNS = source_schema(include_headers=False)


def fill(partition: Partition, counts: Sequence[int], *, value_bytes: int = 0, is_log_append_time: bool = False) -> None:
    """Batches of so many records; each value is its offset as text, padded to `value_bytes`."""
    for count in counts:
        first = partition.end_offset
        values = [(b"%d" % (first + number)).ljust(value_bytes, b".") for number in range(count)]
        partition.put(new_batch(key_values(values), tp=partition.tp), is_log_append_time=is_log_append_time)


def options_for(broker: FakeBroker, *, is_streaming: bool, **options: Any) -> SourceOptions:
    """Source options; retries and waits are short."""
    short = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "2", "fetch.max.wait.ms": "10", "default.api.timeout.ms": "60000"}
    given = {name: str(value) for name, value in options.items()}
    if not {"subscribe", "subscribePattern", "assign"} & set(given):
        given["subscribe"] = "events"
    return parse_source_options({"bootstrap.servers": f"127.0.0.1:{broker.port}", **short, **given}, is_streaming=is_streaming)


def table_of(arrow_batches: Sequence[pa.RecordBatch]) -> dict[str, list[Any]]:
    """All rows, by column."""
    return pa.Table.from_batches(arrow_batches).to_pydict() if arrow_batches else {}
