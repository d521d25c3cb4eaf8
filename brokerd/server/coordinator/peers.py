"""The other nodes, as the coordinator and the leaders of partitions reach them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from brokerd.ids import TopicIdPartition

R = TypeVar("R", bound=Message)


class Peers(Protocol):
    """The cluster as this node's image shows it, and calls to its other nodes."""

    @property
    def node_id(self) -> int:
        """This node's id."""

    def leader_of(self, tp: TopicIdPartition, /) -> int:
        """The node id of a partition's leader; NO_LEADER if there is none."""

    def leaders(self) -> Collection[int]:
        """The nodes alive that lead any partition, this one included if it does."""

    def coordinator(self) -> int:
        """The node id of the coordinator; NO_LEADER if there is none."""

    async def call(self, node_id: int, request: Message, response_type: type[R], /) -> R:
        """The response of another node to a request of the Internode service, whose name without `Request` is the method's. Raises
        the WireError in the response; NotReadyError if the node cannot be reached."""


class Alone:
    """The Peers of a node that is alone: it leads everything and is the coordinator."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id

    def leader_of(self, _tp: TopicIdPartition) -> int:
        """This node."""
        return self.node_id

    def leaders(self) -> Collection[int]:
        """This node."""
        return (self.node_id,)

    def coordinator(self) -> int:
        """This node."""
        return self.node_id

    async def call(self, node_id: int, _request: Message, _response_type: type[R]) -> R:
        """Not called: there is no other node."""
        raise AssertionError(f"node {node_id} is called, but this node is alone")
