"""Goal: a read begins at a group's offsets, or a given distance before the end, and a stream decides this once. Method: the
readers, driven as Spark does, against a daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd import Producer
from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.datasource.batch_reader import BrokerdBatchReader
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.options import SourceOptions, parse_source_options
from brokerd.datasource.planning import RangePartition
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import ConfigError, DataLossError
from brokerd.ids import TopicIdPartition
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.wait import wait_until

MINUTE_MS = 60_000


class Topic:
    """Ten records in partition 0 of topic t, one a minute until now, and none in partition 1."""

    def __init__(self, daemon: RunningDaemon, client: BlockingClient) -> None:
        self.daemon = daemon
        self.client = client
        self.topic_id = client.create_topic("t", 2)
        self.produce(10)

    def produce(self, count: int) -> None:
        with Producer(bootstrap_servers=self.daemon.address, linger_ms=0) as producer:
            for number in range(count):
                producer.send("t", b"x", partition=0, timestamp=START_WALL_MS - (9 - number) * MINUTE_MS).result()

    def commit(self, *offsets: int) -> None:
        committed = {TopicIdPartition(self.topic_id, number): OffsetAndMetadata(one) for number, one in enumerate(offsets)}
        assert self.client.commit_group_offsets("g", committed) == {}

    def options(self, *, is_streaming: bool, **given: Any) -> SourceOptions:
        own = {"bootstrap.servers": self.daemon.address, "subscribe": "t", "group.id": "g"}
        return parse_source_options({**own, **given}, is_streaming=is_streaming)

    def batch(self, start: str) -> list[tuple[int, int, int]]:
        """The ranges of a batch read."""
        reader = BrokerdBatchReader(self.options(is_streaming=False, startingOffsets=start), pa.schema([]), ManualClock())
        return ranges(reader.partitions())

    def stream(self, start: str) -> BrokerdStreamReader:
        return BrokerdStreamReader(self.options(is_streaming=True, startingOffsets=start), pa.schema([]), ManualClock())


def ranges(partitions: Any) -> list[tuple[int, int, int]]:
    offsets = [one.ranges[0] for one in partitions if isinstance(one, RangePartition)]
    return [(one.tp.partition, one.start_offset, one.until_offset) for one in offsets]


@pytest.fixture
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with (
        running_daemon(tmp_path_factory.mktemp("starts") / "data") as daemon,
        BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client,
    ):
        yield Topic(daemon, client)


def test_a_batch_read_begins_so_much_before_the_end(topic: Topic) -> None:
    assert topic.batch("-3") == [(0, 7, 10)]
    assert topic.batch("-1000") == [(0, 0, 10)]
    assert topic.batch("-4m") == [(0, 5, 10)]
    assert topic.batch("-1d") == [(0, 0, 10)]
    assert topic.batch("-1ms") == [(0, 9, 10)]


def test_markers_of_transactions_are_no_records(topic: Topic) -> None:
    with Producer(bootstrap_servers=topic.daemon.address, transactional_id="x") as producer:
        for _ in range(2):
            with producer.transaction():
                producer.send("t", b"x", partition=0)
    assert topic.batch("-3") == [(0, 9, 14)]


def test_a_read_begins_where_a_group_has_got_to(topic: Topic) -> None:
    with pytest.raises(ConfigError, match=r"group 'g' has no committed offset of these topics: correct group\.id"):
        topic.batch("committed")
    topic.client.commit_group_offsets("g", {TopicIdPartition(topic.topic_id, 1): OffsetAndMetadata(0)})
    assert topic.batch("committed") == [(0, 0, 10)], "what it has never read is all to be read"
    topic.commit(4)
    assert topic.batch("committed") == [(0, 4, 10)]
    topic.commit(10, 0)
    assert topic.batch("committed") == []


def test_a_group_whose_records_are_gone_is_data_loss(topic: Topic) -> None:
    topic.commit(4)
    topic.client.delete_records({TopicIdPartition(topic.topic_id, 0): 6})
    with pytest.raises(DataLossError, match="2 records of t-0 are gone, offsets 4 to 5"):
        topic.batch("committed")
    assert topic.batch("-1000") == [(0, 6, 10)]


@pytest.mark.parametrize("start", ["-3", "-2m", "committed"])
def test_a_stream_settles_its_start_once(topic: Topic, start: str) -> None:
    topic.commit(7)
    end = topic.stream(start).latestOffset(INITIAL.to_json(), ReadAllAvailable())
    topic.produce(10)
    topic.commit(9)
    replayed = topic.stream(start)
    assert ranges(replayed.partitions(replayed.initialOffset(), end)) == [(0, 7, 10)]


def test_a_stream_goes_on_where_it_was_recorded_though_its_checkpoint_is_lost(topic: Topic) -> None:
    first = topic.stream("earliest")
    first.prepareForTriggerAvailableNow()
    end = first.latestOffset(INITIAL.to_json(), ReadAllAvailable())
    assert first.latestOffset(end, ReadAllAvailable()) == end

    def is_recorded() -> bool:
        found = topic.client.group_offsets("g").get(TopicIdPartition(topic.topic_id, 0))
        return isinstance(found, OffsetAndMetadata) and found.offset == 10

    wait_until(is_recorded, what="the end is recorded")  # the query itself waits for this for a second at most
    topic.produce(2)
    second = topic.stream("committed")
    assert ranges(second.partitions(INITIAL.to_json(), second.latestOffset(INITIAL.to_json(), ReadAllAvailable()))) == [(0, 10, 12)]
