"""The partitions with several replicas that this node leads: what their followers report, and the changes of who is in sync,
written to the coordination store.
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
_PROPOSALS_MAX = OPERATIONS_MAX // 4  # in one transaction


class ReplicationFigures(NamedTuple):
    """What this node leads and copies, in numbers."""

    under_replicated: int = 0
    under_min_isr: int = 0
    reassigning: int = 0
    lag_records: int = 0
    lag_ms: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    elections: int = 0  # while this node was the controller
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
        self.unable: set[TopicIdPartition] = set()  # partitions that this node can neither lead nor follow: others shall not wait
        self.bytes_out = 0  # of batches that followers were sent
        self._isr_shrinks = self._isr_expands = 0
        self._too_few: set[TopicIdPartition] = set()  # partitions with fewer replicas in sync than min.insync.replicas, as told
        self._heard_ms: dict[int, int] = {}  # by node id
        self.streams: dict[int, object] = {}  # the newest of each follower, by its node id
        self._looked = asyncio.Event()  # a look is due before its time
        self._told = asyncio.Event()  # set, and replaced, when a follower has reported or left
        self.watchers = Purgatory()  # of followers' streams; nothing in it expires

    def follow_image(self) -> None:
        """Takes what the image says of the partitions that this node leads. Call it after each change of the image or of roles,
        before anything else is awaited."""
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
            return  # as it was, until this node follows or leads anew
        known = self._led.get(partition.tp)
        if known is not None and known.partition is partition and not known.is_over:
            known.entry_changed(at)
        elif len(at.entry.replicas) > 1 or is_followed:
            self._led[partition.tp] = LedPartition(partition, at, self._client.clock.monotonic_ms())

    def _tell(self) -> None:
        """Wakes those who wait for what followers have."""
        told, self._told = self._told, asyncio.Event()
        told.set()

    def led(self, partition: Partition) -> LedPartition | None:
        """The followers of a partition; None if it has none, or if this node does not lead it."""
        led = self._led.get(partition.tp)
        return led if led is not None and led.partition is partition else None

    def heard(self, node: Node) -> None:
        """A follower has sent a request."""
        self._heard_ms[node.id] = self._client.clock.monotonic_ms()

    def withdrawn(self, tp: TopicIdPartition, node_id: int) -> None:
        """What a follower has told stands no longer: it follows no more, or has to begin another stream."""
        led = self._led.get(tp)
        if led is not None:
            led.withdrawn(node_id)

    async def has_log_start(self, partition: Partition, offset: int) -> None:
        """Returns once all in-sync replicas have a log start, durably. Raises NotLeaderError if another node may lead before."""
        epoch = partition.leader_epoch
        while partition.leads_in(epoch):
            led, at = self._led.get(partition.tp), self._membership.image.partition(partition.tp)
            if led is not None and led.entry.leader_epoch == epoch:
                if min(led.log_starts(), default=offset) >= offset:
                    return
            elif at is None or len(at.entry.replicas) == 1:
                return  # there are no others; else it has not looked at them yet
            await self._told.wait()
        text = f"{partition.name}: the log start has moved, but the leader has changed: the next one may not have it"
        raise NotLeaderError(text, fate=Fate.UNKNOWN)

    def reported(self, partition: Partition, node: Node, durable_end: int, log_start_offset: int) -> None:
        """A follower has told how far it agrees with this leader, durably. It may do so as soon as this node leads, and once."""
        led = self.led(partition)
        if led is None or led.is_over:
            # The follower may have heard sooner than this node that it was added, and does not repeat what it has told.
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
        """The partitions with several replicas that this node leads, in numbers."""
        now_ms, under_replicated, under_min_isr, reassigning, lag = self._client.clock.monotonic_ms(), 0, 0, 0, Lag(0, 0)
        for led in list(self._led.values()):
            entry, in_sync = led.entry, in_sync_of(led.entry)
            under_replicated += in_sync.members < in_sync.replicas
            under_min_isr += not led.partition.has_enough_in_sync
            reassigning += bool(entry.target)
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
            with contextlib.suppress(CoordinationError):  # the next round tells
                await self._membership.publish_refusals(self._refusals.is_lasting)
            await self._write(self._due(self._membership.image.nodes))
            if self.unable:
                await self._resign(tuple(self.unable))
                self.unable.intersection_update([tp for tp in self.unable if self._has_stopped(tp)])

    def _tell_of_too_few(self) -> None:
        """Says which partitions have begun, or ceased, to refuse acks=all."""
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
        """Before a stop: lets others lead what this node leads, where one is in sync and alive."""
        image, node_id = self._membership.image, self._membership.node_id
        led = [tp for tp, at in image.partitions() if at.entry.leader == node_id]
        await self._change(led, lambda entry: handed_over(entry, image.nodes))

    async def _resign(self, tps: Collection[TopicIdPartition]) -> None:
        """Leaves the in-sync replicas of these partitions, so that nobody waits for this one, and lets others lead them. What no
        other has in sync stays as it is."""
        await self._change(tps, lambda entry: resigned(entry, self._membership.node_id, self._membership.image.nodes))

    async def _change(self, tps: Collection[TopicIdPartition], change: Callable[[PartitionEntry], PartitionEntry | None]) -> None:
        """Writes what `change` makes of the entries of these partitions; None: nothing."""
        seen = [(tp, at) for tp in tps if (at := self._membership.image.partition(tp)) is not None]
        await self._write({tp: Proposal(entry, at.mod_revision) for tp, at in seen if (entry := change(at.entry)) is not None})

    def _due(self, nodes: Mapping[int, Node]) -> dict[TopicIdPartition, Proposal]:
        now_ms = self._client.clock.monotonic_ms()
        found = ((tp, led.proposal(nodes, now_ms, self._lag_max_ms)) for tp, led in self._led.items())
        return {tp: proposal for tp, proposal in found if proposal is not None}

    async def _write(self, due: Mapping[TopicIdPartition, Proposal]) -> None:
        """Writes these changes, some together; each of them alone, if they cannot be made together. Ends at the first that etcd
        does not take: while it is silent each takes seconds, and who is cut off is looked at between two rounds."""
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
        """Writes these changes together; False if another change came first. Raises CoordinationError."""
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
        with contextlib.suppress(TimeoutError):  # a silent watch holds up one change, not all
            async with asyncio.timeout(_INTERVAL_S):
                await self._membership.until(done)
        self.follow_image()
        return True

    def _has_stopped(self, tp: TopicIdPartition) -> bool:
        partition = self._partitions.replica(tp)
        return partition is not None and partition.is_stopped

    def _name(self, tp: TopicIdPartition) -> str:
        return self._membership.image.partition_name(tp)
