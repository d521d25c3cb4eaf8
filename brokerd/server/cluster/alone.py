"""A standalone node: the interface of ClusterNode (node.py) without a cluster. It leads all partitions, and is the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from brokerd.cluster.image import Node
from brokerd.cluster.keys import InSyncReplica, PartitionEntry
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_changes import TopicChanges
from brokerd.datadir.topic_store import Topic
from brokerd.errors import InvalidReplicationFactorError, InvalidRequestError
from brokerd.ids import NO_LEADER, PRODUCER_NUMBERS, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.server.admin import Admin
from brokerd.server.cluster.topics import Drain
from brokerd.wire.v1.topics_pb2 import CopyEnd

R = TypeVar("R", bound=Message)


class Alone:
    """See the module docstring."""

    def __init__(
        self,
        this_node: Callable[[], Node],
        partitions: PartitionTable,
        changes: TopicChanges,
        admin: Admin,
        on_deleted: Callable[[Topic], None],
    ) -> None:
        """`on_deleted`: see TopicChanges.delete."""
        self._this_node = this_node
        self._partitions = partitions
        self._changes = changes
        self._admin = admin
        self._on_deleted = on_deleted

    is_registered = True  # there is no store

    @property
    def controller_id(self) -> int:
        """This node."""
        return self._partitions.node_id

    def nodes(self) -> Sequence[Node]:
        """This node."""
        return [self._this_node()]

    def partition(self, tp: TopicIdPartition) -> PartitionEntry:
        """An entry with this node as the only replica."""
        node_id, found = self._partitions.node_id, self._partitions.replica(tp)
        leader = node_id if found is not None and found.is_leader else NO_LEADER
        epoch = found.leader_epoch if found is not None else 0
        return PartitionEntry((node_id,), (InSyncReplica(node_id, ""),), leader, leader_epoch=epoch)

    async def find_coordinator(self) -> Node:
        """This node."""
        return self._this_node()

    async def producer_numbers(self, at_least: int) -> tuple[int, int]:
        """All numbers from `at_least` on."""
        return at_least, PRODUCER_NUMBERS

    # The Peers protocol (coordinator/members.py): this node leads everything

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self._partitions.node_id

    def leader_of(self, _tp: TopicIdPartition) -> int:
        """This node."""
        return self.node_id

    def leaders(self) -> Collection[int]:
        """This node."""
        return (self.node_id,)

    async def is_current_leader(self, _tp: TopicIdPartition, _epoch: int) -> bool:
        """True: no other node can be elected."""
        return True

    is_confirmed_leader = is_current_leader

    def has_topic(self, _topic_id: bytes) -> bool:
        """False: a topic unknown to this node does not exist."""
        return False

    async def call(self, node_id: int, _request: Message, _response_type: type[R]) -> R:
        """Never called: there is no other node."""
        raise AssertionError(f"node {node_id} is called, but this node is alone")

    async def check_deleted(self, tps: Collection[TopicIdPartition]) -> set[bytes]:
        """Passes: a partition unknown to this node is deleted."""
        return {tp.topic_id for tp in tps}

    async def has_log_start(self, partition: Partition, timeout_s: float) -> None:
        """Returns at once: there are no other replicas."""

    # Changes of topics

    @property
    def topics(self) -> Alone:
        """This object, which has the methods of ClusterTopics."""
        return self

    async def hear_of(self, _names: Iterable[str], _topic_ids: Iterable[bytes]) -> bool:
        """True: no other node creates topics."""
        return True

    async def create_coordinator(self) -> None:
        """Creates the coordinator's log."""
        await self._admin.run(self._changes.create_coordinator())

    def check_factor(self, name: str, replication_factor: int) -> int:
        """Returns 1. Raises InvalidReplicationFactorError for a higher factor."""
        if replication_factor > 1:
            raise InvalidReplicationFactorError(
                f"topic '{name}' cannot have a replication factor of {replication_factor}: this node is alone, and "
                "copies need a cluster of several"
            )
        return 1

    async def create(self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int = 0) -> Topic:
        """See TopicChanges, as for the other changes. Also raises InvalidReplicationFactorError."""
        self.check_factor(name, replication_factor)
        return await self._admin.run(self._changes.create(name, partitions, configs))

    async def grow(self, name: str, total: int) -> Topic:
        """Adds partitions up to `total`."""
        return await self._admin.run(self._changes.grow(name, total))

    async def alter(self, name: str, set_configs: Mapping[str, str], unset: Iterable[str]) -> Topic:
        """Changes settings."""
        return await self._admin.run(self._changes.alter(name, set_configs, unset))

    async def reassign(self, name: str, _number: int, _replicas: Sequence[int], *, is_order_only: bool = False) -> bool:  # noqa: ARG002
        """Raises InvalidRequestError."""
        raise InvalidRequestError(f"topic '{name}' cannot be moved: this node is alone, and has the only copy")

    async def drain(self, node_id: int, *, validate_only: bool = False) -> Drain:  # noqa: ARG002 - as in ClusterTopics
        """Raises InvalidRequestError."""
        raise InvalidRequestError(f"node {node_id} cannot be drained: this node is alone, and there is no other one to move to")

    async def elect_unclean(self, name: str, number: int, *, validate_only: bool = False) -> Sequence[CopyEnd]:  # noqa: ARG002
        """Raises InvalidRequestError."""
        raise InvalidRequestError(f"partition {number} of topic '{name}' has no other copy: this node is alone")

    async def delete(self, name: str) -> Topic:
        """Deletes a topic."""
        return await self._admin.run(self._changes.delete(name, self._on_deleted))
