"""Queries whose driver and broker are killed read each offset once and in order. `make source-runs` runs fifty rounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.groups import lag_of
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.producer import Producer
from tests.spark.exactly_once.victims import Driver
from tests.spark.source_runs.runs import run_rounds
from tests.support.daemon import DaemonProcess
from tests.support.wait import wait_until

RUNS = int(os.environ.get("BROKERD_TEST_RUNS", "5"))
SEED = int(os.environ.get("BROKERD_TEST_SEED", "1"))


@pytest.mark.long
@pytest.mark.timeout(36_000)
def test_each_offset_is_read_once_and_in_order_whoever_is_killed() -> None:
    assert run_rounds(SEED, RUNS, print) == RUNS


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_the_lag_of_a_query_whose_driver_is_killed_is_one_micro_batch_old_at_most(tmp_path: Path) -> None:
    records, limit, out, ways = 5_000, 20, tmp_path / "out", tmp_path / "ways"
    out.mkdir()
    ways.mkdir()
    driver = Driver("tests.spark.source_runs.job", tmp_path)
    with DaemonProcess(tmp_path / "data") as daemon, BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
        client.create_topic("t", 2)
        with Producer(ProducerConfig(bootstrap_servers=daemon.address)) as producer:
            for number in range(records):
                producer.send("t", str(number), partition=number % 2)
        options = {"bootstrap.servers": daemon.address, "subscribe": "t", "startingOffsets": "earliest", "group.id": "g"}
        options["maxOffsetsPerTrigger"] = str(limit)
        try:
            query = {"options": options, "copy": "", "checkpoint": str(tmp_path / "checkpoint"), "out": str(out)}
            driver.start(queries=[query], ways=str(ways))
            wait_until(lambda: len(list(out.glob("*.jsonl"))) >= 5 or driver.exit_code is not None, deadline_s=600)
            assert driver.exit_code is None, driver.said()
        finally:
            driver.kill()
        read = sum(len(path.read_text().splitlines()) for path in out.glob("*.jsonl"))
        lag = sum(lag_of(partition) for partition in client.describe_group("g").partitions)
        assert records - read <= lag <= records - read + limit
