"""Tells in the log what happens to the cluster, as this node's image has it: nodes that join and go, and who is the controller."""

from __future__ import annotations

import logging

from brokerd.cluster.image import ClusterImage, Node
from brokerd.errors import counted
from brokerd.ids import NO_LEADER, address_of
from brokerd.server.cluster.membership import Membership

logger = logging.getLogger(__name__)


class News:
    """See the module docstring."""

    def __init__(self, membership: Membership, cluster_name: str) -> None:
        self._membership = membership
        self._cluster_name = cluster_name
        self._nodes: dict[int, Node] | None = None  # as they were told of last; None before the first time
        self._controller = NO_LEADER
        self._node_epoch = 0  # of the registration that was told of

    async def run(self) -> None:
        """Follows the image, until cancelled."""
        generation = -1
        while True:
            generation = await self._membership.after(generation)
            self.look()

    def look(self) -> None:
        """Tells what has changed since the last look."""
        self._look_at_registration()
        self._look_at_nodes(self._membership.image)
        self._look_at_controller(self._membership.image)

    def _look_at_registration(self) -> None:
        life = self._membership.life
        if life is not None and life.node_epoch != self._node_epoch:
            self._node_epoch = life.node_epoch
            logger.info("registered as node %d in cluster '%s'", life.node_id, self._cluster_name)

    def _look_at_nodes(self, image: ClusterImage) -> None:
        own, before, now = self._membership.node_id, self._nodes, dict(image.nodes)
        self._nodes = now
        if before is None:
            others = ", ".join(str(node_id) for node_id in sorted(now) if node_id != own)
            logger.info("the cluster has %s%s", counted(len(now), "node"), f": besides this one {others}" if others else "")
            return
        for node_id in sorted(before.keys() - now.keys() - {own}):
            logger.warning("node %d at %s is gone", node_id, _address(before[node_id]))
        for node_id, node in sorted(now.items()):
            if node_id != own and (node_id not in before or before[node_id].epoch != node.epoch):
                again = " again" if node_id in before else ""
                logger.info("node %d at %s has joined%s", node_id, _address(node), again)

    def _look_at_controller(self, image: ClusterImage) -> None:
        if image.controller != self._controller:
            self._controller = image.controller
            if image.controller == self._membership.node_id:
                logger.info("this node is the controller")
            elif image.controller != NO_LEADER:
                logger.info("node %d is the controller", image.controller)


def _address(node: Node) -> str:
    return address_of(node.registration.host, node.registration.port)
