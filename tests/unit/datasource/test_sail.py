"""Goal: Sail, which uses Arrow's schemas instead of Spark's, gets the source's columns and the same options, and an error for
unsupported operations. Method: call the class as Sail does, without Sail.
"""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

from brokerd.datasource.batch_reader import BrokerdBatchReader
from brokerd.datasource.sail import SailDataSource
from brokerd.datasource.schema import checked_schema, source_schema
from brokerd.errors import ConfigError

OPTIONS = {"bootstrap.servers": "127.0.0.1:9192", "subscribe": "t"}


def test_the_entry_point_leads_to_the_class() -> None:
    pyproject = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())
    (name, target), *others = pyproject["project"]["entry-points"]["pysail.datasources"].items()
    module, _, attribute = target.partition(":")
    assert (name, others) == (SailDataSource.name(), [])
    assert getattr(importlib.import_module(module), attribute) is SailDataSource


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_columns_are_those_of_spark_in_arrows_types(include_headers: bool) -> None:
    schema = SailDataSource({**OPTIONS, "includeHeaders": str(include_headers).lower()}).schema()
    assert schema == source_schema(include_headers=include_headers)
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert checked_schema(schema) == schema


def test_a_reader_takes_arrows_schema() -> None:
    source = SailDataSource({**OPTIONS, "startingOffsets": "-3"})
    assert isinstance(source.reader(source.schema()), BrokerdBatchReader)
    assert checked_schema(pa.schema([("value", pa.binary())])) == pa.schema([("value", pa.binary())])
    with pytest.raises(ConfigError, match="column 'value' is string, but the source's is binary: cast it in the query"):
        source.reader(pa.schema([("value", pa.string())]))
    with pytest.raises(ConfigError, match=r"startingOffset.*did you mean 'startingOffsets'"):
        SailDataSource({**OPTIONS, "startingOffset": "-3"}).schema()


def test_what_is_not_a_batch_read_is_refused() -> None:
    source = SailDataSource({"bootstrap.servers": "127.0.0.1:9192", "topic": "t"})
    with pytest.raises(ConfigError, match="through Sail brokerd is read in batches only"):
        source.writer(pa.schema([]), False)
    with pytest.raises(ConfigError, match="through Sail brokerd is read in batches only"):
        source.streamReader(pa.schema([]))
    with pytest.raises(ConfigError, match="through Sail brokerd is read in batches only"):
        source.streamWriter(pa.schema([]), False)
