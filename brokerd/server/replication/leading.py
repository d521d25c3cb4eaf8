"""The partitions with several replicas that this node leads: their followers' reports, and the changes of their in-sync sets,
written to etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from brokerd.cluster.changes import OPERATIONS_MAX
from brokerd.cluster.image import Node
from brokerd.cluster.keys import PartitionEntry, encode
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import CoordinationError, Fate, NotLeaderError, counted, some_of
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.purgatory import Purgatory
from brokerd.replication.leader import Lag, LedPartition, Proposal, handed_over, in_sync_of, resigned
from brokerd.server.cluster.membership import Membership
from brokerd.server.paging import Pauses
from brokerd.storage.refusals import Refusals

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.5
_PROPOSALS_MAX = OPERATIONS_MAX // 4  # per transaction


class ReplicationFigures(NamedTuple):
    """Replication metrics of this node."""

    under_replicated: int = 0
    under_min_isr: int = 0
    reassigning: int = 0
    lag_records: int = 0
    lag_ms: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    elections: int = 0  # by this node as controller
    bytes_in: int = 0
    bytes_out: int = 0


class Leading:
    """See the module docstring."""

    def __init__(
        self,
        client: CoordinationClient,
        membership: Membership,
        partitions: PartitionTable,
        lag_max_ms: int,
        refusals: Refusals,
    ) -> None:
        self._client = client
        self._membership = membership
        self._partitions = partitions
        self._lag_max_ms = lag_max_ms
        self._refusals = refusals
        self._led: dict[TopicIdPartition, LedPartition] = {}
        self.unable: set[TopicIdPartition] = set()  # partitions that this node can neither lead nor follow: it resigns
        self.bytes_out = 0  # of batches sent to followers
        self._isr_shrinks = self._isr_expands = 0
        self._too_few: set[TopicIdPartition] = set()  # partitions below min.insync.replicas, as last logged
        self._heard_ms: dict[int, int] = {}  # time of the last request, by node id
        self.streams: dict[int, object] = {}  # each follower's newest stream, by node id
        self._looked = asyncio.Event()  # set to start a round of `run` early
        self._told = asyncio.Event()  # set and replaced when a follower reports or the image changes
        self.watchers = Purgatory()  # of followers' streams; its operations never expire

    def follow_image(self) -> None:
        """Applies the image to the partitions that this node leads. Call it after each change of the image or of roles, before the
        next await."""
        for tp, led in list(self._led.items()):
            if led.is_over or self._partitions.replica(tp) is not led.partition:
                del self._led[tp]
        for partition in self._partitions:
            if partition.is_leader:
                self._follow_entry(partition)
        self._looked.set()
        self._tell()

    def _follow_entry(self, partition: Partition, *, is_followed: bool = False) -> None:
        at = self._membership.image.partition(partition.tp)
        if at is None or at.entry.leader != self._membership.node_id or at.entry.leader_epoch != partition.leader_epoch:
            return  # unchanged until this node takes its new role
        known = self._led.get(partition.tp)
        if known is not None and known.partition is partition and not known.is_over:
            known.entry_changed(at)
        elif len(at.entry.replicas) > 1 or is_followed:
            self._led[partition.tp] = LedPartition(partition, at, self._client.clock.monotonic_ms())

    def _tell(self) -> None:
        """Wakes the callers that wait for followers' reports."""
        told, self._told = self._told, asyncio.Event()
        told.set()

    def led(self, partition: Partition) -> LedPartition | None:
        """A partition's followers; None if it has none, or if this node does not lead it."""
        led = self._led.get(partition.tp)
        return led if led is not None and led.partition is partition else None

    def heard(self, node: Node) -> None:
        """A follower has sent a request."""
        self._heard_ms[node.id] = self._client.clock.monotonic_ms()

    def withdrawn(self, tp: TopicIdPartition, node_id: int) -> None:
        """Voids a follower's report for joining: it no longer follows, or has to begin another stream."""
        led = self._led.get(tp)
        if led is not None:
            led.withdrawn(node_id)

    async def has_log_start(self, partition: Partition, offset: int) -> None:
        """Returns once this log start is durable on all in-sync replicas. Raises NotLeaderError if another node may lead before."""
        epoch = partition.leader_epoch
        while partition.leads_in(epoch):
            led, at = self._led.get(partition.tp), self._membership.image.partition(partition.tp)
            if led is not None and led.entry.leader_epoch == epoch:
                if min(led.log_starts(), default=offset) >= offset:
                    return
            elif at is None or len(at.entry.replicas) == 1:
                return  # no other replica; otherwise `follow_image` has yet to run
            await self._told.wait()
        text = f"{partition.name}: the log start has moved, but the leader has changed: the next one may not have it"
        raise NotLeaderError(text, fate=Fate.UNKNOWN)

    def reported(self, partition: Partition, node: Node, durable_end: int, log_start_offset: int) -> None:
        """A follower reports how far its durable log agrees with this one: once, perhaps as soon as this node leads."""
        led = self.led(partition)
        if led is None or led.is_over:
            # The follower may learn before this node does that it was added, and does not repeat its report.
            self._follow_entry(partition, is_followed=True)
            led = self.led(partition)
        if led is not None:
            led.reported(node, durable_end, log_start_offset, self._client.clock.monotonic_ms())
            self._tell()

    def disputed(self, partition: Partition) -> None:
        """A follower has records of another history: see LedPartition.disputed."""
        led = self.led(partition)
        if led is not None:
            led.disputed()
            self._looked.set()

    async def figures(self, pauses: Pauses) -> ReplicationFigures:
        """Metrics of the partitions with several replicas that this node leads."""
        now_ms, under_replicated, under_min_isr, reassigning, lag = self._client.clock.monotonic_ms(), 0, 0, 0, Lag(0, 0)
        for led in list(self._led.values()):
            under_replicated += in_sync_of(led.entry).is_under_replicated
            under_min_isr += not led.partition.has_enough_in_sync
            reassigning += bool(led.entry.target)
            lag = Lag(*map(max, lag, led.lag(now_ms)))
            await pauses.after()
        return ReplicationFigures(
            under_replicated,
            under_min_isr,
            reassigning,
            *lag,
            isr_shrinks=self._isr_shrinks,
            isr_expands=self._isr_expands,
            bytes_out=self.bytes_out,
        )

    async def run(self) -> None:
        """Writes changes as they become due, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    await self._looked.wait()
            except TimeoutError:
                pass
            self._looked.clear()
            now_ms = self._client.clock.monotonic_ms()
            is_store_silent = now_ms - self._client.answered_ms > self._lag_max_ms
            for led in self._led.values():
                is_cut_off = is_store_silent and led.hears_nobody(self._heard_ms, now_ms, self._lag_max_ms)
                led.partition.set_cut_off(is_cut_off)
            self._tell_of_too_few()
            with contextlib.suppress(CoordinationError):  # retried in the next round
                await self._membership.publish_refusals(self._refusals.is_lasting)
            await self._write(self._due(self._membership.image.nodes))
            if self.unable:
                await self._resign(tuple(self.unable))
                self.unable.intersection_update([tp for tp in self.unable if self._has_stopped(tp)])

    def _tell_of_too_few(self) -> None:
        """Logs which partitions have begun or ceased to refuse acks=all."""
        too_few = {tp for tp, led in self._led.items() if not led.is_over and not led.partition.has_enough_in_sync}
        fallen, risen = too_few - self._too_few, self._too_few & self._led.keys() - too_few
        self._too_few = too_few
        for tps, level, text in (
            (fallen, logging.WARNING, "fewer replicas in sync than min.insync.replicas, and acks=all waits"),
            (risen, logging.INFO, "enough replicas in sync again"),
        ):
            if tps:
                logger.log(level, "%s, for %s: %s", text, counted(len(tps), "partition"), some_of(sorted(map(self._name, tps))))

    async def hand_over(self) -> None:
        """Before a stop: hands over each partition that this node leads, if another in-sync replica is alive."""
        image, node_id = self._membership.image, self._membership.node_id
        led = [tp for tp, at in image.partitions() if at.entry.leader == node_id]
        await self._change(led, lambda entry: handed_over(entry, image.nodes))

    async def _resign(self, tps: Collection[TopicIdPartition]) -> None:
        """Leaves the in-sync sets of these partitions, so that no leader waits for this replica, and hands over those that this
        node leads. A partition that would be left without a live leader stays as it is."""
        await self._change(tps, lambda entry: resigned(entry, self._membership.node_id, self._membership.image.nodes))

    async def _change(self, tps: Collection[TopicIdPartition], change: Callable[[PartitionEntry], PartitionEntry | None]) -> None:
        """Writes the entries that `change` returns for these partitions; None leaves an entry as it is."""
        seen = [(tp, at) for tp in tps if (at := self._membership.image.partition(tp)) is not None]
        await self._write({tp: Proposal(entry, at.mod_revision) for tp, at in seen if (entry := change(at.entry)) is not None})

    def _due(self, nodes: Mapping[int, Node]) -> dict[TopicIdPartition, Proposal]:
        now_ms = self._client.clock.monotonic_ms()
        found = ((tp, led.proposal(nodes, now_ms, self._lag_max_ms)) for tp, led in self._led.items())
        return {tp: proposal for tp, proposal in found if proposal is not None}

    async def _write(self, due: Mapping[TopicIdPartition, Proposal]) -> None:
        """Writes these changes, several per transaction, and one by one where a transaction fails. Stops at the first
        CoordinationError: while etcd is silent each call takes seconds, and the check for cut-off leaders runs between rounds."""
        tps, histories = list(due), self._client.histories
        pieces = [tps[at : at + _PROPOSALS_MAX] for at in range(0, len(tps), _PROPOSALS_MAX)]
        while pieces:
            piece = pieces.pop(0)
            try:
                is_made = await self._propose({tp: due[tp] for tp in piece}, histories)
            except CoordinationError as error:
                logger.warning("%s: replicas in sync stay as they are", error)
                for tp in itertools.chain([] if error.is_fate_unknown else piece, *pieces):
                    if tp in self._led:
                        self._led[tp].given_up(due[tp])
                await asyncio.sleep(_INTERVAL_S)
                return
            if not is_made and len(piece) > 1:
                pieces[:0] = [[tp] for tp in piece]

    async def _propose(self, due: Mapping[TopicIdPartition, Proposal], histories: int) -> bool:
        """Writes these changes in one transaction; False if another change came first. Raises CoordinationError."""
        image, keys = self._membership.image, self._membership.image.keys
        before = {tp: at.entry.isr for tp in due if (at := image.partition(tp)) is not None}
        compares = {keys.partition(tp): proposal.mod_revision for tp, proposal in due.items()}
        compares |= {keys.node(one.joining.id): one.joining.mod_revision for one in due.values() if one.joining is not None}
        puts = {keys.partition(tp): encode(one.entry) for tp, one in due.items()}
        done = await self._client.transact(compares, puts, histories=histories)
        if done is None:
            return False
        changed = {tp: each.entry.isr for tp, each in due.items() if each.entry.isr != before.get(tp)}
        if changed:
            in_sync_now = [f"{self._name(tp)} on {sorted(one.node_id for one in isr)}" for tp, isr in changed.items()]
            logger.info("in sync are now: %s", some_of(in_sync_now))
        for tp, isr in changed.items():
            self._isr_shrinks += len(isr) < len(before.get(tp, isr))
            self._isr_expands += len(isr) > len(before.get(tp, isr))
        with contextlib.suppress(TimeoutError):  # a silent watch must not hold up the other changes
            async with asyncio.timeout(_INTERVAL_S):
                await self._membership.until(done)
        self.follow_image()
        return True

    def _has_stopped(self, tp: TopicIdPartition) -> bool:
        partition = self._partitions.replica(tp)
        return partition is not None and partition.is_stopped

    def _name(self, tp: TopicIdPartition) -> str:
        return self._membership.image.partition_name(tp)
