"""A user's pipeline with brokerd.testing: rows of a DataFrame go in, and the test waits for a continuous query.
examples/test_exactly_once.py, which test_guides.py runs, shows what happens when the broker is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from brokerd.testing import Broker, run_available

ORDERS = [(f"customer-{number % 7}", f"order {number}") for number in range(1_000)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that a test may break."""
    with Broker() as broker:
        yield broker


def billing(spark: SparkSession, broker: Broker, checkpoint: Path, **options: Any) -> Any:
    """A user's job: orders become bills."""
    return (
        spark.readStream.format("brokerd")
        .option("bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .load()
        .selectExpr("key", "concat('bill for ', cast(value as string)) as value")
        .writeStream.format("brokerd")
        .option("bootstrap.servers", broker.bootstrap_servers)
        .option("topic", "bills")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
    )


def bills_of(broker: Broker) -> list[str]:
    return sorted((row.value or b"").decode() for row in broker.topic("bills").rows())


EXPECTED = sorted(f"bill for {value}" for _, value in ORDERS)


def test_rows_go_in_as_a_dataframe_and_a_query_that_runs_on_is_waited_for(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    orders, _ = broker.create_topic("orders", partitions=4), broker.create_topic("bills", partitions=4)
    frame: DataFrame = spark.createDataFrame(ORDERS, "key string, value string")
    orders.append(frame)
    query = billing(spark, broker, tmp_path).start()
    try:
        assert run_available(query) is query
        assert bills_of(broker) == EXPECTED
        broker.restart()
        orders.append(frame.limit(1).collect())
        run_available(query)
        assert query.isActive
        assert len(bills_of(broker)) == len(EXPECTED) + 1
    finally:
        query.stop()
