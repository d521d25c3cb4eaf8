"""Goal: the client reads from a real broker exactly what was written, through restarts and long polls, and every call of the
contract works. Method: an in-process daemon; a real process where it is killed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.leases import lease_client
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.config.client import ConsumerConfig
from brokerd.errors import OffsetOutOfRangeError, UnknownTopicIdError, UnknownTopicOrPartitionError, WireError
from brokerd.ids import NO_PRODUCER, TopicIdPartition, TopicPartition
from brokerd.testing import Broker
from brokerd.wire.v1.topics_pb2 import TopicDescription
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.records import key_values
from tests.support.wait import DEADLINE_S

FIRST_EPOCH = 1  # of a node's first start
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("client") / "data") as daemon:
        yield daemon


@pytest.fixture
def config(daemon: RunningDaemon) -> ConsumerConfig:
    return ConsumerConfig(bootstrap_servers=daemon.address, max_partition_fetch_bytes=20_000)


@pytest.fixture
def client(config: ConsumerConfig) -> Iterator[BlockingClient]:
    with BlockingClient(config) as client:
        yield client


def write(address: str, topic: str, first: int, count: int, compression: str = "none") -> None:
    """Records whose value is their number as text, one ms apart."""
    values = [b"%d" % number for number in range(first, first + count)]
    with Producer(bootstrap_servers=address, batch_size=10_000, compression_type=compression) as producer:
        producer.send_batch(topic, key_values(values, timestamp_ms=FIRST_MS + first)).result(DEADLINE_S)


def read(client: BlockingClient, config: ConsumerConfig, ranges: list[FetchRange]) -> list[int]:
    """Values, which are their offsets too."""
    numbers: list[int] = []
    with PartitionFetcher(client, ranges, config) as fetcher:
        for batch in fetcher:
            values = [int(value) for value in batch.arrow_batch.column("value").to_pylist()]
            assert values == batch.offsets.to_pylist()
            numbers.extend(values)
    return numbers


def created(client: BlockingClient, name: str) -> TopicIdPartition:
    return TopicIdPartition(client.create_topic(name, 1), 0)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_range_is_read_exactly(daemon: RunningDaemon, client: BlockingClient, config: ConsumerConfig, compression: str) -> None:
    tp = created(client, f"exact-{compression}")
    write(daemon.address, f"exact-{compression}", 0, 20_000, compression)
    assert read(client, config, [FetchRange(tp, 123, 19_877)]) == list(range(123, 19_877))
    assert read(client, config, [FetchRange(tp, 0, 20_000)]) == list(range(20_000))


def test_offsets_of_every_kind(daemon: RunningDaemon, client: BlockingClient) -> None:
    tp = created(client, "offsets")
    write(daemon.address, "offsets", 0, 100)
    name = TopicPartition("offsets", 0)
    assert client.list_offsets_by_name({name: OffsetSpec.EARLIEST})[name] == OffsetAndTimestamp(0, leader_epoch=FIRST_EPOCH)
    latest = client.list_offsets({tp: OffsetSpec.LATEST})[tp]
    assert not isinstance(latest, WireError)
    assert latest[:3] == (100, -1, FIRST_EPOCH)
    found = client.list_offsets({tp: OffsetSpec.MAX_TIMESTAMP})[tp]
    assert not isinstance(found, WireError)
    assert found.timestamp == FIRST_MS + 99
    by_time = client.list_offsets({tp: FIRST_MS})[tp]
    assert not isinstance(by_time, WireError)
    assert by_time.offset == 0
    assert client.list_offsets({tp: FIRST_MS + 1_000})[tp] == OffsetAndTimestamp(-1)
    assert client.delete_records({tp: 40}) == {tp: 40}
    earliest = client.list_offsets({tp: OffsetSpec.EARLIEST})[tp]
    assert not isinstance(earliest, WireError)
    assert earliest[:3] == (40, -1, FIRST_EPOCH)


def test_deleted_records_are_told_with_the_first_offset_that_is_left(
    daemon: RunningDaemon, client: BlockingClient, config: ConsumerConfig
) -> None:
    tp = created(client, "cut")
    write(daemon.address, "cut", 0, 50)
    client.delete_records({tp: 30})
    with pytest.raises(OffsetOutOfRangeError) as raised:
        read(client, config, [FetchRange(tp, 10, 50)])
    assert raised.value.log_start_offset == 30
    assert read(client, config, [FetchRange(tp, 30, 50)]) == list(range(30, 50))


def test_topic_that_was_created_anew_is_not_read_under_its_old_id(
    daemon: RunningDaemon, client: BlockingClient, config: ConsumerConfig
) -> None:
    old = created(client, "renewed")
    assert client.delete_topics(["renewed"]) == {"renewed": old.topic_id}
    new = created(client, "renewed")
    write(daemon.address, "renewed", 0, 5)
    with pytest.raises(UnknownTopicIdError):
        read(client, config, [FetchRange(old, 0, 5)])
    assert read(client, config, [FetchRange(new, 0, 5)]) == list(range(5))
    assert isinstance(client.metadata(["gone"]).errors["gone"], UnknownTopicOrPartitionError)


def test_long_poll_is_woken_by_a_record(daemon: RunningDaemon, client: BlockingClient, config: ConsumerConfig) -> None:
    tp = created(client, "poll")
    patient = ConsumerConfig(bootstrap_servers=config.bootstrap_servers, fetch_max_wait_ms=30_000)
    with PartitionFetcher(client, [FetchRange(tp, 0, 1)], patient) as fetcher:
        writer = threading.Thread(target=write, args=(daemon.address, "poll", 0, 1))
        writer.start()
        assert sum(batch.record_count for batch in fetcher) == 1
        writer.join()


def test_describe_alter_and_grow(daemon: RunningDaemon, client: BlockingClient) -> None:
    client.create_topic("grown", 1, {"retention.ms": "5000"})
    client.create_partitions("grown", 3)
    client.alter_topic_configs("grown", set_={"segment.bytes": "8192"}, unset=["retention.ms"])
    described = client.describe_topics(["grown"])["grown"]
    assert isinstance(described, TopicDescription)
    assert len(described.partitions) == 3
    assert {entry.name: entry.value for entry in described.configs if not entry.is_default} == {"segment.bytes": "8192"}
    assert client.metadata(["grown"]).topic("grown").partition_count == 3


def test_server_info_and_producer_ids(client: BlockingClient) -> None:
    info = client.server_info()
    assert {limit.name: limit.value for limit in info.limits}["fetch.max.bytes"] > 0
    granted = client.init_producer_id(NO_PRODUCER)
    raised = client.init_producer_id(granted)
    assert raised == (granted.producer_id, granted.epoch + 1)


def test_many_readers_share_one_leased_client(daemon: RunningDaemon, client: BlockingClient, config: ConsumerConfig) -> None:
    tp = created(client, "shared")
    write(daemon.address, "shared", 0, 5_000)
    results: list[list[int]] = []

    def reader(first: int) -> None:
        with lease_client(config) as leased:
            results.append(read(leased, config, [FetchRange(tp, first, first + 1_000)]))

    threads = [threading.Thread(target=reader, args=(first,)) for first in range(0, 5_000, 500) if first <= 4_000]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [list(range(first, first + 1_000)) for first in range(0, 4_001, 500)]


def test_reader_rides_over_killed_brokers() -> None:
    with Broker() as broker:
        servers = broker.bootstrap_servers
        config = ConsumerConfig(bootstrap_servers=servers, max_partition_fetch_bytes=1, fetch_max_wait_ms=100)
        with BlockingClient(config) as client:
            tp = created(client, "t")
            write(servers, "t", 0, 20_000)
            numbers: list[int] = []
            kills = 0
            with PartitionFetcher(client, [FetchRange(tp, 0, 20_000)], config) as fetcher:
                for batch in fetcher:
                    numbers.extend(batch.offsets.to_pylist())
                    if len(numbers) > 8_000 * (kills + 1):
                        kills += 1
                        broker.kill()
                        broker.start()
    assert numbers == list(range(20_000))
    assert kills == 2
