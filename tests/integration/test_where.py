"""Goal: option where reads exactly the rows that it describes, and does not fetch those that it excludes. Method: both readers,
driven as Spark does, against a daemon that counts the bytes sent.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.datasource.batch_reader import BrokerdBatchReader
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import DataLossError
from brokerd.ids import TopicIdPartition
from tests.support.daemon import RunningDaemon, running_daemon
from tests.unit.datasource.reading import ALL_COLUMNS

BEGIN_MS = 1_767_225_600_000  # 2026-01-01 00:00:00Z
RECORDS = 600
PARTITIONS = 3
PER_MINUTE = 10  # records of one partition


class Topic:
    """A record of 2 kB every six seconds in each partition, one per batch; some are up to half a minute late or early."""

    def __init__(self, daemon: RunningDaemon, client: BlockingClient) -> None:
        rng = random.Random(7)
        self.daemon = daemon
        self.client = client
        self.topic_id = client.create_topic("t", PARTITIONS)
        self.times_ms = {
            (partition, offset): BEGIN_MS + offset * 60_000 // PER_MINUTE + rng.randrange(-30_000, 30_000)
            for partition in range(PARTITIONS)
            for offset in range(RECORDS)
        }
        with Producer(bootstrap_servers=daemon.address, linger_ms=0, batch_size=16_384) as producer:
            for (partition, _), time_ms in self.times_ms.items():
                producer.send("t", bytes(2_000), partition=partition, timestamp=time_ms)

    @property
    def bytes_out(self) -> int:
        return self.daemon.daemon.broker.counters.topics[self.topic_id].bytes_out

    def batch(self, where: str, **options: str) -> tuple[list[tuple[int, int]], int]:
        """(partition, offset) of the rows, and the number of bytes fetched."""
        given = {"bootstrap.servers": self.daemon.address, "subscribe": "t", "where": where, **options}
        reader = BrokerdBatchReader(parse_source_options(given, is_streaming=False), ALL_COLUMNS, SystemClock())
        before = self.bytes_out
        return rows_of(reader, reader.partitions()), self.bytes_out - before

    def stream(self, where: str, **options: str) -> tuple[list[tuple[int, int]], int, dict[str, Any]]:
        """The same for a stream up to now, and its end offsets."""
        given = {
            "bootstrap.servers": self.daemon.address,
            "subscribe": "t",
            "startingOffsets": "earliest",
            "where": where,
            **options,
        }
        reader = BrokerdStreamReader(parse_source_options(given, is_streaming=True), ALL_COLUMNS, SystemClock())
        reader.prepareForTriggerAvailableNow()
        before, start = self.bytes_out, INITIAL.to_json()
        rows: list[tuple[int, int]] = []
        while True:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                return sorted(rows), self.bytes_out - before, end["t"]
            planned = reader.partitions(start, end)
            rows += keys_of(reader.getCache(start, end)) if hasattr(reader, "getCache") else rows_of(reader, planned)
            start = end


def rows_of(reader: Any, partitions: Any) -> list[tuple[int, int]]:
    return keys_of(batch for partition in partitions for batch in reader.read(partition))


def keys_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        (number, offset)
        for batch in batches
        for number, offset in zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    ]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with (
        running_daemon(tmp_path_factory.mktemp("where") / "data") as daemon,
        BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client,
    ):
        yield Topic(daemon, client)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("where", "holds", "most"),
    [
        ("partition = 1", lambda partition, offset, time: partition == 1, 1 / 3),
        ("partition IN (0, 2) AND offset >= 590", lambda partition, offset, time: partition != 1 and offset >= 590, 0.04),
        ("offset BETWEEN 100 AND 129", lambda partition, offset, time: 100 <= offset <= 129, 0.08),
        ("timestamp >= '2026-01-01 00:57:00Z'", lambda partition, offset, time: time >= 57 * 60_000, 0.08),
        (
            "timestamp BETWEEN '2026-01-01 00:50:00Z' AND '2026-01-01 00:52:00Z' AND partition = 0",
            lambda partition, offset, time: partition == 0 and 50 * 60_000 <= time <= 52 * 60_000,
            0.08,
        ),
        ("timestamp >= '2026-01-02 00:00:00Z'", lambda partition, offset, time: False, 0),
        ("timestamp < '2026-01-01 00:01:00Z'", lambda partition, offset, time: time < 60_000, 1),
        ("topic = 'u'", lambda partition, offset, time: False, 0),
        ("offset IN (5, 7)", lambda partition, offset, time: offset in (5, 7), 0.03),
    ],
)
def test_rows_are_those_described_and_little_else_is_fetched(
    topic: Topic, where: str, holds: Any, most: float, is_stream: bool
) -> None:
    everything, all_bytes = topic.batch("offset >= 0")
    assert len(everything) == PARTITIONS * RECORDS
    if is_stream:
        rows, size_bytes, end = topic.stream(where)
        assert end == {str(number): RECORDS for number in range(PARTITIONS)}, "what is left out counts as read"
    else:
        rows, size_bytes = topic.batch(where)
    assert rows == [key for key, time_ms in topic.times_ms.items() if holds(*key, time_ms - BEGIN_MS)]
    assert size_bytes <= most * all_bytes * 1.01


def test_a_range_in_time_with_its_end_moves_little(topic: Topic) -> None:
    where = "timestamp >= '2026-01-01 00:20:00Z' AND timestamp < '2026-01-01 00:22:00Z'"
    read, size_bytes = topic.batch(where)
    ended, few_bytes = topic.batch(where, endingTimestamp=str(BEGIN_MS + 23 * 60_000))
    assert ended == read
    assert few_bytes < size_bytes / 5


def test_rows_older_than_their_transactions_are_found_by_their_times(topic: Topic) -> None:
    """As in a copied topic, whose rows keep their times."""
    topic.client.create_topic("copy", 1)
    with Producer(bootstrap_servers=topic.daemon.address, transactional_id="copy") as producer:
        for version in range(5):
            with producer.transaction(version):
                for number in range(10 * version, 10 * version + 10):
                    producer.send("copy", b"v", timestamp=BEGIN_MS + number)
    bounds = {"startingTimestamp": str(BEGIN_MS + 15), "endingTimestamp": str(BEGIN_MS + 35)}
    given = {"bootstrap.servers": topic.daemon.address, "subscribe": "copy", **bounds}
    reader = BrokerdBatchReader(parse_source_options(given, is_streaming=False), ALL_COLUMNS, SystemClock())
    rows = [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]
    assert [row["timestamp"].timestamp() * 1_000 - BEGIN_MS for row in rows] == list(range(15, 35))


def test_limits_count_what_is_read(topic: Topic) -> None:
    rows, _, end = topic.stream("partition = 2", maxOffsetsPerTrigger="100", maxBytesPerTrigger="500000")
    assert rows == [(2, offset) for offset in range(RECORDS)]
    assert end == {"0": RECORDS, "1": RECORDS, "2": RECORDS}


def test_a_limit_passes_over_what_is_left_out_at_once(topic: Topic) -> None:
    given = {"bootstrap.servers": topic.daemon.address, "subscribe": "t", "startingOffsets": "earliest"}
    options = parse_source_options({**given, "where": "partition = 2", "maxOffsetsPerTrigger": "100"}, is_streaming=True)
    reader = BrokerdStreamReader(options, ALL_COLUMNS, SystemClock())
    end = reader.latestOffset(INITIAL.to_json(), reader.getDefaultReadLimit())
    assert end["t"] == {"0": RECORDS, "1": RECORDS, "2": 100}
    assert reader.latestOffset(INITIAL.to_json(), ReadAllAvailable())["t"]["2"] == RECORDS


@pytest.mark.parametrize("kept_from", [70, 100])
def test_retention_between_plan_and_read_is_told_although_a_time_cuts(
    topic: Topic, kept_from: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The removed records include some of the wanted time, which the remaining ones do not reveal."""
    name = f"gone{kept_from}"
    client = topic.client
    tp = TopicIdPartition(client.create_topic(name, 1), 0)
    with Producer(bootstrap_servers=topic.daemon.address, linger_ms=0) as producer:
        for number in range(100):
            producer.send(name, b"v", timestamp=BEGIN_MS + (60_000 if 50 <= number < 80 else 0))
    given = {"bootstrap.servers": topic.daemon.address, "subscribe": name, "startingOffsets": "earliest"}
    where = "timestamp >= '2026-01-01 00:01:00Z'"

    def reader(**options: str) -> BrokerdStreamReader:
        return BrokerdStreamReader(
            parse_source_options({**given, "where": where, **options}, is_streaming=True), ALL_COLUMNS, SystemClock()
        )

    start = INITIAL.to_json()
    end = reader().latestOffset(start, ReadAllAvailable())
    client.delete_records({tp: kept_from})
    with pytest.raises(DataLossError, match=f"{kept_from} records of {name}-0 are gone"):
        rows_of(reader(), reader().partitions(start, end))
    lenient = reader(failOnDataLoss="false")
    assert rows_of(lenient, lenient.partitions(start, end)) == [(0, offset) for offset in range(kept_from, 80)]
    assert f"{kept_from} records of {name}-0 are gone" in caplog.text
