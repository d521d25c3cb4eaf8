"""The source's columns, which must equal Spark's in every detail: Spark compares Arrow schemas exactly."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from brokerd.datasource.schema import arrow_schema, source_schema, spark_ddl
from brokerd.datasource.source import BrokerdDataSource
from brokerd.errors import ConfigError

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_SPARK_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(HEADER),
}


@pytest.mark.parametrize("include_headers", [False, True])
def test_arrow_schema_is_what_spark_makes_of_the_columns(include_headers: bool) -> None:
    spark_schema = StructType(
        [StructField(name, _SPARK_TYPES[name]) for name in source_schema(include_headers=include_headers).names]
    )
    columns = [(field.name, field.dataType.simpleString(), field.nullable) for field in spark_schema.fields]
    assert to_arrow_schema(spark_schema, timezone="UTC").equals(arrow_schema(columns))


@pytest.mark.parametrize("include_headers", [False, True])
def test_ddl_names_the_same_types(include_headers: bool) -> None:
    names = source_schema(include_headers=include_headers).names
    assert spark_ddl(include_headers=include_headers) == ", ".join(f"{name} {_SPARK_TYPES[name].simpleString()}" for name in names)


def test_headers_are_the_last_column_or_none_at_all() -> None:
    columns = "key value topic partition offset timestamp timestampType"
    assert source_schema(include_headers=False).names == columns.split()
    assert source_schema(include_headers=True).names[-1] == "headers"


def test_a_users_own_schema_prunes_and_reorders() -> None:
    schema = arrow_schema([("offset", "bigint", False), ("value", "binary", True)])
    assert schema.equals(pa.schema([pa.field("offset", pa.int64(), nullable=False), pa.field("value", pa.binary())]))


@pytest.mark.parametrize(
    "column",
    [
        StructField("key", BinaryType(), nullable=False),
        StructField("value", BinaryType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("headers", ArrayType(HEADER), nullable=False),
        StructField("headers", ArrayType(HEADER, containsNull=False)),
        StructField("headers", ArrayType(StructType([StructField("key", StringType(), nullable=False), HEADER["value"]]))),
    ],
)
def test_not_null_is_refused_where_records_may_lack_a_value(column: StructField) -> None:
    source = BrokerdDataSource({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "includeHeaders": "true"})
    with pytest.raises(ConfigError, match=rf"column '{column.name}' .* is NOT NULL, but records may lack it: leave"):
        source.streamReader(StructType([column]))


def test_a_users_own_schema_has_a_column() -> None:
    source = BrokerdDataSource({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    for make in (source.reader, source.streamReader):
        with pytest.raises(ConfigError, match=r"\.schema\(\.\.\.\) names no column, .*: name one, such as offset"):
            make(StructType([]))


def test_a_users_own_schema_cannot_invent_or_cast() -> None:
    with pytest.raises(ConfigError, match=r"column 'id' in \.schema\(\.\.\.\) is not one of the source's: key, value"):
        arrow_schema([("id", "bigint", True)])
    with pytest.raises(ConfigError, match=r"column 'value' in \.schema\(\.\.\.\) is string, but the source's is binary"):
        arrow_schema([("value", "string", True)])
