"""Data directories that follow their cluster: nodes in one event loop, each with real logs, around an in-memory etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

from google.protobuf.message import Message

from brokerd.cluster.image import ClusterImage
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.errors import NotReadyError
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.server.admin import Admin
from brokerd.server.cluster.directory import ClusterDirectory
from brokerd.server.cluster.membership import for_ever
from brokerd.server.cluster.topics import ClusterTopics
from brokerd.server.internode import METHODS
from brokerd.wire.errors import from_proto
from tests.support.clock import ManualClock
from tests.support.cluster_nodes import TOPIC_ID, Nodes, a_cluster, cancelled, until
from tests.support.files import MemoryFiles

R = TypeVar("R", bound=Message)
CLUSTER = ClusterIdentity("prod", "id of prod")


class Directories:
    """The directories of the nodes of a test."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.files: dict[int, MemoryFiles] = {}
        self.logs: dict[int, LogManager] = {}
        self.topics: dict[int, ClusterTopics] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.admins: dict[int, Admin] = {}
        self.unable: dict[int, set[TopicIdPartition]] = {}  # partitions that each node can neither lead nor follow

    async def start(self, *node_ids: int, cut_off: Collection[int] = ()) -> None:
        """Starts nodes with their directories. On return each node knows the present life of all, and the controller, unless it is
        among those that are `cut_off` from the store."""
        for node_id in node_ids:
            files = self.files.setdefault(node_id, MemoryFiles())
            logs = self.logs[node_id] = LogManager(BrokerConfig(node_id=node_id), files, ManualClock(), cluster=CLUSTER)
            logs.open()
            node = await self.nodes.start(node_id, logs.directory_id)
            client = self.nodes.running[node_id][0]
            unable = self.unable[node_id] = set[TopicIdPartition]()
            admin = self.admins[node_id] = Admin()
            follower = ClusterDirectory(
                client, node, logs.topics, logs.partitions, logs.changes, logs.replicas, admin, lambda _topic: None, unable
            )
            self.topics[node_id] = ClusterTopics(client, node, follower, logs.topics, logs.changes, self.call)
            self.tasks[node_id] = asyncio.create_task(for_ever(follower.run))
        running = {node_id: node for node_id, (_, node, _) in self.nodes.running.items()}

        def knows_all(image: ClusterImage) -> bool:
            found = {node_id: image.nodes[node_id].epoch for node_id in running.keys() & image.nodes.keys()}
            lives = {node_id: node.life.node_epoch for node_id, node in running.items() if node.life is not None}
            return found == lives and len(lives) == len(running) and image.controller in running

        for node_id in running.keys() - {*cut_off}:
            await until(running[node_id], knows_all)

    async def call(self, node_id: int, request: Message, response_type: type[R]) -> R:
        """A node's answer to an internode call, from its partitions alone. Raises WireErrors."""
        if node_id not in self.tasks:
            raise NotReadyError(f"node {node_id} is not alive")
        broker: Any = SimpleNamespace(partitions=self.logs[node_id].partitions, is_stopping=False)
        answered = await METHODS[type(request).__name__.removesuffix("Request")].handle(broker, request)
        response = response_type.FromString(answered.SerializeToString())
        if response.HasField("error"):
            raise from_proto(response.error)  # type: ignore[attr-defined]
        return response

    async def kill(self, node_id: int) -> None:
        """Kills a node."""
        await cancelled(self.tasks.pop(node_id))
        await self.nodes.kill(node_id)
        self.files[node_id].kill()

    async def end(self) -> None:
        """Ends all running nodes."""
        for task in self.tasks.values():
            await cancelled(task)

    def led(self) -> dict[int, list[int]]:
        """The partitions that each node leads."""
        return {
            node_id: sorted(one.tp.partition for one in self.logs[node_id].partitions if one.is_leader) for node_id in self.tasks
        }

    def held(self) -> set[str]:
        """The partition directories of all nodes."""
        return {name for files in self.files.values() for name in files.listdir() if name.startswith(TOPIC_ID.hex())}

    def log(self, node_id: int, number: int) -> Partition:
        """A partition at a node."""
        partition = self.logs[node_id].partitions.get(TopicIdPartition(TOPIC_ID, number))
        assert partition is not None
        return partition


async def becomes(found: Callable[[], object], wanted: object) -> None:
    """Returns once `found()` is `wanted`."""
    while found() != wanted:
        await asyncio.to_thread(lambda: None)  # lets the directories proceed: their steps also run in threads


@asynccontextmanager
async def following(*node_ids: int) -> AsyncIterator[Directories]:
    """The directories of these nodes, around a new etcd."""
    async with a_cluster() as nodes:
        directories = Directories(nodes)
        try:
            await directories.start(*node_ids)
            yield directories
        finally:
            await directories.end()
