"""The daemon's resident set while gigabytes pass through it, written and followed at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from benchmarks.environment import ROWS_PER_BATCH, Broker, arrow_batches
from brokerd import Producer
from brokerd.client.fetching.fetcher import PartitionFetcher
from brokerd.client.fetching.positions import FetchRange
from brokerd.config.client import ConsumerConfig
from brokerd.ids import TopicIdPartition

SAMPLE_INTERVAL_S = 0.05
GOAL_BYTES = 400_000_000
VALUE_BYTES = 1_000


class _Sampler(threading.Thread):
    """Notes the resident set of the daemon until it is told to stop."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._is_over = threading.Event()
        self.samples: list[int] = []

    def run(self) -> None:
        while not self._is_over.wait(SAMPLE_INTERVAL_S):
            self.samples.append(self._broker.child.resident_bytes())

    def finish(self) -> None:
        """Ends it."""
        self._is_over.set()
        self.join()


def run(broker: Broker, *, gigabytes: float, partitions: int, say: Callable[[str], None]) -> dict[str, object]:
    """Writes and reads `gigabytes` of values; returns what the samples say, in bytes."""
    topic = broker.new_topic(partitions)
    rows = int(gigabytes * 1e9 / VALUE_BYTES) // ROWS_PER_BATCH * ROWS_PER_BATCH
    sampler = _Sampler(broker)
    idle_bytes = broker.child.resident_bytes()
    sampler.start()
    start = time.perf_counter()
    reader = threading.Thread(target=_follow, args=(broker, topic, partitions, rows))
    reader.start()
    producer = Producer({"bootstrap.servers": broker.address})
    for arrow_batch in arrow_batches(rows, VALUE_BYTES):
        producer.send_batch(topic, arrow_batch)
    producer.flush()
    producer.close()
    written_s = time.perf_counter() - start
    reader.join()
    read_s = time.perf_counter() - start
    sampler.finish()
    samples = sorted(sampler.samples)
    told: dict[str, object] = {
        "gigabytes": gigabytes,
        "written_s": round(written_s, 1),
        "read_s": round(read_s, 1),
        "samples": len(samples),
        "idle_bytes": idle_bytes,
        "median_bytes": samples[len(samples) // 2],
        "max_bytes": max(samples[-1], broker.child.resident_bytes("VmHWM")),
        "goal_bytes": GOAL_BYTES,
    }
    say(
        f"resident set of the daemon over {gigabytes} GB in {read_s:.0f} s: idle {idle_bytes / 1e6:.0f} MB, "
        f"median {samples[len(samples) // 2] / 1e6:.0f} MB, largest {samples[-1] / 1e6:.0f} MB "
        f"(goal: under {GOAL_BYTES / 1e6:.0f} MB)"
    )
    broker.delete_topic(topic)
    return told


def _follow(broker: Broker, topic: str, partitions: int, rows: int) -> None:
    """Reads until `rows` rows have come."""
    config = ConsumerConfig(bootstrap_servers=broker.address)
    with broker.client() as client:
        topic_id = client.metadata([topic]).topics[topic].topic_id
        ranges = [FetchRange(TopicIdPartition(topic_id, number), 0) for number in range(partitions)]
        seen = 0
        with PartitionFetcher(client, ranges, config) as fetcher:
            while seen < rows:
                batch = fetcher.next_batch()
                assert batch is not None
                seen += len(batch.offsets)
