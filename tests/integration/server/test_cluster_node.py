"""Whole daemons in one cluster, with an etcd in memory: what clients see, and how a single node becomes a cluster's first."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, cast
from unittest.mock import AsyncMock

import pytest

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.broker_client import BrokerClient
from brokerd.client.groups import commit_group_offsets, describe_group, lag_of
from brokerd.client.topics import alter_topic_configs, create_partitions, create_topic, delete_topics, describe_cluster
from brokerd.client.transactions import init_producer_id
from brokerd.clock import Clock, SystemClock
from brokerd.cluster.keys import FEATURE_LEVEL, Keys, Registration, encode
from brokerd.config.broker import BrokerConfig
from brokerd.config.client import ClientConfig
from brokerd.coordination.client import CoordinationClient, Snapshot
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.errors import CoordinationError, DataDirectoryError, NotLeaderError, NotReadyError
from brokerd.ids import TopicIdPartition
from brokerd.internode.v1.internode_pb2 import LogTimeRequest, LogTimeResponse, OpenMembersRequest, OpenMembersResponse
from brokerd.server.cluster import adoption
from brokerd.server.cluster import node as node_module
from brokerd.server.cluster.adoption import adopt
from brokerd.server.cluster.calls import NodeCalls
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.coordinator import producer_ids
from brokerd.server.daemon import Daemon
from brokerd.server.handlers.groups import check_deleted
from brokerd.server.handlers.transactions import end_transaction
from brokerd.server.metrics.families import families
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.sharing import BROKER
from brokerd.wire.errors import from_proto
from brokerd.wire.v1.topics_pb2 import DescribeTopicsRequest, DescribeTopicsResponse
from brokerd.wire.v1.transaction_pb2 import TRANSACTION_DECISION_COMMIT, EndTransactionRequest
from tests.support.build import append
from tests.support.certificates import Authority
from tests.support.clock import START_WALL_MS
from tests.support.cluster_directories import becomes
from tests.support.cluster_nodes import an_etcd
from tests.support.fake_broker import unknown_partition
from tests.support.faulty_etcd import FaultyEtcd
from tests.support.files import MemoryFiles
from tests.support.loop import one_turn
from tests.support.wait import DEADLINE_S


class Machines(NamedTuple):
    """The disks of the nodes, by node id, and their etcd."""

    etcd: FaultyEtcd
    disks: dict[int, MemoryFiles]
    clocks: dict[int, Clock]  # of their next lives; default: the machine's
    running: list[Daemon]

    @contextlib.asynccontextmanager
    async def node(self, node_id: int, **settings: str) -> AsyncIterator[Daemon]:
        """A running node whose present life the others know: before that, none of them makes it a leader, or calls it where it is
        now."""
        disk = self.disks.setdefault(node_id, MemoryFiles())
        config = self.config(node_id, **settings)
        daemon = Daemon(config, files=disk, clock=self.clocks.pop(node_id, None))
        await daemon.start()
        self.running.append(daemon)
        try:
            images = [cluster_of(other).image for other in self.running]
            await becomes(lambda: all(image.nodes.get(node_id) == images[-1].nodes[node_id] for image in images), True)
            yield daemon
        finally:
            self.running.remove(daemon)
            await daemon.stop()

    def config(self, node_id: int, **settings: str | int) -> BrokerConfig:
        """A node's settings."""
        given = {"cluster_name": "prod", "coordination_servers": f"etcd://{self.etcd.address}", **settings}
        return BrokerConfig(port=0, node_id=node_id, data_dir=f"node-{node_id}", **given)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def around_an_etcd() -> AsyncIterator[Machines]:
    """Machines with a new etcd and no running node."""
    async with an_etcd() as etcd:
        yield Machines(etcd, {}, {}, [])


@contextlib.asynccontextmanager
async def client_of(*daemons: Daemon) -> AsyncIterator[BrokerClient]:
    """A client that knows the addresses of these nodes."""
    servers = ",".join(f"127.0.0.1:{daemon.port}" for daemon in daemons)
    client = BrokerClient(ClientConfig(bootstrap_servers=servers), SystemClock())
    try:
        yield client
    finally:
        await client.close()


async def test_any_node_changes_topics_and_knows_all_leaders() -> None:
    async with around_an_etcd() as machines, machines.node(1) as one, machines.node(2) as two, machines.node(3) as three:
        async with client_of(one) as client:
            await create_topic(client, "orders", 6)
            await alter_topic_configs(client, "orders", set_={"retention.ms": "1000"})
            topic = (await client.metadata(["orders"])).topic("orders")
            assert sorted(topic.leaders) == [1, 1, 2, 2, 3, 3]
            assert set(topic.leader_epochs) == {1}
        async with client_of(two) as client:
            found = await client.metadata()
            assert sorted(found.nodes) == [1, 2, 3]
            assert {node.port for node in found.nodes.values()} == {one.port, two.port, three.port}
        async with client_of(three) as client:
            await delete_topics(client, ["orders"])
            assert not (await client.metadata()).topics


async def test_a_node_alone_becomes_the_first_of_a_cluster() -> None:
    async with around_an_etcd() as machines:
        disk = machines.disks[7] = MemoryFiles()
        alone = Daemon(BrokerConfig(port=0, data_dir="alone"), files=disk)
        await alone.start()
        async with client_of(alone) as client:
            topic_id = await create_topic(client, "orders", 3)
        epochs = [one.leader_epoch for one in alone.broker.partitions.of_clients()]
        await alone.stop()
        with pytest.raises(DataDirectoryError, match="brokerd cluster adopt"):
            async with machines.node(7):
                pass
        store = CoordinationClient([machines.etcd.address], SystemClock())
        assert await adopt(machines.config(7), disk, SystemClock(), store) == 1
        await store.close()
        async with machines.node(7) as seven, machines.node(8) as eight, client_of(eight) as client:
            tps = [TopicIdPartition(topic_id, number) for number in range(3)]
            await becomes(lambda: [led_by(seven), *map(cluster_of(eight).leader_of, tps)], [3, 7, 7, 7])
            topic = (await client.metadata(["orders"])).topic("orders")
            assert (topic.topic_id, topic.leaders) == (topic_id, (7, 7, 7))
            assert all(new > old for new, old in zip(topic.leader_epochs, epochs, strict=True))


async def adopted(machines: Machines, node_id: int) -> int:
    client = CoordinationClient([machines.etcd.address], SystemClock())
    try:
        return await adopt(machines.config(node_id), machines.disks[7], SystemClock(), client)
    finally:
        await client.close()


async def cut_off_adoption(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single node with two topics, whose adoption was interrupted: etcd has all of it, the directory nothing."""

    def cut(*_: object) -> None:
        raise OSError("power cut")

    machines.disks[7] = MemoryFiles()
    async with alone(machines) as client:
        await create_topic(client, "grows", 2)
        await create_topic(client, "again", 1)
    with monkeypatch.context() as patch:
        patch.setattr(adoption, "join_cluster", cut)
        with pytest.raises(OSError, match="power cut"):
            await adopted(machines, 7)


async def test_a_node_alone_becomes_the_coordinator_which_knows_its_producer_ids() -> None:
    async with around_an_etcd() as machines:
        machines.disks[7] = MemoryFiles()
        async with alone(machines) as client:
            await create_topic(client, "orders", 3)
            before = [await init_producer_id(client) for _ in range(2)]
        assert await adopted(machines, 7) == 1
        async with machines.node(7) as seven, machines.node(8) as eight, client_of(eight) as client:
            await becomes(lambda: all(one.is_leader for one in seven.broker.partitions), True)
            after = [await init_producer_id(client) for _ in range(2)]
        assert len({*before, *after}) == 4, "one that is given twice makes a new producer's batches duplicates"


@contextlib.asynccontextmanager
async def alone(machines: Machines) -> AsyncIterator[BrokerClient]:
    """A client of a single node, not in a cluster, on disk 7."""
    daemon = Daemon(BrokerConfig(port=0, data_dir="alone"), files=machines.disks[7])
    await daemon.start()
    async with client_of(daemon) as client:
        yield client
    await daemon.stop()


async def test_an_adoption_that_was_cut_off_and_a_directory_that_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    async with around_an_etcd() as machines:
        await cut_off_adoption(machines, monkeypatch)
        async with alone(machines) as client:
            await create_partitions(client, "grows", 5)
            await delete_topics(client, ["again"])
            again = await create_topic(client, "again", 3)
        machines.disks[8] = machines.disks[7]
        assert await adopted(machines, 8) == 2
        async with machines.node(8) as node, client_of(node) as client:
            await becomes(lambda: all(one.is_leader for one in node.broker.partitions), True)
            topics = (await client.metadata()).topics
            assert {name: topic.leaders for name, topic in topics.items()} == {"grows": (8,) * 5, "again": (8,) * 3}
            assert topics["again"].topic_id == again


async def test_an_adoption_that_was_cut_off_and_a_cluster_that_others_have_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    async with around_an_etcd() as machines:
        await cut_off_adoption(machines, monkeypatch)
        async with alone(machines) as client:
            await create_partitions(client, "grows", 5)
        async with machines.node(1):
            await becomes(lambda: any(key.endswith(b"/controller") for key in machines.etcd.keys), True)
            before = dict(machines.etcd.keys)
            with pytest.raises(CoordinationError, match="topic 'grows' of cluster 'prod' is not the one in this data directory"):
                await adopted(machines, 7)
            assert machines.etcd.keys == before


async def test_a_cluster_that_exists_adopts_nothing() -> None:
    async with around_an_etcd() as machines:
        async with machines.node(1):
            pass
        disk = MemoryFiles()
        for _ in range(2):  # it continues as a single node
            alone = Daemon(BrokerConfig(port=0, data_dir="alone"), files=disk)
            await alone.start()
            await alone.stop()
            before = dict(machines.etcd.keys)
            client = CoordinationClient([machines.etcd.address], SystemClock())
            with pytest.raises(CoordinationError, match="there is a cluster 'prod' already"):
                await adopt(machines.config(2), disk, SystemClock(), client)
            await client.close()
            assert machines.etcd.keys == before


async def test_nodes_with_different_auth_files_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> int:
        return sum("another auth.file" in record.message for record in caplog.records)

    async def until_said(count: int) -> None:
        while said() < count:
            await one_turn()

    async with around_an_etcd() as machines:
        files = {node_id: tmp_path / f"auth-{node_id}.toml" for node_id in (1, 2)}
        for node_id, path in files.items():
            path.write_text(f"[principals.p{node_id}]\ntokens = ['sha256:{'0' * 64}']\n")
        async with machines.node(1, auth_file=str(files[1])) as one, machines.node(2, auth_file=str(files[2])) as two:
            await until_said(2)  # one message of each about the other
            epochs = [node.epoch for node in one.broker.cluster.nodes()]
            files[2].write_text(files[1].read_text())
            await two.reload()
            await becomes(lambda: [cluster_of(node)._differing for node in (one, two)], [set(), set()])
            assert [node.epoch for node in one.broker.cluster.nodes()] == epochs, "nobody has registered anew"
            files[1].write_text(files[1].read_text() + "# a remark\n")
            await one.reload()
            await until_said(4)


async def test_nodes_call_each_other_with_reloaded_certificates(tmp_path: Path) -> None:
    files = {"ssl_certificate_file": tmp_path / "cert", "ssl_key_file": tmp_path / "key", "cluster_ssl_ca_file": tmp_path / "ca"}
    settings = {name: str(path) for name, path in files.items()}

    def issue(name: str) -> None:
        authority = Authority(tmp_path, name)
        issued = authority.issue(f"node of {name}", "127.0.0.1")
        for path, source in zip(files.values(), (issued.certificate_file, issued.key_file, authority.ca_file), strict=True):
            path.write_bytes(Path(source).read_bytes())

    async with around_an_etcd() as machines:

        async def call() -> None:
            cluster = first.broker.cluster
            assert isinstance(cluster, ClusterNode)
            await becomes(lambda: 2 in cluster.image.nodes, True)
            await cluster.call(2, LogTimeRequest(), LogTimeResponse)

        issue("old")
        async with machines.node(1, **settings) as first:
            async with machines.node(2, **settings):
                await call()
            issue("new")
            await first.reload()
            async with machines.node(2, **settings):
                await call()


async def test_copies_go_on_after_a_reload_of_certificates(tmp_path: Path) -> None:
    """The next call to the leader makes a new connection and closes the one that the follower copies over."""
    authority = Authority(tmp_path, "authority")
    issued = authority.issue("node", "127.0.0.1")
    settings = {
        "ssl_certificate_file": str(issued.certificate_file),
        "ssl_key_file": str(issued.key_file),
        "cluster_ssl_ca_file": str(authority.ca_file),
    }

    async with around_an_etcd() as machines, machines.node(1, **settings) as first, machines.node(2, **settings) as second:
        clusters = [cast("ClusterNode", node.broker.cluster) for node in (first, second)]
        await becomes(lambda: [len(cluster.nodes()) for cluster in clusters], [2, 2])
        tp = TopicIdPartition((await clusters[0].topics.create("orders", 1, {}, 2)).id, 0)
        await becomes(lambda: [node.broker.partitions.replica(tp) is not None for node in (first, second)], [True, True])
        leader, follower = (first, second) if clusters[0].leader_of(tp) == 1 else (second, first)
        partition = leader.broker.partitions.replica(tp)
        assert partition is not None
        await becomes(lambda: partition.is_leader, True)
        for count in (1, 2):
            append(partition, b"row")
            await leader.broker.flusher.flush(partition, BROKER)
            await becomes(lambda: partition.ends.high_watermark, count)
            await follower.reload()
            calls = cast("ClusterNode", follower.broker.cluster)
            await calls.call(leader.broker.node_id, LogTimeRequest(), LogTimeResponse)


async def test_no_producer_id_is_given_twice_though_the_coordinator_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "_PRODUCER_NUMBERS", 4)
    monkeypatch.setattr(producer_ids, "BLOCK", 2)

    async with around_an_etcd() as machines:
        given: list[int] = []

        async def give(count: int) -> None:
            async with machines.node(1) as node, client_of(node) as client:
                given.extend([(await init_producer_id(client)).producer_id for _ in range(count)])

        await give(1)
        backup = copy.deepcopy(machines.disks[1])
        await give(11)
        machines.disks[1] = backup
        await give(11)
        assert len(set(given)) == 23


async def test_a_node_that_does_not_lead_names_who_does() -> None:
    async with around_an_etcd() as machines, machines.node(1) as one, machines.node(2) as two, client_of(one) as client:
        assert cluster_of(one).leader_of(COORDINATOR_LOG) == 1, "the coordinator's log is made with the cluster"
        topic_id = await create_topic(client, "orders", 2)
        await becomes(lambda: two.broker.topics.has("orders"), True)
        led_by = {cluster_of(one).leader_of(tp): tp for tp in (TopicIdPartition(topic_id, 0), TopicIdPartition(topic_id, 1))}
        for daemon, other in ((one, 2), (two, 1)):
            with pytest.raises(NotLeaderError) as refused:
                daemon.broker.partitions.leader(led_by[other])
            assert (refused.value.current_leader, refused.value.current_leader_epoch) == (other, 1)
        (told,) = (await client.call(DescribeTopicsRequest(names=["orders"]), DescribeTopicsResponse)).topics
        assert told.partitions[led_by[1].partition].log_end_offset == 0
        elsewhere = told.partitions[led_by[2].partition]
        assert elsewhere == unknown_partition(from_proto(elsewhere.error), led_by[2].partition), "not one that is empty"


async def test_how_far_a_group_is_behind_is_known_of_what_others_lead() -> None:
    async with around_an_etcd() as machines, machines.node(1) as one, machines.node(2) as two, client_of(one) as client:
        topic_id = await create_topic(client, "orders", 2)
        tps = [TopicIdPartition(topic_id, number) for number in range(2)]
        await becomes(lambda: [led_by(daemon) for daemon in (one, two)], [1, 1])
        for daemon, tp in itertools.product((one, two), tps):
            if cluster_of(one).leader_of(tp) == daemon.broker.node_id:
                partition = daemon.broker.partitions.leader(tp)
                append(partition, b"row")
                await daemon.broker.flusher.flush(partition, BROKER)
        await commit_group_offsets(client, "g", dict.fromkeys(tps, OffsetAndMetadata(0)))
        described = (await describe_group(client, "g")).partitions
        assert [(lag_of(found), found.lag_bytes > 0) for found in described] == [(1, True)] * 2
        since_ms = SystemClock().wall_ms() - START_WALL_MS
        assert all(abs(found.lag_ms - since_ms) < 600_000 for found in described), "of the record, not -1"
        metrics = {family.name: family.samples for family in await families(one.broker, stream_count=0)}
        assert [sample.value for sample in metrics["brokerd_group_offset"]] == [0, 0]
        assert [sample.value for sample in metrics["brokerd_group_lag"]] == [1], "of what this node leads"
        assert metrics["brokerd_group_partitions_left_out"][0].value == 0
        copied_id = await create_topic(client, "copied", 2, {}, 2)
        copied = [TopicIdPartition(copied_id, number) for number in range(2)]
        await commit_group_offsets(client, "h", dict.fromkeys(copied, OffsetAndMetadata(0)))

        async def lags() -> list[float]:
            metrics = {family.name: family.samples for family in await families(one.broker, stream_count=0)}
            return [sample.value for sample in metrics["brokerd_group_lag"] if sample.labels["group"] == "h"]

        while await lags() != [0, 0]:  # also of what this node has in sync, once it follows
            await one_turn()


async def test_a_node_tells_of_the_disks_and_versions_of_all() -> None:
    async with around_an_etcd() as machines, machines.node(1) as one, machines.node(2) as two, client_of(one) as client:

        async def told() -> list[tuple[int, bool, int]]:
            nodes = (await describe_cluster(client, [])).nodes
            return [(node.node_id, node.disk_refuses, node.feature_level) for node in nodes]

        assert await told() == [(1, False, FEATURE_LEVEL), (2, False, FEATURE_LEVEL)]
        assert two._logs is not None
        two._logs.resources.refusals.since_ms = -1_000_000
        await becomes(lambda: [node.registration.refuses for node in cluster_of(one).nodes()], [False, True])
        assert await told() == [(1, False, FEATURE_LEVEL), (2, True, FEATURE_LEVEL)]


async def test_metrics_of_a_cluster() -> None:
    async def figures(daemon: Daemon) -> dict[str, float]:
        found = await families(daemon.broker, stream_count=0)
        return {family.name: family.samples[0].value for family in found if len(family.samples) == 1}

    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        async with machines.node(2) as two:
            await create_topic(client, "orders", 2)
            await becomes(lambda: [led_by(daemon) for daemon in (one, two)], [1, 1])
            await becomes(lambda: sum(cluster_of(daemon).figures().is_controller for daemon in (one, two)), 1)
            both = [await figures(one), await figures(two)]
            for name, expected in (("cluster_nodes", 4), ("leader_count", 2), ("active_controller_count", 1)):
                assert sum(each[f"brokerd_{name}"] for each in both) == expected
            assert [each["brokerd_cluster_offline_partition_count"] for each in both] == [0, 0]
            assert [each["brokerd_cluster_registered"] for each in both] == [1, 1]
            await create_topic(client, "copies", 3, {"min.insync.replicas": "2"}, 2)
            both = [await figures(one), await figures(two)]
            assert [each["brokerd_under_replicated_partition_count"] for each in both] == [0, 0]
        await becomes(lambda: cluster_of(one).figures().offline_partitions, 1)  # its leader has left
        assert cluster_of(one).figures().nodes == 1

        async def leads_alone() -> tuple[float, ...]:
            found = await figures(one)
            names = ("under_replicated", "under_min_isr", "reassigning")
            return tuple(found[f"brokerd_{name}_partition_count"] for name in names)

        while await leads_alone() != (3, 3, 0):
            await one_turn()
        (topic,) = (await describe_cluster(client, ["copies"])).topics
        assert [(each.under_replicated, each.under_min_isr) for each in topic.partitions] == [(True, True)] * 3
        assert cluster_of(one).figures().calls > 0
        assert cluster_of(one).figures().call_seconds > 0
        await machines.etcd.stop()
        cluster_of(one)._client.timeout_ms = 1_000
        with pytest.raises(NotReadyError):  # by then, what had been answered before is counted too
            await cluster_of(one).producer_numbers(0)
        before = cluster_of(one).figures()
        with pytest.raises(NotReadyError):
            await cluster_of(one).producer_numbers(0)
        after = cluster_of(one).figures()
        assert after.failed_calls > before.failed_calls
        assert after.call_seconds == before.call_seconds, "none was answered"
        await machines.etcd.start()


async def test_a_node_that_lost_its_registration_does_not_pass_for_the_controller() -> None:
    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        await becomes(lambda: cluster_of(one).figures().is_controller, True)
        assert not (await describe_cluster(client, [])).is_cut_off
        await machines.etcd.stop()
        lease = cluster_of(one)._membership._lease
        assert lease is not None
        lease.lost.set()
        await becomes(lambda: cluster_of(one).figures().is_registered, False)
        assert cluster_of(one).controller_id == 1, "as etcd has said last"
        assert not cluster_of(one).figures().is_controller
        assert (await describe_cluster(client, [])).is_cut_off
        await machines.etcd.start()


async def test_the_log_says_what_happens_to_the_cluster(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def said(level: int) -> set[str]:
        found = {record.message for record in caplog.records if record.levelno == level}
        return {re.sub(r"127\.0\.0\.1:\d+|\(id [0-9a-f-]{36}\)", "*", text) for text in found}

    async def until_said(level: int, *texts: str) -> None:
        while set(texts) - said(level):
            await one_turn()

    async def until_told(level: int, what: str) -> None:
        """Of all copies: in one line, or in a few, if the leader hears of them one after the other."""
        pattern = re.compile(re.escape(what) + r", for (\d+) partitions?: copies-\d")
        while sum(counts := [int(found[1]) for text in said(level) if (found := pattern.match(text))]) < 7:
            await one_turn()
        assert (sum(counts), len(counts) < 7) == (7, True), "a line for each change, not for each partition"

    async with around_an_etcd() as machines:
        async with machines.node(1) as one, client_of(one) as client:
            await until_said(logging.WARNING, "founded the new cluster 'prod' *: etcd knew none of this name")
            await until_said(logging.INFO, "registered as node 1 in cluster 'prod'", "this node is the controller")
            async with machines.node(2) as two:
                await until_said(logging.INFO, "node 2 at * has joined", "the cluster has 2 nodes: besides this one 1")
                await until_said(logging.INFO, "node 1 is the controller")
                await create_topic(client, "copies", 7, {"min.insync.replicas": "2"}, 2)
                await create_topic(client, "alone", 2)
                await becomes(lambda: [one.is_leader for one in two.broker.partitions.of_clients()].count(True) > 0, True)
                caplog.clear()
            await until_said(logging.WARNING, "node 2 at * is gone")
            await until_told(logging.WARNING, "fewer replicas in sync than min.insync.replicas, and acks=all waits")
            assert sum("in sync are now: " in text for text in said(logging.INFO)) < 7, (
                "a line for each change, not for each partition"
            )
            alone = "no leader for 1 partition, until a node that has all records is back: alone-"
            while not said(logging.WARNING) & {f"{alone}{number}" for number in (0, 1)}:
                await one_turn()
            assert sum("no leader for" in text for text in said(logging.WARNING)) == 1
            async with machines.node(2):
                await until_told(logging.INFO, "enough replicas in sync again")
        assert not any("founded" in text for text in said(logging.WARNING))


async def test_a_start_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(node_module, "_STORE_AWAY_S", 0.01)
    made, hurried = node_module.coordination_client, list[CoordinationClient]()

    def hasty(config: BrokerConfig, clock: Clock) -> CoordinationClient:
        client = made(config, clock)
        client.timeout_ms = 1_000
        hurried.append(client)
        return client

    async with around_an_etcd() as machines:
        async with machines.node(1):
            pass
        monkeypatch.setattr(node_module, "coordination_client", hasty)
        await machines.etcd.stop()

        async def serves() -> None:
            async with machines.node(1):
                pass

        starting = asyncio.create_task(serves())
        while caplog.text.count("waiting for it, as long as it takes (coordination.servers is etcd://") < 2:
            await one_turn()
        assert not starting.done()
        hurried[0].timeout_ms = int(DEADLINE_S * 1_000)
        await machines.etcd.start()
        await starting
        await machines.etcd.stop()
        with pytest.raises(CoordinationError, match="does not answer"):
            await Daemon(machines.config(1), files=machines.disks[1], waits=False).start()
        await machines.etcd.start()
        machines.etcd.refuses = "permission denied"
        with pytest.raises(CoordinationError, match="refused the request"):
            await Daemon(machines.config(1), files=machines.disks[1]).start()


async def test_a_node_that_replaces_another_waits_for_its_registration_to_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_module, "_POLL_S", 0.01)
    waiting = "node 1 is registered at 127.0.0.1:9, and does not answer: waiting for that to end"
    refused = r"node id \d is in use by .*, with another data directory"

    async with around_an_etcd() as machines:
        client, key = CoordinationClient([machines.etcd.address], SystemClock()), Keys("prod").node(1)
        ended = {key: encode(Registration("127.0.0.1", 9, "lost"))}
        await client.transact({}, ended)
        with pytest.raises(CoordinationError, match=refused):
            await Daemon(machines.config(1), files=MemoryFiles()).start()
        assert caplog.text.count(waiting) == 1

        replacing = Daemon(machines.config(1, broker_session_timeout_ms=60_000), files=MemoryFiles())
        starting = asyncio.create_task(replacing.start())
        await becomes(lambda: caplog.text.count(waiting), 2)
        assert not starting.done()
        await client.transact({}, {}, [key])
        await starting
        await replacing.stop()
        async with machines.node(3):
            with pytest.raises(CoordinationError, match=refused):
                await Daemon(machines.config(3), files=MemoryFiles()).start()
        assert caplog.text.count(waiting) == 2, "one that answers is refused at once"
        await client.close()


async def test_a_call_ends_with_the_life_of_the_node_that_it_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Future()

    monkeypatch.setattr(NodeCalls, "call", hang)

    async with around_an_etcd() as machines, machines.node(1) as one:
        async with machines.node(2):
            await becomes(lambda: len(cluster_of(one).nodes()), 2)
            asked = asyncio.create_task(cluster_of(one).call(2, OpenMembersRequest(), OpenMembersResponse))
            await one_turn()
        with pytest.raises(NotReadyError, match="node 2 has ended without an answer"):
            await asked


async def test_what_is_known_to_be_deleted_costs_no_look_at_the_store() -> None:
    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        tp = TopicIdPartition(await create_topic(client, "orders", 1), 0)
        await delete_topics(client, ["orders"])
        never = TopicIdPartition(b"never there yet!", 0)
        for asked, costs in ((tp, False), (never, True), (never, False)):
            before = cluster_of(one).figures().calls
            await check_deleted(one.broker, [asked])
            assert (cluster_of(one).figures().calls > before) == costs


async def test_unknown_topics_cost_the_store_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that names topics that never existed makes the node read all topics; many requests must not do so at once."""
    under_way = [0, 0]  # now, and at most
    read = CoordinationClient.read

    async def counted_read(client: CoordinationClient, prefix: str) -> Snapshot:
        under_way[0] += 1
        under_way[1] = max(under_way)
        try:
            return await read(client, prefix)
        finally:
            under_way[0] -= 1

    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        await init_producer_id(client)  # creates the coordinator's log
        monkeypatch.setattr(CoordinationClient, "read", counted_read)
        asked = [[TopicIdPartition(bytes([each, number] * 8), 0) for number in range(11)] for each in range(5)]
        await asyncio.gather(*[check_deleted(one.broker, tps) for tps in asked])
        assert under_way == [0, 1]


async def test_checks_of_deleted_topics_do_not_wait_one_after_the_other_for_a_silent_store(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    async def silent_get(_client: CoordinationClient, _key: str) -> None:
        nonlocal calls
        calls += 1
        for _ in range(10):  # until the others wait
            await one_turn()
        raise CoordinationError("etcd does not answer")

    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        await init_producer_id(client)  # creates the coordinator's log
        monkeypatch.setattr(CoordinationClient, "get", silent_get)
        for expected in (1, 2):
            asked = [check_deleted(one.broker, [TopicIdPartition(bytes([each] * 16), 0)]) for each in range(5)]
            failures = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(one) for one in failures] == [NotReadyError] * 5
            assert calls == expected


@pytest.mark.parametrize("is_of_group", [False, True])
async def test_a_commit_waits_for_news_of_its_partitions(monkeypatch: pytest.MonkeyPatch, is_of_group: bool) -> None:
    """A partition that the coordinator has not heard of is not taken for deleted: it would get no marker. Neither if somebody has
    asked for a partition that the topic does not have."""
    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        topic_id = await create_topic(client, "orders", 1)
        await init_producer_id(client)  # creates the coordinator's log
        topics = one.broker.topics
        monkeypatch.setattr(topics, "count_of", lambda _topic_id: 0)  # as before it hears of the topic
        await check_deleted(one.broker, [TopicIdPartition(topic_id, 9)])
        request = EndTransactionRequest(
            transactional_id="tx",
            execution_id="e",
            run_id="r",
            decision=TRANSACTION_DECISION_COMMIT,
            group_id="g" if is_of_group else "",
        )
        (request.group_offsets if is_of_group else request.partitions).add(topic_id=topic_id, partition=0)
        response = await end_transaction(one.broker, TopicAuthorizer(ANYBODY, topics), request)
        with pytest.raises(NotReadyError, match="has not heard of partition 0"):
            raise from_proto(response.error)


def led_by(daemon: Daemon) -> int:
    """The number of clients' partitions that a node leads."""
    return sum(partition.is_leader for partition in daemon.broker.partitions.of_clients())


def cluster_of(daemon: Daemon) -> ClusterNode:
    """A node's view of its cluster."""
    return cast("ClusterNode", daemon.broker.cluster)


async def test_a_node_that_joins_takes_over_the_log_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The node was off for a month, or its clock is wrong: its time stamps as a leader must not look old to the next leader."""
    monkeypatch.setattr(node_module, "_LOG_TIME_S", DEADLINE_S)

    class Behind(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() - 30 * 86_400_000

    async with around_an_etcd() as machines:
        machines.clocks[2] = Behind()
        async with machines.node(1) as one:
            began_ms = SystemClock().monotonic_ms()
            async with machines.node(2) as two:
                apart_ms = abs(one.broker.time.now_ms() - two.broker.time.now_ms())
                assert apart_ms <= SystemClock().monotonic_ms() - began_ms, "it took the time over while it joined"
            assert "ahead of this node's" in caplog.text
        async with machines.node(2) as two:
            assert abs(SystemClock().wall_ms() - two.broker.time.now_ms()) < 60_000, "alone, it keeps that"


async def test_the_store_says_who_is_the_coordinator_and_silence_is_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "_CURRENT_S", DEADLINE_S)  # as long as the store answers
    async with around_an_etcd() as machines, machines.node(1) as one, client_of(one) as client:
        await init_producer_id(client)  # creates the log
        cluster = cluster_of(one)
        entry = cluster.partition(COORDINATOR_LOG)
        assert entry is not None
        assert await cluster.is_current_leader(COORDINATOR_LOG, entry.leader_epoch)
        assert not await cluster.is_current_leader(COORDINATOR_LOG, entry.leader_epoch - 1), "as one that was replaced asks"
        found = await cluster._client.get(cluster.image.keys.partition(COORDINATOR_LOG))
        assert found is not None
        other = found._replace(value=encode(entry._replace(leader=2)))
        monkeypatch.setattr(cluster._client, "get", AsyncMock(return_value=other))
        assert not await cluster.is_current_leader(COORDINATOR_LOG, entry.leader_epoch), "etcd had gone back"
        monkeypatch.undo()
        await machines.etcd.stop()
        assert not await cluster.is_current_leader(COORDINATOR_LOG, entry.leader_epoch)
        await machines.etcd.start()


async def test_readers_that_make_up_positions_cost_the_store_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with around_an_etcd() as machines, machines.node(1) as one:
        cluster, at_once, under_way = cluster_of(one), list[int](), 0

        async def counted(_tp: TopicIdPartition, _epoch: int) -> bool:
            nonlocal under_way
            under_way += 1
            at_once.append(under_way)
            await one_turn()
            under_way -= 1
            return True

        monkeypatch.setattr(cluster, "is_current_leader", counted)
        assert all(await asyncio.gather(*(cluster.is_confirmed_leader(COORDINATOR_LOG, 1) for _ in range(9))))
        assert at_once == [1] * 9
