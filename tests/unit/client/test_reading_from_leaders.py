"""Goal: a fault of one leader does not stop reading from the others, and its partitions are read again as soon as they have a
leader. Method: three nodes in memory, one of which dies, falls silent, refuses, is deposed or returns at another address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from brokerd import Consumer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    StorageError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    WireError,
)
from brokerd.ids import NO_LEADER
from tests.support.clock import ManualClock
from tests.support.fake_broker import FakeCluster, Partition
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S

DEADLINE_MS = int(DEADLINE_S * 1_000)


def config(cluster: FakeCluster, **settings: int) -> ConsumerConfig:
    """A configuration with a retry backoff of 1 to 2 ms."""
    return ConsumerConfig(
        **{
            "bootstrap_servers": cluster.servers,
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 2,
            "api_timeout_ms": 10_000,
            "fetch_max_wait_ms": 1,
            **settings,
        }  # type: ignore[arg-type]
    )


@contextlib.contextmanager
def reading(cluster: FakeCluster, partitions: Sequence[Partition], **settings: int) -> Iterator[PartitionFetcher]:
    """Reads partitions from their beginning."""
    given = config(cluster, **settings)
    with BlockingClient(given) as client, PartitionFetcher(client, [FetchRange(one.tp, 0) for one in partitions], given) as fetcher:
        yield fetcher


def put(partition: Partition) -> None:
    """Appends a record."""
    partition.put(new_batch(key_values([b"a"]), tp=partition.tp))


def lead(partition: Partition, node_id: int) -> None:
    """Elects a leader."""
    partition.leader, partition.leader_epoch = node_id, partition.leader_epoch + 1


def read(fetcher: PartitionFetcher, count: int) -> list[tuple[int, int]]:
    """Partition and offset of the next records."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        batch = fetcher.next_batch(DEADLINE_MS)
        assert batch is not None
        found += [(batch.tp.partition, offset) for offset in batch.offsets.to_pylist()]
    return found


@pytest.mark.parametrize("failure", ["dead", "silent", "without a leader"])
def test_others_are_read_while_one_leader_fails(cluster: FakeCluster, failure: str) -> None:
    partitions = cluster.create("t")
    with reading(cluster, partitions, request_timeout_ms=300 if failure == "silent" else 5_000) as fetcher:
        for one in partitions:
            put(one)
        assert sorted(read(fetcher, 3)) == [(0, 0), (1, 0), (2, 0)]
        if failure == "dead":
            cluster.stop(1)
        elif failure == "silent":
            cluster.nodes[1].is_silent = True
        else:
            lead(partitions[1], NO_LEADER)
        for offset in range(1, 4):
            put(partitions[0])
            put(partitions[2])
            assert sorted(read(fetcher, 2)) == [(0, offset), (2, offset)]
        put(partitions[1])
        lead(partitions[1], 0)
        assert read(fetcher, 1) == [(1, 1)]


def test_a_leader_that_is_silent_is_not_asked_who_leads(cluster: FakeCluster) -> None:
    (partition, *_) = cluster.create("t")
    with reading(cluster, [partition], request_timeout_ms=300) as fetcher:
        put(partition)
        read(fetcher, 1)
        cluster.nodes[0].is_silent = True
        asked = cluster.nodes[0].calls["Metadata"]
        lead(partition, 1)
        put(partition)
        assert read(fetcher, 1) == [(0, 1)]
        assert cluster.nodes[0].calls["Metadata"] == asked


def test_a_leader_that_comes_back_elsewhere_is_read_on(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    with reading(cluster, partitions) as fetcher:
        put(partitions[2])
        assert read(fetcher, 1) == [(2, 0)]
        cluster.stop(2)
        put(partitions[2])
        cluster.start(2)
        assert read(fetcher, 1) == [(2, 1)]


def test_a_reader_that_took_its_time_has_all_of_it_after_a_failure(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    settings, clock = config(cluster), ManualClock()
    with (
        BlockingClient(settings, clock) as client,
        PartitionFetcher(client, [FetchRange(partitions[2].tp, 0)], settings) as fetcher,
    ):
        put(partitions[2])
        assert read(fetcher, 1) == [(2, 0)]
        cluster.nodes[2].is_silent = True
        clock.advance(2 * settings.api_timeout_ms)
        cluster.stop(2)
        cluster.nodes[2].is_silent = False
        put(partitions[2])
        cluster.start(2)
        assert read(fetcher, 1) == [(2, 1)]


@pytest.mark.parametrize("error", [StorageError("disk"), NotLeaderError("not here"), FencedLeaderEpochError("old")])
def test_a_partition_that_is_refused_does_not_end_the_stream_of_the_others(cluster: FakeCluster, error: WireError) -> None:
    partitions = cluster.create("t")
    for one in partitions:
        one.leader = 1
        put(one)
    cluster.nodes[1].errors["Fetch"] = [error] * 3  # for the first partitions requested
    with reading(cluster, partitions) as fetcher:
        assert sorted(read(fetcher, 3)) == [(0, 0), (1, 0), (2, 0)]
    assert cluster.nodes[0].calls["Fetch"] == 0


def test_one_stream_to_a_leader_reads_what_moves_to_it(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    with reading(cluster, partitions) as fetcher:
        for one in partitions:
            put(one)
        read(fetcher, 3)
        for one in partitions:
            lead(one, 0)
            put(one)
        assert sorted(read(fetcher, 3)) == [(0, 1), (1, 1), (2, 1)]
    assert [node.calls["Fetch"] for node in cluster.nodes][1:] == [1, 1]
    assert cluster.nodes[0].calls["Fetch"] <= 2, "the first stream ends only if it has nothing to read for a moment"


def test_a_leader_that_does_not_know_of_its_successor_is_left_in_time(cluster: FakeCluster) -> None:
    """The deposed leader still serves fetches, so no error reveals its successor: metadata.max.age.ms is the limit."""
    (partition, *_) = cluster.create("t")
    settings = config(cluster, metadata_max_age_ms=20)
    old = cluster.nodes[0]
    with (
        BlockingClient(settings) as client,
        PartitionFetcher(client, [FetchRange(partition.tp, 0)], settings) as fetcher,
    ):
        put(partition)
        read(fetcher, 1)
        old.topics = {"t": [Partition(partition.tp, end_offset=1)]}  # it learns of nothing from now on
        old.nodes = cluster.nodes[:1]
        lead(partition, 2)
        put(partition)
        cluster.nodes[1].topics = cluster.nodes[2].topics
        client.broker_client._nodes.failed(client.broker_client._nodes.any)  # so that another node answers Metadata
        assert read(fetcher, 1) == [(0, 1)]


def test_a_leader_that_has_not_heard_of_a_topic_yet_is_asked_again(cluster: FakeCluster) -> None:
    (partition, *_) = cluster.create("t")
    put(partition)
    cluster.nodes[0].errors["Fetch"] = [UnknownTopicIdError("no such topic")] * 2
    with reading(cluster, [partition]) as fetcher:
        assert read(fetcher, 1) == [(0, 0)]


def test_a_final_error_of_one_partition_ends_the_reading(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    cluster.nodes[1].errors["Fetch"] = [TopicAuthorizationFailedError("not for you")]
    with reading(cluster, partitions) as fetcher, pytest.raises(TopicAuthorizationFailedError):
        fetcher.next_batch(DEADLINE_MS)


def test_a_partition_that_nobody_leads_ends_the_reading_after_its_time(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    put(partitions[0])
    lead(partitions[1], NO_LEADER)
    with reading(cluster, partitions, api_timeout_ms=300) as fetcher:
        assert read(fetcher, 1) == [(0, 0)]
        with pytest.raises(NotLeaderError, match=r"partition 1 of topic 't' has no leader at present \(tried"):
            fetcher.next_batch(DEADLINE_MS)


def test_a_consumer_reads_on_while_a_leader_is_dead(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    servers = {"bootstrap.servers": cluster.servers, "retry.backoff.ms": 1, "auto.offset.reset": "earliest"}
    with Consumer(servers) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(3)])
        put(partitions[0])
        assert [record.partition for record in consumer.poll(DEADLINE_MS)] == [0]
        cluster.stop(1)
        for offset in range(1, 3):
            put(partitions[0])
            assert [(record.partition, record.offset) for record in consumer.poll(DEADLINE_MS)] == [(0, offset)]
        put(partitions[1])
        lead(partitions[1], 2)
        assert [(record.partition, record.offset) for record in consumer.poll(DEADLINE_MS)] == [(1, 0)]


def test_a_consumer_begins_without_the_partitions_of_a_dead_leader(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    for one in partitions:
        put(one)
    cluster.stop(1)
    servers = {"bootstrap.servers": cluster.servers, "retry.backoff.ms": 1, "auto.offset.reset": "earliest"}
    with Consumer(servers) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(3)])
        found: list[int] = []
        while len(found) < 2:
            found += [record.partition for record in consumer.poll(DEADLINE_MS)]
        assert sorted(found) == [0, 2]
        lead(partitions[1], 2)
        assert [(record.partition, record.offset) for record in consumer.poll(DEADLINE_MS)] == [(1, 0)]


def test_list_offsets_asks_a_leader_again_that_has_not_heard_of_a_topic_yet(cluster: FakeCluster) -> None:
    (partition, *_) = cluster.create("t")
    cluster.nodes[0].errors["ListOffsets"] = [UnknownTopicIdError("no such topic")]
    settings = ClientConfig(bootstrap_servers=cluster.servers, retry_backoff_ms=1, retry_backoff_max_ms=2)
    with BlockingClient(settings) as client:
        client.metadata()
        found = client.list_offsets({partition.tp: OffsetSpec.LATEST})
    assert isinstance(found[partition.tp], OffsetAndTimestamp)
