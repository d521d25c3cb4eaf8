"""Tests in ten lines that a job is exactly once: its broker fails at the worst moments, and each row is there once.

    pip install '.[spark]' pytest
    python -m pytest examples/test_exactly_once.py

docs/testing.md explains it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokerd.testing import Broker, run_available

MOMENTS = {
    "before the commit": lambda broker: broker.kill_before("EndTransaction"),
    "after the commit, before its response": lambda broker: broker.kill_after("EndTransaction"),
    "the commit is done, its response is lost": lambda broker: broker.lose_response("EndTransaction"),
    "in the middle of the rows": lambda broker: broker.kill_after("Produce"),
}


def bill_orders(spark: SparkSession, servers: str, checkpoint: Path) -> Any:
    """The job under test, without its trigger: each order becomes a bill."""
    orders = (
        spark.readStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        orders.selectExpr("key", "concat('bill for ', CAST(value AS STRING)) AS value")
        .writeStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("topic", "bills")
        .option("checkpointLocation", str(checkpoint))
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session for all tests. Its workers run this Python; by default they would run the python3 of the PATH."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def brokerd_settings() -> Mapping[str, object]:
    """Topics with several partitions, as in production."""
    return {"num.partitions": 4}


@pytest.mark.parametrize("moment", MOMENTS)
def test_each_order_is_billed_once(spark: SparkSession, brokerd_broker: Broker, tmp_path: Path, moment: str) -> None:
    orders, bills = brokerd_broker.create_topic("orders"), brokerd_broker.create_topic("bills")
    orders.append((f"customer-{number % 7}", f"order {number}") for number in range(1000))
    MOMENTS[moment](brokerd_broker)
    run_available(bill_orders(spark, brokerd_broker.bootstrap_servers, tmp_path))
    assert Counter(row.value for row in bills.rows()) == Counter(f"bill for order {number}".encode() for number in range(1000))
