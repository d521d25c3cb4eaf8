"""The controller: the node that holds the controller key, under its lease. It elects leaders, moves partitions to their target
replicas, sweeps the partitions of ids without a topic, and raises the feature level.

All its state is in the keys. Each election compares the entry that it rests on, so a node that wrongly believes that it is still
the controller does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Sequence

from brokerd.cluster.changes import OPERATIONS_MAX, sweep
from brokerd.cluster.election import elect
from brokerd.cluster.image import ClusterImage, PartitionAt
from brokerd.cluster.keys import PartitionEntry, encode
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.errors import CoordinationError, counted, some_of
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.replication.reassignment import advanced, grown
from brokerd.server.cluster.membership import Membership
from brokerd.server.cluster.topics import run

logger = logging.getLogger(__name__)
_RETRY_S = 1.0
# Elections per transaction: below the limit, since all of them are decided again if one entry has changed meanwhile.
_AT_ONCE = OPERATIONS_MAX // 4
_LOOKED_AT = 1_000  # partitions between yields to the event loop: about 1 ms
_ORPHANED_MS = 60_000  # before partitions without a topic are swept: it may still be in creation


class Controller:
    """Takes the controller key when it is free, and does the controller's work while this node holds it."""

    def __init__(self, client: CoordinationClient, membership: Membership, default_factor: int = 1) -> None:
        """`default_factor`: replication factor of the coordinator's log, reached as nodes join."""
        self._default_factor = default_factor
        self.elections = 0  # held by this node
        self._client = client
        self._membership = membership
        self._orphans: dict[tuple[bytes, int], int] = {}  # as in image.orphans(), with the time when first seen (ms)

    async def run(self) -> None:
        """Acts on each change of the image, until cancelled."""
        generation = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ORPHANED_MS / 1000):  # orphans become due without a change
                    generation = await self._membership.after(generation)
            try:
                await self._act()
            except CoordinationError as error:
                logger.warning("%s: elections wait", error)
                await asyncio.sleep(_RETRY_S)
                generation = 0  # retry without waiting for a change

    async def _act(self) -> None:
        membership, image = self._membership, self._membership.image
        if membership.life is None:
            return
        if image.controller not in image.nodes:  # none, or a value that is not a live node's
            key, value = image.keys.controller, str(membership.node_id).encode()
            await self._client.transact({key: image.controller_revision}, {key: value}, lease_id=membership.lease_id)
        elif image.controller == membership.node_id:
            await self._elect(image)
            await self._sweep(image)
            await self._raise_level(image)

    async def _elect(self, image: ClusterImage) -> None:
        partitions = image.partitions()
        while some := list(itertools.islice(partitions, _LOOKED_AT)):
            histories = self._client.histories
            due = [(tp, at, changed) for tp, at in some if (changed := self._changed(tp, at.entry, image)) is not None]
            for at in range(0, len(due), _AT_ONCE):
                await self._hold(image, due[at : at + _AT_ONCE], histories)
            await asyncio.sleep(0)

    def _changed(self, tp: TopicIdPartition, entry: PartitionEntry, image: ClusterImage) -> PartitionEntry | None:
        """The entry that should replace a partition's; None if no change is due."""
        changed = elect(entry, image.nodes) or advanced(entry, image.nodes)
        if changed is None and tp == COORDINATOR_LOG:
            changed = grown(entry, self._default_factor, image.nodes, Counter())
        return changed

    async def _hold(
        self, image: ClusterImage, due: Sequence[tuple[TopicIdPartition, PartitionAt, PartitionEntry]], histories: int
    ) -> None:
        compares = {image.keys.partition(tp): partition.mod_revision for tp, partition, _ in due}
        puts = {image.keys.partition(tp): encode(entry) for tp, _, entry in due}
        if await self._client.transact(compares, puts, histories=histories) is not None:
            self.elections += sum(entry.leader_epoch > partition.entry.leader_epoch for _, partition, entry in due)
            self._tell(image, due)

    def _tell(self, image: ClusterImage, due: Sequence[tuple[TopicIdPartition, PartitionAt, PartitionEntry]]) -> None:
        leaders, moved = list[tuple[str, int]](), list[str]()
        for tp, (before, _), entry in due:
            name = image.partition_name(tp)
            if (entry.leader, entry.leader_node_epoch) != (before.leader, before.leader_node_epoch):
                leaders.append((name, entry.leader))
            else:
                moved.append(name)
        left = [name for name, leader in leaders if leader == NO_LEADER]
        elected = [f"{name} on node {leader}" for name, leader in leaders if leader != NO_LEADER]
        if left:
            text = "no leader for %s, until a node that has all records is back: %s"
            logger.warning(text, counted(len(left), "partition"), some_of(left))
        if elected:
            logger.info("elected leaders of %s: %s", counted(len(elected), "partition"), some_of(elected))
        if moved:
            logger.info("changed the replicas of %s: %s", counted(len(moved), "partition"), some_of(moved))

    async def _sweep(self, image: ClusterImage) -> None:
        now_ms = self._client.clock.monotonic_ms()
        self._orphans = {orphan: self._orphans.get(orphan, now_ms) for orphan in image.orphans()}
        for (topic_id, _), since_ms in self._orphans.items():
            if now_ms - since_ms >= _ORPHANED_MS and await run(self._client, sweep(image, topic_id)) is not None:
                logger.info("swept the partitions of topic id %s, which has no topic", topic_id.hex())

    async def _raise_level(self, image: ClusterImage) -> None:
        """Raises the level to the highest that every node knows. Waits for nodes that are down and have partitions."""
        key = image.keys.feature_level
        level = min((node.registration.feature_level for node in image.nodes.values()), default=0)
        if level <= image.feature_level or image.problems.keys() - {key}:  # an unreadable value may be of a node that is down
            return
        if all(image.nodes.keys() >= {*at.entry.replicas, *at.entry.target} for _, at in image.partitions()):
            compares = {image.keys.node(node.id): node.mod_revision for node in image.nodes.values()} | {
                key: image.feature_revision
            }
            if await self._client.transact(compares, {key: str(level).encode()}) is not None:
                logger.info("the cluster's feature level is %d now: versions that do not know it cannot join any more", level)
