"""Goal: calls find the right node in a cluster whose nodes die, fall silent, move and change roles; a single node gets no extra
calls. Method: nodes in memory that count their calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from brokerd.arguments import OffsetAndMetadata
from brokerd.client import broker_client
from brokerd.client.blocking import BlockingClient, LoopThread
from brokerd.client.broker_client import BrokerClient
from brokerd.client.connection import Connection
from brokerd.client.groups import lag_of
from brokerd.client.metadata import Metadata
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.client.response_checks import error_in
from brokerd.client.transactions import init_producer_id
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import (
    BrokerUnreachableError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    Fate,
    NotCoordinatorError,
    NotLeaderError,
    NotReadyError,
    ProducerFencedError,
    UnknownServerError,
    WireError,
)
from brokerd.ids import NO_LEADER, ProducerIdAndEpoch
from brokerd.producer.core.membership import MemberReport, TransactionEnd
from brokerd.wire.methods import OF_COORDINATOR, UNARY
from brokerd.wire.v1.metadata_pb2 import MetadataResponse, Node
from brokerd.wire.v1.topics_pb2 import TopicDescription
from tests.support.clock import HastyClock
from tests.support.fake_broker import FakeBroker, FakeCluster, fake_cluster
from tests.support.heartbeat import cancelled
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S, wait_until

CALLS = {"Metadata", "FindCoordinator"} | OF_COORDINATOR
LONG_MS = int(DEADLINE_S * 1_000)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that needs seconds for an answer, as on a machine that stops meanwhile, is not left for another: tests count calls."""
    monkeypatch.setattr(broker_client, "_FIRST_ATTEMPT_MS", LONG_MS)
    monkeypatch.setattr(broker_client, "_OTHERS_MS", LONG_MS)
    monkeypatch.setattr(broker_client, "patience_ms", lambda _request_timeout_ms: LONG_MS)


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[BlockingClient]:
    with client_of(cluster.servers) as client:
        yield client


def client_of(
    servers: str,
    clock: Clock | None = None,
    *,
    request_timeout_ms: int = LONG_MS,
    api_timeout_ms: int = LONG_MS,
    metadata_max_age_ms: int = 300_000,
) -> BlockingClient:
    """A client with a retry backoff of 1 to 2 ms. On a HastyClock, a call ends soon however long each answer takes."""
    config = ClientConfig(
        bootstrap_servers=servers,
        retry_backoff_ms=1,
        retry_backoff_max_ms=2,
        request_timeout_ms=request_timeout_ms,
        api_timeout_ms=api_timeout_ms,
        metadata_max_age_ms=metadata_max_age_ms,
    )
    return BlockingClient(config, clock)


def fall_silent(node: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a node silent: a call to it times out once it has arrived. Those to other nodes may take as long as they need."""
    node.is_silent = True
    call = Connection.call

    async def brief(self: Connection, *arguments: Any, **more: Any) -> Any:
        if self.address != f"127.0.0.1:{node.port}":
            return await call(self, *arguments, **more)
        before = node.calls.total()
        asked = asyncio.ensure_future(call(self, *arguments, **more))
        await asyncio.to_thread(wait_until, lambda: node.calls.total() > before or asked.done())
        await cancelled(asked)
        raise self.unreachable("it did not respond in time")

    monkeypatch.setattr(Connection, "call", brief)


def calls_of(node: FakeBroker) -> dict[str, int]:
    """The number of calls by method, for those in CALLS. Resets the counts."""
    calls = {name: count for name, count in node.calls.items() if name in CALLS}
    node.calls.clear()
    return calls


def test_the_coordinators_methods_are_those_of_transactions_and_groups() -> None:
    messages = {name for name, method in UNARY.items() if method.request.DESCRIPTOR.file.name.endswith("transaction.proto")}
    groups = {name for name in UNARY if "Group" in name}
    assert messages | groups == OF_COORDINATOR


# --- the coordinator


def test_a_node_alone_is_asked_at_once(broker: FakeBroker) -> None:
    with client_of(f"127.0.0.1:{broker.port}") as client:
        client.init_producer_id()
        client.list_transactions()
    assert calls_of(broker) == {"InitProducerId": 1, "ListTransactions": 1}


def test_another_node_than_the_coordinator_is_asked_once(cluster: FakeCluster, client: BlockingClient) -> None:
    cluster.elect_coordinator(cluster.nodes[2])
    client.init_producer_id()
    assert [calls_of(node) for node in cluster.nodes] == [{"InitProducerId": 1, "FindCoordinator": 1}, {}, {"InitProducerId": 1}]
    client.init_producer_id()
    client.list_transactions()
    assert [calls_of(node) for node in cluster.nodes] == [{}, {}, {"InitProducerId": 1, "ListTransactions": 1}]


def test_who_tries_a_call_once_finds_the_coordinator_within_it(cluster: FakeCluster) -> None:
    """As for a producer, which retries by itself."""
    cluster.elect_coordinator(cluster.nodes[2])

    async def once() -> ProducerIdAndEpoch:
        client = BrokerClient(ClientConfig(bootstrap_servers=cluster.servers), SystemClock(), is_retrying=False)
        try:
            return await init_producer_id(client)
        finally:
            await client.close()

    with contextlib.closing(LoopThread()) as loop:
        assert loop.run(once()).epoch == 0


@pytest.mark.parametrize("fate", [Fate.UNSPECIFIED, Fate.UNKNOWN])
def test_a_decision_that_a_former_coordinator_may_have_made_is_not_called_undone(
    cluster: FakeCluster, client: BlockingClient, fate: Fate
) -> None:
    cluster.elect_coordinator(cluster.nodes[1])
    former, present = cluster.nodes[:2]
    former.coordinator = former  # it accepts the call, and fails
    former._FindCoordinator = present._FindCoordinator  # type: ignore[method-assign]
    former.errors["EndTransaction"] = [NotCoordinatorError("deposed", fate=fate)]
    present.errors["EndTransaction"] = [ProducerFencedError("a newer execution")]
    with pytest.raises(ProducerFencedError) as raised:
        client.end_transaction(TransactionEnd("tx", 0, "e", "r", is_commit=True))
    assert raised.value.fate is (Fate.NOT_APPENDED if fate is Fate.UNSPECIFIED else Fate.UNSPECIFIED)


def test_the_coordinator_is_found_again_after_it_moved(cluster: FakeCluster, client: BlockingClient) -> None:
    client.init_producer_id()
    cluster.elect_coordinator(cluster.nodes[1])
    client.init_producer_id()
    assert cluster.nodes[1].calls["InitProducerId"] == 1
    cluster.elect_coordinator(cluster.nodes[2])
    client.init_producer_id()
    assert cluster.nodes[2].calls["InitProducerId"] == 1


def test_a_coordinator_that_died_is_asked_for_at_another_node(cluster: FakeCluster, client: BlockingClient) -> None:
    client.init_producer_id()
    cluster.stop(0)
    cluster.elect_coordinator(cluster.nodes[2])
    client.init_producer_id()
    assert cluster.nodes[2].calls["InitProducerId"] == 1


def test_a_coordinator_that_is_silent_is_asked_for_at_another_node(
    cluster: FakeCluster, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.init_producer_id()
    fall_silent(cluster.nodes[0], monkeypatch)
    cluster.elect_coordinator(cluster.nodes[1])
    client.init_producer_id()
    assert cluster.nodes[0].calls["FindCoordinator"] == 0
    assert cluster.nodes[1].calls["InitProducerId"] == 1


def test_an_election_of_the_coordinator_is_waited_for(cluster: FakeCluster, client: BlockingClient) -> None:
    cluster.elect_coordinator(None)
    cluster.nodes[1].coordinator = cluster.nodes[1]  # only this node has learned of the election
    client.init_producer_id()
    assert cluster.nodes[1].calls["InitProducerId"] == 1


def test_a_coordinator_that_reads_its_log_is_asked_again_itself(cluster: FakeCluster, client: BlockingClient) -> None:
    cluster.nodes[0].errors["InitProducerId"] = [CoordinatorLoadInProgressError("reading")] * 2
    client.init_producer_id()
    assert [calls_of(node) for node in cluster.nodes] == [{"InitProducerId": 3}, {}, {}]


def test_nodes_that_name_each_other_are_asked_at_the_pace_of_the_retries(cluster: FakeCluster) -> None:
    one, two, three = cluster.nodes
    one.coordinator, two.coordinator, three.coordinator = two, three, one
    with client_of(cluster.servers, HastyClock()) as client, pytest.raises(NotCoordinatorError) as raised:
        client.init_producer_id()
    tried = re.search(r"\(tried (\d+) times", str(raised.value))
    assert tried is not None
    asked = [calls_of(node) for node in cluster.nodes]
    assert sum(calls.get("FindCoordinator", 0) for calls in asked) <= int(tried[1])
    assert all(calls.get("FindCoordinator", 0) > 0 for calls in asked), "not one node alone is believed"


def test_it_is_told_that_there_is_no_coordinator(cluster: FakeCluster) -> None:
    cluster.elect_coordinator(None)
    with client_of(cluster.servers, HastyClock()) as client, pytest.raises(CoordinatorNotAvailableError, match="at present"):
        client.list_transactions()


def test_the_pages_of_a_decision_go_to_one_node(cluster: FakeCluster, client: BlockingClient) -> None:
    """Another node would lack the first page."""
    for node in cluster.nodes:
        node.limits["max.partitions.per.request"] = 1
    cluster.elect_coordinator(cluster.nodes[1])
    members = [MemberReport(number, 0, 1) for number in range(3)]
    end = TransactionEnd("tx", 0, "e", "r", is_commit=False, members=members)
    client.end_transaction(end)
    assert [node.calls["EndTransaction"] for node in cluster.nodes] == [1, 3, 0]
    assert [page.page for page in cluster.nodes[1].pages] == [0, 1, 2]


def test_commits_go_to_the_coordinator_and_offsets_to_the_leaders(cluster: FakeCluster, client: BlockingClient) -> None:
    cluster.elect_coordinator(cluster.nodes[2])
    tps = [partition.tp for partition in cluster.create("t")]
    assert client.commit_group_offsets("g", dict.fromkeys(tps, OffsetAndMetadata(0))) == {}
    assert set(cluster.nodes[2].groups["g"]) == set(tps)
    found = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    assert all(isinstance(one, OffsetAndTimestamp) for one in found.values())
    assert [node.calls["ListOffsets"] for node in cluster.nodes] == [1, 1, 1]


# --- any node


def test_nodes_that_only_metadata_names_are_asked_when_the_bootstrap_server_is_gone(cluster: FakeCluster) -> None:
    with client_of(f"127.0.0.1:{cluster.nodes[0].port}") as client:
        client.metadata()
        cluster.stop(0)
        assert client.metadata().nodes


def test_a_silent_node_is_left_for_another(cluster: FakeCluster, client: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.metadata()
    fall_silent(cluster.nodes[0], monkeypatch)
    assert client.metadata().nodes
    calls_of(cluster.nodes[0])
    assert client.metadata().nodes
    assert calls_of(cluster.nodes[0]) == {}


def test_a_node_that_comes_back_elsewhere_is_found(cluster: FakeCluster, client: BlockingClient) -> None:
    tps = [partition.tp for partition in cluster.create("t")]
    client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    old = f"127.0.0.1:{cluster.nodes[2].port}"
    cluster.stop(2)
    cluster.start(2)
    assert f"127.0.0.1:{cluster.nodes[2].port}" != old
    found = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    assert all(isinstance(one, OffsetAndTimestamp) for one in found.values())


def test_a_connection_to_an_address_that_no_node_has_is_closed() -> None:
    with fake_cluster() as cluster, client_of(f"127.0.0.1:{cluster.nodes[0].port}") as client:
        tps = [partition.tp for partition in cluster.create("t")]
        client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
        connections = client.broker_client._connections
        assert len(connections) == 3
        cluster.stop(2)
        cluster.start(2)
        client.metadata()
        assert set(connections) == {f"127.0.0.1:{node.port}" for node in cluster.nodes[:2]}


def test_calls_at_once_may_all_find_the_connections_of_nodes_that_are_gone() -> None:
    with fake_cluster() as cluster, client_of(f"127.0.0.1:{cluster.nodes[0].port}") as client:
        tps = [partition.tp for partition in cluster.create("t")]
        client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
        broker_client = client.broker_client
        cluster.nodes[0].nodes = cluster.nodes[:1]

        async def look() -> None:
            await asyncio.gather(*(broker_client.metadata() for _ in range(5)))

        client.loop_thread.run(look())
        assert set(broker_client._connections) == {f"127.0.0.1:{cluster.nodes[0].port}"}


def test_a_leader_is_found_though_another_call_forgets_the_topic_meanwhile(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = cluster.create("t")
    with client_of(cluster.servers) as client:
        broker_client = client.broker_client
        asked = broker_client.metadata_by_id

        async def forgotten(topic_ids: list[bytes]) -> Metadata:
            metadata = await asked(topic_ids)
            broker_client._topics.clear()
            return metadata

        monkeypatch.setattr(broker_client, "metadata_by_id", forgotten)
        assert client.loop_thread.run(broker_client.leader(first.tp)) == first.leader


def test_metadata_is_asked_for_again_after_its_time(cluster: FakeCluster) -> None:
    (first, *_) = cluster.create("t")
    with client_of(cluster.servers, metadata_max_age_ms=0) as client:
        client.metadata(["t"])
        first.leader, first.leader_epoch = 2, 2
        client.list_offsets({first.tp: OffsetSpec.LATEST})
    assert [node.calls["ListOffsets"] for node in cluster.nodes] == [0, 0, 1]


def test_a_node_that_knows_nothing_new_is_left_for_another(cluster: FakeCluster, client: BlockingClient) -> None:
    """A node that repeats known metadata may be cut off from the others, and still believe that it leads."""
    cluster.create("t")
    client.metadata(["t"])
    for node in cluster.nodes:
        calls_of(node)
    for _ in cluster.nodes:
        client.metadata(["t"])
    assert [calls_of(node) for node in cluster.nodes] == [{"Metadata": 1}] * len(cluster.nodes)


def test_the_one_node_that_is_away_is_named(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    partitions = cluster.create("t")
    with client_of(cluster.servers, HastyClock()) as client:
        client.metadata()
        cluster.stop(1)
        with pytest.raises(BrokerUnreachableError) as raised:
            client.list_offsets({partitions[1].tp: OffsetSpec.LATEST})
    for text in (caplog.text, str(raised.value)):
        assert [f"127.0.0.1:{node.port}" in text for node in cluster.nodes] == [False, True, False]
    assert "retrying for up to" in caplog.text


def test_what_one_node_answers_says_more_than_that_another_is_away(cluster: FakeCluster) -> None:
    """The second attempt is the last one, and has enough time for an answer."""
    servers = f"127.0.0.1:{cluster.nodes[2].port},127.0.0.1:{cluster.nodes[0].port}"
    cluster.stop(0)
    cluster.nodes[2].errors["AlterTopicConfigs"] = [NotReadyError("etcd is away", fate=Fate.NOT_APPENDED)]
    with client_of(servers, HastyClock(), api_timeout_ms=25_000) as client:
        with pytest.raises(NotReadyError, match=r"etcd is away \(tried 2 times") as raised:
            client.alter_topic_configs("t", set_={"retention.ms": "1"})
        assert raised.value.fate is Fate.UNKNOWN, "the last attempt may have been carried out"
        cluster.stop(2)
        with pytest.raises(BrokerUnreachableError):
            client.alter_topic_configs("t", set_={"retention.ms": "1"})


def test_what_the_only_node_has_answered_is_told_if_the_call_ends_before_the_next_answer(broker: FakeBroker) -> None:
    """As with a node that needs five seconds for each answer, because it waits that long for etcd."""
    servers, error = f"127.0.0.1:{broker.port}", broker._error

    def answered(name: str) -> WireError | None:
        broker.is_silent = True
        return error(name)

    broker._error = answered  # type: ignore[method-assign]
    broker.errors["AlterTopicConfigs"] = [NotReadyError("etcd is away")]
    with client_of(servers, HastyClock(), api_timeout_ms=14_500) as client:  # which leaves half a second for the second attempt
        with pytest.raises(NotReadyError, match=r"etcd is away \(tried 2 times") as raised:
            client.alter_topic_configs("t", set_={"retention.ms": "1"})
        assert raised.value.fate is Fate.UNKNOWN
    broker.is_silent = False
    broker.errors["AlterTopicConfigs"] = [NotReadyError("etcd is away")]
    patient = client_of(servers, HastyClock(), request_timeout_ms=400, api_timeout_ms=60_000)
    with patient as client, pytest.raises(BrokerUnreachableError, match="no broker responded"):
        client.alter_topic_configs("t", set_={"retention.ms": "1"})


def test_an_answer_of_long_ago_does_not_hide_that_nobody_responds(broker: FakeBroker) -> None:
    """The last attempts have little time, but are refused before it runs out."""
    broker.errors["AlterTopicConfigs"] = [NotReadyError("it starts")]
    with client_of(f"127.0.0.1:{broker.port}", HastyClock(), api_timeout_ms=29_000) as client:
        answered = broker._error

        def once(name: str) -> WireError | None:
            broker.fail_calls = [grpc.StatusCode.UNAVAILABLE] * 100
            return answered(name)

        broker._error = once  # type: ignore[method-assign]
        with pytest.raises(BrokerUnreachableError, match="no broker responded"):
            client.alter_topic_configs("t", set_={"retention.ms": "1"})


# --- leaders


def test_the_partitions_of_a_dead_leader_alone_are_asked_for_again(cluster: FakeCluster, client: BlockingClient) -> None:
    partitions = cluster.create("t")
    tps = [partition.tp for partition in partitions]
    client.metadata()
    cluster.stop(1)
    partitions[1].leader, partitions[1].leader_epoch = 2, 2
    found = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    assert list(found) == tps
    assert all(isinstance(one, OffsetAndTimestamp) for one in found.values())
    assert cluster.nodes[0].calls["ListOffsets"] == 1
    assert cluster.nodes[2].calls["ListOffsets"] == 2


def test_one_partition_that_is_asked_again_does_not_repeat_the_others(cluster: FakeCluster, client: BlockingClient) -> None:
    partitions = cluster.create("t")
    cluster.nodes[1].errors["ListOffsets"] = [CoordinatorNotAvailableError("passing")]
    found = client.list_offsets({partition.tp: OffsetSpec.LATEST for partition in partitions})
    assert not any(isinstance(one, WireError) for one in found.values())
    assert [node.calls["ListOffsets"] for node in cluster.nodes] == [1, 2, 1]


# --- descriptions that need several nodes


@pytest.mark.parametrize("is_told", [False, True])
def test_a_group_is_described_with_the_ends_that_the_leaders_know(
    cluster: FakeCluster, client: BlockingClient, *, is_told: bool
) -> None:
    partitions = cluster.create("t")
    cluster.nodes[0].says_who_leads_not = is_told
    for partition in partitions:
        for _ in range(3):
            partition.put(new_batch(key_values([b"a"]), tp=partition.tp))
    partitions[2].log_start_offset = 2
    client.commit_group_offsets("g", {one.tp: OffsetAndMetadata(number) for number, one in enumerate(partitions)})
    described = client.describe_group("g").partitions
    assert [(one.topic, one.committed.partition, one.end_offset, one.log_start_offset) for one in described] == [
        ("t", 0, 3, 0),
        ("t", 1, 3, 0),
        ("t", 2, 3, 2),
    ]
    assert [lag_of(one) for one in described] == [3, 2, 1]
    assert not any(one.committed.HasField("error") for one in described)
    assert [one.lag_bytes > 0 for one in described[1:]] == [True, True]
    assert [one.lag_ms for one in described[1:]] == [7_000, 7_000], "the leader's, which has the record"
    assert [node.calls["ListOffsets"] for node in cluster.nodes] == [0, 1, 1]


def test_a_group_is_described_without_the_ends_that_nobody_knows(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    with client_of(cluster.servers, HastyClock()) as client:
        client.commit_group_offsets("g", {one.tp: OffsetAndMetadata(0) for one in partitions})
        cluster.stop(1)
        described = client.describe_group("g").partitions
    assert [one.end_offset for one in described] == [0, -1, 0]
    assert [one.committed.error.message for one in described][::2] == ["", ""]
    assert described[1].committed.error.message.startswith("its leader did not answer")
    assert lag_of(described[1]) == -1


def test_groups_wait_for_a_leader_that_is_away_at_the_same_time(cluster: FakeCluster) -> None:
    partitions = cluster.create("t")
    group_ids = [f"g{number}" for number in range(10)]
    clock = HastyClock()
    with client_of(cluster.servers, clock, api_timeout_ms=400_000) as client:
        for group_id in group_ids:
            client.commit_group_offsets(group_id, {one.tp: OffsetAndMetadata(0) for one in partitions})
        partitions[1].leader = NO_LEADER
        began_ms = clock.boot_ms()
        described = client.describe_groups(group_ids)
        assert clock.boot_ms() - began_ms < 5 * 400_000
        assert [one.group.group_id for one in described] == group_ids
        assert [[lag_of(one) for one in group.partitions] for group in described] == [[0, -1, 0]] * 10
        del cluster.nodes[0].groups["g1"]  # the node fails to describe it
        with pytest.raises(UnknownServerError, match="failed in DescribeGroup"):
            client.describe_groups(group_ids)


def test_a_node_alone_is_not_asked_for_ends_that_it_has_said(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    with client_of(f"127.0.0.1:{broker.port}") as client:
        client.commit_group_offsets("g", {partition.tp: OffsetAndMetadata(0)})
        assert [one.end_offset for one in client.describe_group("g").partitions] == [0]
        client.describe_topics(["t"])
    assert broker.calls["DescribeTopics"] == 1
    assert "ListOffsets" not in broker.calls
    assert calls_of(broker) == {"CommitGroupOffsets": 1, "DescribeGroup": 1}


def test_topics_are_described_by_the_leaders_of_their_partitions(cluster: FakeCluster, client: BlockingClient) -> None:
    for name in ("t", "u"):
        for number, partition in enumerate(cluster.create(name)):
            partition.end_offset = 10 + number
    found = client.describe_topics()
    for name in ("t", "u"):
        topic = found[name]
        assert isinstance(topic, TopicDescription)
        assert [(one.high_watermark, one.HasField("error")) for one in topic.partitions] == [(10, False), (11, False), (12, False)]
    assert [node.calls["DescribeTopics"] for node in cluster.nodes] == [1, 1, 1]


def test_topics_are_described_without_the_partitions_that_nobody_leads(cluster: FakeCluster, client: BlockingClient) -> None:
    partitions = cluster.create("t")
    partitions[0].end_offset = 5
    partitions[1].leader = NO_LEADER
    cluster.stop(2)
    topic = client.describe_topics(["t"])["t"]
    assert isinstance(topic, TopicDescription)
    assert [one.HasField("error") for one in topic.partitions] == [False, True, True]
    assert topic.partitions[0].high_watermark == 5
    silent = error_in(topic.partitions[2])
    assert isinstance(silent, NotLeaderError), "as before: nobody has said what it holds"
    assert silent.message.startswith("its leader, node 2, did not answer: ")
    assert topic.partitions[1].error.message == "led by another node"
    partitions[1].problem = "t-1 has no leader at present: start node 1"
    assert why_unknown(client, 1) == partitions[1].problem
    cluster.nodes[0].told = {"t": [partitions[0], dataclasses.replace(partitions[1], leader=0), partitions[2]]}
    assert why_unknown(client, 1) == "its leader, node 0, does not lead it yet, or not any more: try again"


def test_a_leader_that_falls_silent_is_waited_for_no_longer_than_a_call_may_take(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = BrokerClient.call_once
    times_ms: list[int] = []

    async def noted(self: BrokerClient, node: int | str, request: Any, response_type: Any, timeout_ms: int, *more: Any) -> Any:
        if node == 2:
            times_ms.append(timeout_ms)
            timeout_ms = 50
        return await once(self, node, request, response_type, timeout_ms, *more)

    cluster.create("t")
    with client_of(cluster.servers, request_timeout_ms=2 * LONG_MS) as client:
        client.describe_topics(["t"])
        cluster.nodes[2].is_silent = True
        monkeypatch.setattr(BrokerClient, "call_once", noted)
        assert why_unknown(client, 2).startswith("its leader, node 2, did not answer: ")
    assert times_ms == [LONG_MS]


def why_unknown(client: BlockingClient, number: int) -> str:
    """The error message in a partition's description."""
    topic = client.describe_topics(["t"])["t"]
    assert isinstance(topic, TopicDescription)
    return topic.partitions[number].error.message


# --- nodes with stale metadata


def test_a_node_that_is_cut_off_is_believed_only_if_all_are(cluster: FakeCluster) -> None:
    old, new = cluster.create("t")[:1], cluster.create("t")
    first, second, _ = cluster.nodes
    first.told, first.is_cut_off = {"t": old}, True
    with client_of(cluster.servers) as client:
        assert client.metadata(["t"]).topic("t").topic_id == new[0].tp.topic_id
        assert client.metadata_by_id([new[0].tp.topic_id]).topics.keys() == {"t"}
        for node in cluster.nodes:
            node.is_cut_off = True
        second.told = {"t": new[:2]}
        client.metadata(["t"])
        assert [node.calls["Metadata"] > 0 for node in cluster.nodes] == [True] * 3
    with client_of(f"127.0.0.1:{first.port}") as client:
        first.nodes = [first]
        assert client.metadata(["t"]).topic("t").topic_id == old[0].tp.topic_id, "nobody else can be asked"


def test_nodes_that_are_all_cut_off_answer_as_long_as_one_does(cluster: FakeCluster) -> None:
    """As while etcd is down and the nodes still list a dead one. Like a producer's, this client tries each call once."""
    cluster.create("t")
    for node in cluster.nodes:
        node.is_cut_off = True
    cluster.stop(2)

    async def looks(servers: str) -> None:
        client = BrokerClient(ClientConfig(bootstrap_servers=servers), SystemClock(), is_retrying=False)
        try:
            for _ in range(3):
                assert (await client.metadata(["t"])).topics.keys() == {"t"}
        finally:
            await client.close()

    for servers in (cluster.servers, f"127.0.0.1:{cluster.nodes[0].port}"):
        with contextlib.closing(LoopThread()) as loop:
            loop.run(looks(servers))
    assert cluster.nodes[0].calls["Metadata"] + cluster.nodes[1].calls["Metadata"] <= 12, "the others are not asked each time"


def test_an_answer_without_sense_does_not_replace_the_first_one(cluster: FakeCluster) -> None:
    cluster.create("t")
    cluster.nodes[0].is_cut_off = True
    for node in cluster.nodes[1:]:
        node._Metadata = lambda _: MetadataResponse(nodes=[Node(node_id=1, host="not a host!", port=1)])  # type: ignore[method-assign, assignment]
    with client_of(cluster.servers) as client:
        assert client.metadata(["t"]).topics.keys() == {"t"}


@pytest.mark.parametrize("tasks", [2, 8])
def test_tasks_of_one_client_believe_no_node_that_is_cut_off(cluster: FakeCluster, tasks: int) -> None:
    old, new = cluster.create("t")[:1], cluster.create("t")
    cluster.nodes[0].told, cluster.nodes[0].is_cut_off = {"t": old}, True
    with client_of(cluster.servers) as client:

        async def looks() -> set[bytes]:
            found = await asyncio.gather(*(client.broker_client.metadata(["t"]) for _ in range(tasks)))
            return {each.topic("t").topic_id for each in found}

        for _ in range(5):
            assert client.loop_thread.run(looks()) == {new[0].tp.topic_id}


@pytest.mark.parametrize("names", [["t"], None])
@pytest.mark.parametrize("told", ["fewer", "none", "other"])
def test_a_node_that_tells_less_than_is_known_has_not_heard_of_it(cluster: FakeCluster, names: list[str] | None, told: str) -> None:
    """The node does not report being cut off. But topics lose no partitions, and an id that another node knows was not deleted."""
    other = cluster.create("t")
    partitions = cluster.create("t")
    cluster.nodes[0].told = {"u": other} if told == "none" else {"t": other if told == "other" else partitions[:2]}
    known = {partitions[0].tp.topic_id: 3}
    with client_of(cluster.servers) as client:
        topic = client.metadata(names, known).topic("t")
        assert (topic.topic_id, topic.partition_count) == (partitions[0].tp.topic_id, 3)
    for node in cluster.nodes:
        node.told = {"t": partitions[:2]}
    with client_of(cluster.servers) as client:
        assert client.metadata(names, known).topic("t").partition_count == 2, "all say so, as after a restore"
    cluster.stop(2)
    with client_of(cluster.servers) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_client, "_HEARS_MS", 50)
        assert client.metadata(names, known).topic("t").partition_count == 2, "those that answer for some seconds"
    cluster.nodes[0].topics["t"] = other
    for node in cluster.nodes:
        node.told = {}
    with client_of(cluster.servers) as client:
        assert client.metadata(names, known).topic("t").topic_id == other[0].tp.topic_id, "it was deleted and created anew"
