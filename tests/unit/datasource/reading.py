"""Helpers for the readers' tests: options for the fake broker, and rows. No assertions here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from brokerd.datasource.options import SourceOptions, parse_source_options
from brokerd.datasource.schema import source_schema
from tests.support.fake_broker import FakeBroker

ALL_COLUMNS = source_schema(include_headers=False)


def options_for(broker: FakeBroker, *, is_streaming: bool, **options: Any) -> SourceOptions:
    """Source options with short retries and waits."""
    short = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "2", "fetch.max.wait.ms": "10", "default.api.timeout.ms": "60000"}
    given = {name: str(value) for name, value in options.items()}
    if not {"subscribe", "subscribePattern", "assign"} & set(given):
        given["subscribe"] = "events"
    return parse_source_options({"bootstrap.servers": f"127.0.0.1:{broker.port}", **short, **given}, is_streaming=is_streaming)


def table_of(arrow_batches: Sequence[pa.RecordBatch]) -> dict[str, list[Any]]:
    """All rows, by column."""
    return pa.Table.from_batches(arrow_batches).to_pydict() if arrow_batches else {}
