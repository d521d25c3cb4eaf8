"""Topics that any node of a cluster changes for its clients: the responses, and the resulting state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from brokerd.cluster.changes import Transaction
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import PartitionEntry, TopicEntry
from brokerd.config.broker import BrokerConfig
from brokerd.coordination.client import Changes, CoordinationClient, Snapshot, watch
from brokerd.datadir.topic_store import COORDINATOR, Topic
from brokerd.errors import (
    CoordinationError,
    Fate,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NotReadyError,
    StorageError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.server.cluster import membership, topics
from brokerd.server.cluster.membership import Membership
from brokerd.server.handlers import metadata
from brokerd.server.handlers import topics as topic_handlers
from brokerd.server.security.audit import Audit
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.sharing import Turns
from brokerd.wire.v1 import metadata_pb2, topics_pb2
from tests.support.clock import ManualClock
from tests.support.cluster_directories import Directories, becomes, following
from tests.support.cluster_nodes import cancelled, until
from tests.support.logged import messages_of
from tests.support.loop import one_turn

pytestmark = pytest.mark.usefixtures("quick_retries")


async def test_of_two_nodes_that_create_a_name_one_wins() -> None:
    async with following(1, 2) as directories:
        names = [f"t{number}" for number in range(6)]

        async def create(node_id: int, name: str) -> Topic:
            while True:
                try:
                    return await directories.topics[node_id].create(name, 2, {})
                except NotReadyError as error:  # the node is far behind the store
                    if error.fate is not Fate.NOT_APPENDED:
                        raise

        done = await asyncio.gather(*(create(node_id, name) for name in names for node_id in (1, 2)), return_exceptions=True)
        for first, second in zip(done[::2], done[1::2], strict=True):
            assert sorted([type(first).__name__, type(second).__name__]) == ["Topic", "TopicAlreadyExistsError"]
        won = {topic.name: topic.id for topic in done if isinstance(topic, Topic)}
        for logs in directories.logs.values():
            await becomes(lambda logs=logs: {topic.name: topic.id for topic in logs.topics.list()}, won)  # type: ignore[misc]
        await becomes(lambda: sum(map(len, directories.led().values())), 12)


async def test_the_coordinator_has_one_topic_whoever_creates_it() -> None:
    async with following(1, 2, 3) as directories:
        await asyncio.gather(*(directories.topics[node_id].create_coordinator() for node_id in (1, 2, 3, 1)))
        revision = directories.nodes.etcd.revision
        await directories.topics[2].create_coordinator()
        assert directories.nodes.etcd.revision == revision
        image = directories.nodes.running[3][1].image
        await until(directories.nodes.running[3][1], lambda image: image.topic(COORDINATOR.id))
        assert image.topic(COORDINATOR.id) == TopicEntry(COORDINATOR.name, 1, COORDINATOR.configs)
        partition = image.partition(TopicIdPartition(COORDINATOR.id, 0))
        assert partition is not None
        await becomes(directories.led, {node_id: [0] if node_id == partition.entry.leader else [] for node_id in (1, 2, 3)})
        own = directories.logs[partition.entry.leader].partitions.coordinator_log
        assert own is not None
        assert own.config.retention_ms == -1


async def test_many_that_look_for_the_coordinator_create_it_once() -> None:
    async with following(1) as directories:
        client = directories.nodes.running[1][0]
        before = client.calls
        await asyncio.gather(*(directories.topics[1].create_coordinator() for _ in range(100)))
        assert client.calls - before <= 4, "its partition, and its name, and perhaps a lease"


async def test_added_partitions_have_as_many_copies_as_the_others() -> None:
    async with following(1, 2) as directories:
        topics, node = directories.topics[1], directories.nodes.running[1][1]
        await topics.create("orders", 1, {}, 2)
        await directories.kill(2)
        await until(node, lambda image: 2 not in image.nodes)
        with pytest.raises(InvalidReplicationFactorError, match="cannot have a replication factor of 2: 1 node of the cluster is"):
            await topics.grow("orders", 2)
        await directories.start(2)
        await topics.grow("orders", 2)
        partitions = node.image.partitions_of(directories.logs[1].topics.by_name("orders").id)
        assert [len(at.entry.replicas) for at in partitions.values()] == [2, 2]


async def test_a_change_of_order_gives_no_lead_to_a_node_whose_disk_refuses() -> None:
    async with following(1, 2) as directories:
        topics, (node, full) = directories.topics[1], [directories.nodes.running[node_id][1] for node_id in (1, 2)]
        await topics.create("orders", 1, {}, 2)
        tp = TopicIdPartition(directories.logs[1].topics.by_name("orders").id, 0)

        def entry_of_it(image: ClusterImage) -> PartitionEntry:
            at = image.partition(tp)
            assert at is not None
            return at.entry

        await full.publish_refusals(True)
        for each in (node, full):
            await until(each, lambda image: image.nodes[2].registration.refuses)
        with pytest.raises(InvalidRequestError, match="node 2 cannot lead orders-0: its disk refuses"):
            await topics.reassign("orders", 0, [2, 1], is_order_only=True)
        await full.publish_refusals(False)
        await until(node, lambda image: not image.nodes[2].registration.refuses)
        assert await topics.reassign("orders", 0, [2, 1], is_order_only=True)
        await until(node, lambda image: entry_of_it(image).leader == 2)
        assert not await topics.reassign("orders", 0, [], is_order_only=True)
        assert entry_of_it(node.image).replicas == (2, 1), "the first leads already"


async def test_changes_of_one_topic_at_several_nodes_all_hold() -> None:
    async with following(1, 2, 3) as directories:
        topics = directories.topics
        await topics[1].create("orders", 1, {})
        settings = ["retention.ms", "segment.ms", "retention.bytes", "max.message.bytes"]
        every = [topics[1 + at % 3].alter("orders", {name: "4096"}, []) for at, name in enumerate(settings)]
        await asyncio.gather(*every, topics[2].grow("orders", 5))

        def known() -> list[tuple[int, dict[str, str]]]:
            found = [logs.topics.by_name("orders") for logs in directories.logs.values()]
            return [(topic.partition_count, dict(topic.configs)) for topic in found]

        await becomes(known, [(5, dict.fromkeys(settings, "4096"))] * 3)
        topic = directories.logs[1].topics.by_name("orders")
        with pytest.raises(InvalidPartitionsError, match="the number can only grow, from the current 5"):
            await topics[3].grow("orders", 5)
        assert (await topics[3].delete("orders")).id == topic.id
        with pytest.raises(UnknownTopicOrPartitionError):
            await topics[3].alter("orders", {"retention.ms": "1"}, [])


async def test_the_transaction_that_makes_a_change_decides_its_fate(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1) as directories:
        client, own = directories.nodes.running[1][0], directories.topics[1]
        ran: list[Any] = []

        async def loses(*args: Any, **named: Any) -> int | None:
            ran.append(args)
            revision = await client.transact(*args, **named)
            if len(ran) == lost:
                raise CoordinationError("the answer is lost", is_fate_unknown=True)
            return revision

        lost = 0
        await own.create("orders", 1, {})
        monkeypatch.setattr(own, "_client", SimpleNamespace(transact=loses, get=client.get, histories=0))
        changes: list[tuple[int, Awaitable[Topic], Fate, set[str]]] = [
            (1, own.create("many", 200, {}), Fate.NOT_APPENDED, {"orders"}),  # takes three transactions
            (3, own.create("many", 200, {}), Fate.UNKNOWN, {"orders", "many"}),
            (1, own.delete("orders"), Fate.UNKNOWN, {"many"}),
        ]
        for lost, change, fate, names in changes:
            ran.clear()
            with pytest.raises(WireError, match="the answer is lost") as raised:
                await change
            assert (len(ran), raised.value.fate) == (lost, fate)
            await becomes(lambda: {topic.name for topic in directories.logs[1].topics.list()}, names)


async def test_a_node_that_does_not_follow_knows_whether_the_change_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1) as directories:
        own = directories.topics[1]
        await own.create("orders", 1, {})
        monkeypatch.setattr(topics, "_PATIENCE_S", 0.1)
        await cancelled(directories.tasks[1])
        for change, fate in ((own.delete("orders"), Fate.UNKNOWN), (own.alter("orders", {}, []), Fate.NOT_APPENDED)):
            with pytest.raises(NotReadyError, match="has not heard of the change of topic 'orders' yet") as raised:
                await change
            assert raised.value.fate is fate


async def test_a_read_only_node_changes_nothing() -> None:
    async with following(1) as directories:
        own, logs = directories.topics[1], directories.logs[1]
        await own.create("orders", 1, {})
        logs._opening.read_only_reason = "a test"
        revision = directories.nodes.etcd.revision
        changes = (own.delete("orders"), own.create("clicks", 1, {}), own.grow("orders", 2), own.alter("orders", {}, []))
        for change in changes:
            with pytest.raises(StorageError, match="the data directory is read-only: a test"):
                await change
        assert directories.nodes.etcd.revision == revision


class Late:
    """Delays what the store sends to a node until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._client: CoordinationClient | None = None
        self._may_follow = asyncio.Event()
        monkeypatch.setattr(membership, "watch", self._watch)

    async def _watch(self, client: CoordinationClient, prefix: str) -> AsyncIterator[Snapshot | Changes]:
        async for found in watch(client, prefix):
            if client is self._client:
                await self._may_follow.wait()
            yield found

    def stop(self, directories: Directories, node_id: int) -> None:
        self._client = directories.nodes.running[node_id][0]

    def go_on(self) -> None:
        self._may_follow.set()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    return Late(monkeypatch)


async def test_a_refusal_rests_on_what_the_store_says(late: Late) -> None:
    async with following(1, 2) as directories:
        own, other = directories.topics[1], directories.topics[2]
        await own.create("orders", 2, {})
        first = await other.alter("orders", {}, [])
        late.stop(directories, 2)
        await own.delete("orders")
        second = await own.create("clicks", 1, {})
        changes = [
            asyncio.create_task(change)
            for change in (other.create("orders", 1, {}), other.alter("clicks", {"retention.ms": "7"}, []), other.delete("none"))
        ]
        await asyncio.wait(changes[2:])
        assert [change.done() for change in changes] == [False, False, True]
        assert isinstance(changes[2].exception(), UnknownTopicOrPartitionError)
        late.go_on()
        created, altered = await asyncio.gather(*changes[:2])
        assert created.partition_count == 1
        assert created.id != first.id
        assert (altered.id, dict(altered.configs)) == (second.id, {"retention.ms": "7"})


async def test_a_node_is_asked_for_a_topic_that_it_has_not_heard_of(late: Late) -> None:
    def told_by(directories: Directories, request: Message) -> asyncio.Task[Any]:
        known = directories.logs[2].topics
        broker: Any = SimpleNamespace(
            cluster=SimpleNamespace(
                topics=directories.topics[2], nodes=list, controller_id=1, is_registered=True, partition=lambda _tp: None
            ),
            topics=known,
            partitions=directories.logs[2].partitions,
            config=BrokerConfig(),
            cluster_id="",
            turns=Turns(),
        )
        handle: Any = metadata.handle if isinstance(request, metadata_pb2.MetadataRequest) else metadata.describe
        return asyncio.create_task(handle(broker, TopicAuthorizer(ANYBODY, known), request))

    async with following(1, 2) as directories:
        late.stop(directories, 2)
        created = await directories.topics[1].create("orders", 1, {})
        asked = [
            told_by(directories, request)
            for request in (
                metadata_pb2.MetadataRequest(topics=["orders"]),
                metadata_pb2.MetadataRequest(topic_ids=[created.id]),
                topics_pb2.DescribeTopicsRequest(names=["orders"]),
            )
        ]
        await one_turn()
        assert not directories.logs[2].topics.has("orders")
        late.go_on()
        for response in await asyncio.gather(*asked):
            assert [(topic.name, topic.topic_id, topic.HasField("error")) for topic in response.topics] == [
                ("orders", created.id, False)
            ]


async def test_a_topic_that_is_deleted_at_a_node_that_is_behind_has_its_line(
    late: Late, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    async with following(1, 2) as directories:
        await directories.topics[1].create("orders", 1, {})
        await directories.topics[2].alter("orders", {}, [])
        monkeypatch.setattr(topics, "_PATIENCE_S", 0.1)
        late.stop(directories, 2)
        known = directories.logs[2].topics
        broker: Any = SimpleNamespace(
            cluster=SimpleNamespace(topics=directories.topics[2]), topics=known, audit=Audit(ManualClock()), turns=Turns()
        )
        request = topics_pb2.DeleteTopicsRequest(names=["orders"])
        (result,) = (await topic_handlers.delete(broker, TopicAuthorizer(ANYBODY, known), request)).results
        assert "has not heard of the change" in result.error.message
        late.go_on()
    (line,) = messages_of(caplog, "brokerd.audit")
    assert "perhaps deleted topic 'orders': " in line


async def test_a_drain_that_is_half_made_has_its_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    async with following(1, 2) as directories:
        own, known, made = directories.topics[1], directories.logs[1].topics, list[int | None]()
        await own.create("orders", 6, {})
        monkeypatch.setattr(topics, "_AT_ONCE", 1)
        change = own._run

        async def run(transactions: Sequence[Transaction]) -> int | None:
            if made:
                raise NotReadyError("etcd does not answer", fate=Fate.NOT_APPENDED)
            made.append(await change(transactions))
            return made[-1]

        monkeypatch.setattr(own, "_run", run)
        broker: Any = SimpleNamespace(cluster=SimpleNamespace(topics=own), topics=known, audit=Audit(ManualClock()), turns=Turns())
        drained = await topic_handlers.drain(broker, TopicAuthorizer(ANYBODY, known), topics_pb2.DrainNodeRequest(node_id=1))
        assert Fate(drained.error.fate) is Fate.UNKNOWN
    (line,) = messages_of(caplog, "brokerd.audit")
    assert "perhaps drained node 1: etcd does not answer" in line


async def test_who_asks_for_what_there_is_not_costs_the_store_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1) as directories:
        own, at_once = directories.topics[1], list[int]()
        get, under_way = own._client.get, 0

        async def counted(key: str) -> Any:
            nonlocal under_way
            under_way += 1
            at_once.append(under_way)
            try:
                return await get(key)
            finally:
                under_way -= 1

        monkeypatch.setattr(own._client, "get", counted)
        await asyncio.gather(*(own.hear_of([f"none-{number}-{each}" for each in range(3)], []) for number in range(8)))
        assert at_once == [1] * 24
        assert not await own.hear_of([f"none-{number}" for number in range(101)], []), "it has not asked for all of them"
        assert len(at_once) == 124


async def test_what_there_is_not_is_asked_for_once_and_given_up(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2) as directories:
        other, client = directories.topics[2], directories.nodes.running[2][0]
        calls = client.calls
        assert await other.hear_of(["none", "no/name", ".."], [bytes(15) + b"\1"])
        assert client.calls == calls + 2  # names that no topic can have are not requested
        monkeypatch.setattr(topics, "_HEARS_S", 0.05)
        late.stop(directories, 2)
        await directories.topics[1].create("orders", 1, {})
        assert not await other.hear_of(["orders"], [])
        assert not directories.logs[2].topics.has("orders")
        monkeypatch.setattr(Membership, "is_registered", False)
        calls = client.calls
        assert not await other.hear_of(["orders"], [])
        assert client.calls == calls
        late.go_on()


async def test_who_deletes_is_told_what_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2) as directories:
        own = directories.topics[1]
        first = await own.create("orders", 1, {})
        run, again = own._run, []

        async def meets_a_creation(transactions: Sequence[Transaction]) -> int | None:
            done = await run(transactions)
            monkeypatch.setattr(own, "_run", run)
            again.append(await directories.topics[2].create("orders", 1, {}))
            return done

        monkeypatch.setattr(own, "_run", meets_a_creation)
        assert (await own.delete("orders")).id == first.id
        assert again[0].id != first.id


async def test_a_change_that_the_store_does_not_take_says_so() -> None:
    async with following(1) as directories:
        topics, etcd = directories.topics[1], directories.nodes.etcd
        await topics.create("orders", 1, {})
        etcd.loses_answers = True
        with pytest.raises(StorageError, match="the change may have been made") as unknown:
            await topics.alter("orders", {"retention.ms": "7"}, [])
        assert unknown.value.fate is Fate.UNKNOWN
        etcd.loses_answers = False
        await becomes(lambda: dict(directories.logs[1].topics.by_name("orders").configs), {"retention.ms": "7"})
        await etcd.stop()
        client = directories.nodes.running[1][0]
        patient_ms, client.timeout_ms = client.timeout_ms, 1_000
        with pytest.raises(NotReadyError, match="topics cannot be changed at present"):
            await topics.create("clicks", 1, {})
        client.timeout_ms = patient_ms
        assert directories.led() == {1: [0]}
        await etcd.start()
        await topics.create("clicks", 1, {})
