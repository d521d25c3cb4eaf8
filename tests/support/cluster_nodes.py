"""Nodes of a cluster in one event loop, each with membership and controller, around an in-memory etcd. They serve no clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from brokerd.clock import SystemClock
from brokerd.cluster.changes import Transaction, create_topic
from brokerd.cluster.election import place
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import Keys, PartitionEntry, Registration, TopicEntry
from brokerd.coordination.client import CoordinationClient
from brokerd.errors import CoordinationError
from brokerd.server.cluster.controller import Controller
from brokerd.server.cluster.membership import Membership, for_ever
from brokerd.server.cluster.topics import run as run_transactions
from tests.support.faulty_etcd import FaultyEtcd
from tests.support.wait import DEADLINE_S

KEYS = Keys("prod")
TOPIC_ID = b"o" * 16
CLUSTER_ID = "id of prod"


class Nodes:
    """A test's nodes with their clients, and their etcd."""

    def __init__(self, etcd: FaultyEtcd) -> None:
        self.etcd = etcd
        self.running: dict[int, tuple[CoordinationClient, Membership, asyncio.Task[None]]] = {}

    def client(self) -> CoordinationClient:
        """A client of etcd. Its time limit is no test's subject: whoever waits for a failure sets a short one."""
        return CoordinationClient([self.etcd.address], SystemClock(), timeout_ms=int(DEADLINE_S * 1_000))

    async def start(self, node_id: int, directory_id: str = "", feature_level: int = 1) -> Membership:
        """Starts a node."""
        client = self.client()
        await client.transact({KEYS.cluster_id: 0}, {KEYS.cluster_id: CLUSTER_ID.encode()})
        own = Registration("127.0.0.1", 9000 + node_id, directory_id or f"d{node_id}", feature_level=feature_level)
        node = Membership(client, KEYS, CLUSTER_ID, node_id, own, lease_s=int(DEADLINE_S))
        try:
            await node.start()
        except CoordinationError:
            await client.close()
            raise
        self.running[node_id] = (client, node, asyncio.create_task(for_ever(Controller(client, node).run)))
        return node

    async def stop(self, node_id: int) -> None:
        """Stops a node."""
        client, node, task = self.running.pop(node_id)
        await cancelled(task)
        await node.stop()
        await client.close()

    async def kill(self, node_id: int) -> None:
        """Kills a node; its lease ends at once."""
        client, node, task = self.running.pop(node_id)
        await cancelled(task)
        for each in node._tasks:
            await cancelled(each)
        assert node._lease is not None
        await node._lease._stop()
        await client.close()
        await self.etcd.end_lease(node._lease.id)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Nodes]:
    """A new etcd without running nodes."""
    async with an_etcd() as etcd:
        nodes = Nodes(etcd)
        try:
            yield nodes
        finally:
            for node_id in list(nodes.running):
                await nodes.stop(node_id)


@asynccontextmanager
async def an_etcd() -> AsyncIterator[FaultyEtcd]:
    """A running etcd."""
    etcd = FaultyEtcd()
    await etcd.start()
    try:
        yield etcd
    finally:
        await etcd.stop()


async def until(node: Membership, holds: Callable[[ClusterImage], object]) -> None:
    """Returns once `holds` is true of the node's image."""
    generation = node.generation
    while not holds(node.image):
        generation = await node.after(generation)


async def create(nodes: Nodes, node: Membership, count: int, replication_factor: int = 1) -> None:
    """Creates topic "orders", placed by this node's image."""
    topic, entries = TopicEntry("orders", count, {}), place(node.image, count, replication_factor)
    await change(nodes, create_topic(node.image, TOPIC_ID, topic, entries))
    await until(node, lambda image: image.topic_id("orders"))


async def change(nodes: Nodes, transactions: list[Transaction]) -> None:
    """Runs transactions, which must succeed."""
    client = nodes.client()
    assert await run_transactions(client, transactions) is not None or not transactions
    await client.close()


def entries_of(image: ClusterImage) -> list[PartitionEntry]:
    """The entries of all partitions, by number."""
    return [partition.entry for _, partition in sorted(image.partitions())]


def leaders(image: ClusterImage) -> list[int]:
    """The leaders of all partitions, by number."""
    return [entry.leader for entry in entries_of(image)]
