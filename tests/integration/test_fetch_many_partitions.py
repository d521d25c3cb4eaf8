"""Several partitions through one fetcher, with answers too small for all of them: nothing may be left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.fetcher import PartitionFetcher
from brokerd.client.positions import FetchRange
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.ids import TopicIdPartition
from tests.support.daemon import running_daemon
from tests.support.records import key_values

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
