"""Goal: a request to a node that hangs ends as soon as other nodes report a change, and is repeated elsewhere, once and in order; a
request to a slow but live node keeps waiting. Method: nodes in memory that accept requests and answer none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from brokerd.client.blocking import BlockingClient, LoopThread
from brokerd.client.broker_client import BrokerClient
from brokerd.client.connection import NOTHING, Asked, Awaited, Silence, patience_ms
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec, list_offsets
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.producer.producer import Producer
from brokerd.record.header import decode_header
from tests.support.fake_broker import FakeBroker, FakeCluster, fake_cluster
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S, wait_until

LONG_MS = int(20 * DEADLINE_S * 1_000)  # no test waits that long


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr("brokerd.client.broker_client.patience_ms", lambda _request_timeout_ms: 30)
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[BlockingClient]:
    with BlockingClient(config(cluster.servers)) as client:
        yield client


def config(servers: str) -> ClientConfig:
    return ClientConfig(
        bootstrap_servers=servers,
        retry_backoff_ms=1,
        retry_backoff_max_ms=2,
        request_timeout_ms=LONG_MS,
        api_timeout_ms=LONG_MS,
    )


def hang(cluster: FakeCluster, node_id: int) -> None:
    """Makes a node silent, and elects other leaders for its partitions."""
    cluster.nodes[node_id].is_silent = True
    cluster.take_for_dead(node_id)
    for partitions in cluster.nodes[0].topics.values():
        for one in partitions:
            if one.leader == node_id:
                one.leader, one.leader_epoch = (node_id + 1) % len(cluster.nodes), one.leader_epoch + 1


def asked_while_it_hangs(
    cluster: FakeCluster, client: BlockingClient, node_id: int, tps: Sequence[TopicIdPartition]
) -> Mapping[TopicIdPartition, OffsetAndTimestamp | WireError]:
    """Asks for the ends of partitions; the node hangs once the request has arrived there."""
    node = cluster.nodes[node_id]
    node.is_silent = True
    before = node.calls["ListOffsets"]
    call = client.loop_thread.submit(list_offsets(client.broker_client, dict.fromkeys(tps, OffsetSpec.LATEST)))
    wait_until(lambda: node.calls["ListOffsets"] > before)
    hang(cluster, node_id)
    wait_until(lambda: call.has_ended)
    return call.outcome()


def asked_about(cluster: FakeCluster) -> int:
    return sum(node.calls["Metadata"] for node in cluster.nodes)


def test_the_patience_is_a_tenth_of_the_request_timeout() -> None:
    assert [patience_ms(timeout_ms) for timeout_ms in (100, 30_000)] == [1_000, 3_000]


def test_a_call_to_a_leader_that_hangs_is_repeated_at_the_next_one(cluster: FakeCluster, client: BlockingClient) -> None:
    tps = [partition.tp for partition in cluster.create("t")]
    client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    found = asked_while_it_hangs(cluster, client, 1, tps)
    assert all(isinstance(one, OffsetAndTimestamp) for one in found.values())
    assert [node.calls["ListOffsets"] for node in cluster.nodes] == [2, 2, 3]


def test_a_call_waits_at_a_leader_that_is_listed_until_another_one_leads(cluster: FakeCluster, client: BlockingClient) -> None:
    partition = cluster.create("t")[1]
    client.list_offsets({partition.tp: OffsetSpec.LATEST})
    cluster.nodes[1].is_silent = True
    connections = dict(client.broker_client._connections)
    call = client.loop_thread.submit(list_offsets(client.broker_client, {partition.tp: OffsetSpec.LATEST}))
    wait_until(lambda: cluster.nodes[1].calls["ListOffsets"] == 2)
    before = asked_about(cluster)
    wait_until(lambda: asked_about(cluster) > before + 2)
    assert not call.has_ended
    assert cluster.nodes[1].calls["ListOffsets"] == 2, "it is not repeated"
    assert connections.items() <= client.broker_client._connections.items(), "no connection is given up"
    partition.leader, partition.leader_epoch = 2, 2
    wait_until(lambda: call.has_ended)
    assert isinstance(call.outcome()[partition.tp], OffsetAndTimestamp)


def test_a_coordinator_that_hangs_is_left_for_the_next_one(cluster: FakeCluster, client: BlockingClient) -> None:
    client.init_producer_id()
    hang(cluster, 0)
    cluster.elect_coordinator(cluster.nodes[2])
    assert client.init_producer_id().epoch == 0


def test_a_leader_that_hangs_is_read_no_more(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    settings = ConsumerConfig(
        bootstrap_servers=cluster.servers,
        retry_backoff_ms=1,
        request_timeout_ms=LONG_MS,
        api_timeout_ms=LONG_MS,
        fetch_max_wait_ms=1,
    )
    with (
        BlockingClient(settings) as client,
        PartitionFetcher(client, [FetchRange(partitions[1].tp, 0)], settings) as fetcher,
    ):
        partitions[1].put(new_batch(key_values([b"a"]), tp=partitions[1].tp))
        first = fetcher.next_batch(int(DEADLINE_S * 1_000))
        hang(cluster, 1)
        partitions[1].put(new_batch(key_values([b"b"]), tp=partitions[1].tp))
        second = fetcher.next_batch(int(DEADLINE_S * 1_000))
    assert [batch.offsets.to_pylist() for batch in (first, second) if batch is not None] == [[0], [1]]


def test_batches_at_a_leader_that_hangs_go_to_the_next_one_in_sequence(cluster: FakeCluster) -> None:
    partition = cluster.create("t")[1]
    settings = {
        "bootstrap.servers": cluster.servers,
        "request.timeout.ms": LONG_MS,
        "delivery.timeout.ms": 2 * LONG_MS,
        "linger.ms": 0,
        "retry.backoff.ms": 1,
    }
    with Producer(settings) as producer:
        producer.send("t", partition=1, value=b"0").result(DEADLINE_S)
        hang(cluster, 1)
        futures = [producer.send("t", partition=1, value=b"%d" % number) for number in range(1, 5)]
        for future in futures:
            future.result(DEADLINE_S)
    headers = [decode_header(data.slice(0, 96).to_pybytes()) for _, _, data in partition.batches]
    assert [one.base_sequence for one in headers] == [one.base_offset for one in headers]
    assert sum(one.record_count for one in headers) == 5


def test_a_node_that_was_given_up_is_asked_again_once_it_is_back(cluster: FakeCluster, client: BlockingClient) -> None:
    tp = cluster.create("t")[1].tp
    client.list_offsets({tp: OffsetSpec.LATEST})
    asked_while_it_hangs(cluster, client, 1, [tp])
    cluster.nodes[1].is_silent = False
    for node in cluster.nodes:
        node.nodes = cluster.nodes
    partition = cluster.nodes[0].partition(*tp)
    partition.leader, partition.leader_epoch = 1, partition.leader_epoch + 1
    assert isinstance(client.list_offsets({tp: OffsetSpec.LATEST})[tp], OffsetAndTimestamp)
    assert cluster.nodes[1].calls["ListOffsets"] == 3


def test_a_node_alone_is_waited_for(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.client.broker_client.patience_ms", lambda _request_timeout_ms: 3)
    with BlockingClient(config(f"127.0.0.1:{broker.port}")) as client:
        client.metadata()
        broker.is_silent = True
        call = client.loop_thread.submit(client.broker_client.metadata())
        wait_until(lambda: broker.calls["Metadata"] == 2)
        looked: list[str] = []
        silence = client.broker_client._silence
        look_into = silence._look_into

        async def counted(address: str, waiting: Sequence[Awaited]) -> None:
            looked.append(address)
            await look_into(address, waiting)

        monkeypatch.setattr(silence, "_look_into", counted)
        wait_until(lambda: len(looked) > 3)
        assert not call.has_ended
        assert broker.calls["Metadata"] == 2


async def test_a_request_that_is_parked_is_expected_later() -> None:
    looked: list[str] = []
    has_looked = asyncio.Event()

    async def look_into(address: str, _waiting: Sequence[Awaited]) -> None:
        looked.append(address)
        if looked.count("silent") > 2:
            has_looked.set()

    silence = Silence(3, look_into)
    silence.begin("parked", Asked({}, LONG_MS))
    silence.begin("silent", NOTHING)
    await has_looked.wait()
    silence.close()
    assert "parked" not in looked


def test_the_next_bootstrap_server_is_asked_soon_when_the_first_hangs(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.client.broker_client._FIRST_ATTEMPT_MS", 30)
    cluster.nodes[0].is_silent = True

    async def version() -> str:
        client = BrokerClient(config(cluster.servers), SystemClock())
        try:
            async with asyncio.timeout(DEADLINE_S):  # an address's share of the timeout is longer
                return (await client.server_info()).software_version
        finally:
            await client.close()

    with contextlib.closing(LoopThread()) as loop:
        assert loop.run(version()) == "9.9"
