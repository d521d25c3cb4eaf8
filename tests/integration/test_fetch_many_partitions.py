"""Several partitions through one fetcher, when responses are too small for all of them or a request may not name all: no partition
is skipped, and no request refused."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetSpec
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.datasource.offset_reader import OffsetReader
from brokerd.datasource.options import parse_source_options
from brokerd.ids import TopicIdPartition
from tests.support.daemon import running_daemon
from tests.support.raw_client import LONG_MS
from tests.support.records import key_values
from tests.support.wait import DEADLINE_S

PARTITIONS = 8
ROWS = 400


@pytest.mark.parametrize("fetch_max_bytes", [1, 3_000, 20_000, 16_777_216])
def test_every_range_is_read_whole_whatever_fits_into_an_answer(fetch_max_bytes: int, tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as running:
        servers = running.address
        with BlockingClient(ClientConfig(bootstrap_servers=servers)) as client:
            topic_id = client.create_topic("t", PARTITIONS)
            with Producer({"bootstrap.servers": servers, "batch.size": "1500"}) as producer:
                for start in range(0, ROWS, 50):
                    rows = range(start, start + 50)
                    producer.send_batch("t", key_values([b"%05d" % row * 4 for row in rows], keys=[b"k%d" % row for row in rows]))
                producer.flush()
            tps = [TopicIdPartition(topic_id, number) for number in range(PARTITIONS)]
            ends = {end.partition: end.high_watermark for end in client.describe_topics(["t"])["t"].partitions}  # type: ignore[union-attr]
            assert sum(ends.values()) == ROWS
            config = ConsumerConfig(bootstrap_servers=servers, fetch_max_bytes=fetch_max_bytes)
            ranges = [FetchRange(tp, 0, ends[tp.partition]) for tp in tps]
            seen: Counter[int] = Counter()
            values: list[pa.Array] = []
            with PartitionFetcher(client, ranges, config) as fetcher:
                for fetched in fetcher:
                    assert fetched.offsets[0].as_py() == seen[fetched.tp.partition]
                    seen[fetched.tp.partition] += fetched.record_count
                    values.extend(fetched.arrow_batch.column("value").to_pylist())
            assert dict(seen) == {number: end for number, end in ends.items() if end}
            assert sorted(values) == [b"%05d" % row * 4 for row in range(ROWS)]


def test_more_partitions_than_a_request_may_name(tmp_path: Path) -> None:
    partitions, most = 25, 10
    with running_daemon(tmp_path / "data", max_partitions_per_request=most) as running:
        config = ConsumerConfig(bootstrap_servers=running.address)
        with BlockingClient(config) as client:
            topic_id = client.create_topic("t", partitions)
            tps = [TopicIdPartition(topic_id, number) for number in range(partitions)]
            with Producer({"bootstrap.servers": running.address}) as producer:
                for tp in tps:
                    producer.send("t", value=b"%d" % tp.partition, partition=tp.partition).result(DEADLINE_S)
            ends = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
            assert [ends[tp].offset for tp in tps] == [1] * partitions  # type: ignore[union-attr]
            with PartitionFetcher(client, [FetchRange(tp, 0, 1) for tp in tps], config) as fetcher:
                read = {fetched.tp.partition: fetched.arrow_batch.column("value").to_pylist() for fetched in fetcher}
            assert read == {number: [b"%d" % number] for number in range(partitions)}
            with (
                PartitionFetcher(client, [FetchRange(tp, 1) for tp in tps], config) as follower,
                Producer({"bootstrap.servers": running.address}) as producer,
            ):
                producer.send("t", value=b"late", partition=partitions - 1)
                producer.flush()
                fetched = follower.next_batch(timeout_ms=LONG_MS)
                assert fetched is not None
                assert fetched.tp == tps[-1]


def test_source_waits_for_records_of_more_partitions_than_a_request_may_name(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data", max_partitions_per_request=10) as running:
        options = parse_source_options({"bootstrap.servers": running.address, "subscribe": "t"}, is_streaming=True)
        with BlockingClient(options.consumer) as client, Producer({"bootstrap.servers": running.address}) as producer:
            client.create_topic("t", 25)
            reader = OffsetReader(client, options)
            snapshot = reader.snapshot()
            clock = SystemClock()
            started_ms = clock.monotonic_ms()
            reader.wait_for_records(snapshot, timeout_ms=200)
            assert clock.monotonic_ms() - started_ms >= 200
            with ThreadPoolExecutor(1) as waiter:
                waiting = waiter.submit(reader.wait_for_records, snapshot, timeout_ms=LONG_MS)
                producer.send("t", value=b"late", partition=24)
                producer.flush()
                waiting.result(DEADLINE_S)
