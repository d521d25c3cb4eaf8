"""Keeps this node's data directory in line with the image: removes, creates, leads and follows what
brokerd/cluster/assignments.py decides, one change at a time, in turn with all other changes of the directory.

A failed step is retried, and delays no other topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

from brokerd.cluster.assignments import HeldTopic, Life, gone_back, to_drop, to_follow, to_hold, to_lead, to_outdo, to_remove
from brokerd.cluster.changes import change_partitions, copy_dropped, data_removed
from brokerd.cluster.image import PartitionAt
from brokerd.cluster.keys import InSyncReplica, TopicEntry
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.replica_changes import ReplicaChanges
from brokerd.datadir.topic_changes import TopicChanges
from brokerd.datadir.topic_store import COORDINATOR, Topic, TopicStore
from brokerd.errors import BrokerdError, NotReadyError, StorageError, counted, some_of
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import Role
from brokerd.replication.leader import in_sync_of
from brokerd.server.admin import Admin
from brokerd.server.cluster.membership import Membership

logger = logging.getLogger(__name__)
_RETRY_S = 1.0
_HELD_AT_ONCE = 250  # partitions of a topic created in one step
_ROLES_WAIT_MS = 500  # roles are taken this often between other steps, of which there may be thousands


class ClusterDirectory:
    """See the module docstring."""

    def __init__(
        self,
        client: CoordinationClient,
        membership: Membership,
        topics: TopicStore,
        partitions: PartitionTable,
        changes: TopicChanges,
        replicas: ReplicaChanges,
        admin: Admin,
        on_deleted: Callable[[Topic], None],
        unable: set[TopicIdPartition],
    ) -> None:
        """`on_deleted` is called once a deleted topic is invisible, before its files are removed. `unable`: receives the partitions
        that this node cannot create, or was elected for and cannot lead.
        """
        self._unable = unable
        self._client = client
        self._membership = membership
        self._node_id = membership.node_id
        self._topics = topics
        self._partitions = partitions
        self._changes = changes
        self._replicas = replicas
        self._admin = admin
        self._on_deleted = on_deleted
        self._passes = 0
        self._passed = asyncio.Condition()
        self._led: dict[TopicIdPartition, tuple[int, int]] = {}  # in which leader epoch and node epoch
        self._disputed: set[TopicIdPartition] = set()  # with rolled-back leader epochs, until the entry protects this copy
        self._failed: dict[str, str] = {}  # steps to retry, with the cause that was logged
        self._histories = 0  # counts the store's rollbacks
        membership.on_gone_back = self._end_roles

    async def run(self) -> None:
        """Acts on each change of the image, until cancelled."""
        generation = 0
        while True:
            generation = await self._membership.after(generation)
            try:
                await self._agree()
            finally:
                async with self._passed:
                    self._passes += 1
                    self._passed.notify_all()
            if self._failed:
                await asyncio.sleep(_RETRY_S)
                generation = 0  # retry without waiting for a change

    async def passed(self, seen: int) -> int:
        """Waits until more than `seen` passes over the image are complete, and returns their number."""
        await self.until(lambda: self._passes > seen)
        return self._passes

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until `holds()` is true, which is checked now and after each pass."""
        async with self._passed:
            await self._passed.wait_for(holds)

    def _end_roles(self) -> None:
        """Ends all roles, as a restart does: a store that was rolled back may give their epochs to other leaders."""
        self._histories += 1
        self._led.clear()
        self._partitions.resign([partition.tp for partition in self._partitions])

    async def _agree(self) -> None:
        """Makes one pass: takes all steps that are due. `_failed` then holds those that failed."""
        before, self._failed = self._failed, {}
        taken_ms = self._client.clock.monotonic_ms()
        for what, step in self._steps():
            await self._try(what, step, before)
            if self._client.clock.monotonic_ms() - taken_ms >= _ROLES_WAIT_MS:
                await self._take_roles(before)
                taken_ms = self._client.clock.monotonic_ms()
        await self._take_roles(before)

    def _steps(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """The steps before roles are taken. Lazy: each kind is determined once the kinds before it are done."""
        for topic_id in self._to_remove():
            topic = self._topics.any_by_id(topic_id)
            name = f"'{topic.name}'" if topic is not None else f"with id {topic_id.hex()}"
            yield f"removing topic {name}", self._remove(topic_id)
        for topic, numbers in self._to_hold():
            for at in range(0, max(len(numbers), 1), _HELD_AT_ONCE):
                yield f"holding topic '{topic.name}'", self._hold(topic, numbers[at : at + _HELD_AT_ONCE])
        for tp, partition in to_drop(self._membership.image, self._node_id, self._membership.directory_id, self._epochs()):
            yield f"removing the copy of {self._membership.image.partition_name(tp)}", self._drop(tp, partition)

    async def _take_roles(self, before: Mapping[str, str]) -> None:
        await self._try("leading partitions", self._lead_elected(), before)
        await self._try("following partitions", self._follow_elected(), before)

    async def _try(self, what: str, step: Awaitable[None], before: Mapping[str, str]) -> None:
        try:
            await step
        except Exception as error:
            told, cause = self._failed.get(what, before.get(what)), str(error)
            self._failed[what] = cause
            if told != cause and not isinstance(error, NotReadyError):  # raised while this node stops
                is_expected = isinstance(error, BrokerdError | OSError)
                logger.error("%s failed (%s): retrying", what, cause, exc_info=None if is_expected else error)

    def _held(self) -> dict[bytes, HeldTopic]:
        return {topic.id: HeldTopic(entry_of(topic), topic.partitions_here) for topic in self._topics.all()}

    def _to_remove(self) -> list[bytes]:
        found = to_remove(self._membership.image, self._membership.directory_id, self._node_id, self._held())
        return [topic_id for topic_id in found if topic_id != COORDINATOR.id]  # which is never deleted

    async def _remove(self, topic_id: bytes) -> None:
        held = self._held().get(topic_id)
        if held is not None:
            await self._admin.run(self._changes.delete(held.entry.name, self._on_deleted))
            logger.info("topic '%s' is deleted in the cluster: removed it", held.entry.name)
        elif topic_id in self._topics.deleting:  # perhaps not durably: without its tombstone, a power cut could bring it back
            await self._admin.run(self._changes.settle())
        if topic_id in self._membership.image.tombstones:
            gone = data_removed(self._membership.image, topic_id, self._membership.directory_id, self._node_id)
            await self._client.transact(*gone)

    def _to_hold(self) -> list[tuple[Topic, list[int]]]:
        found = to_hold(self._membership.image, self._node_id, self._membership.directory_id, self._held())
        return [(Topic(entry.name, topic_id, entry.partition_count, entry.configs), numbers) for topic_id, entry, numbers in found]

    async def _hold(self, topic: Topic, numbers: list[int]) -> None:
        other = next((one for one in self._topics.all() if one.name == topic.name and one.id != topic.id), None)
        if other is not None and other.id in self._to_remove():
            return  # deleted and created again during this pass: the next one removes it
        try:
            if other is not None:
                raise StorageError(
                    f"its id is {topic.id.hex()}, and the data directory holds another topic of this name, with id "
                    f"{other.id.hex()}, of whose deletion etcd knows nothing: start this node with an empty data.dir once the "
                    "copies that it has are in sync on others"
                )
            await self._admin.run(self._changes.hold(topic, numbers))
        except BaseException:
            self._unable.update(TopicIdPartition(topic.id, number) for number in numbers)
            raise

    async def _lead_elected(self) -> None:
        life, epochs, histories = self._membership.life, self._epochs(), self._histories
        self._look_back(epochs)
        if life is not None:
            elected = to_lead(self._membership.image, life, epochs)
            if elected:
                entries = {tp: at.entry for tp in elected if (at := self._membership.image.partition(tp)) is not None}
                try:
                    await self._admin.run(self._replicas.lead(elected, {tp: in_sync_of(entry) for tp, entry in entries.items()}))
                except BaseException:
                    self._unable.update(elected)
                    raise
                if histories != self._histories:
                    self._end_roles()  # these roles were taken after the rollback had ended all earlier ones
                    return
                led = {tp: (epoch, life.node_epoch) for tp, epoch in elected.items()}
                self._led = {tp: each for tp, each in {**self._led, **led}.items() if tp in epochs}
                self._tell("leads %s from now on: %s", elected)
            self._look_back(epochs)
            await self._outdo(life, {**epochs, **elected})

    async def _outdo(self, life: Life, epochs: Mapping[TopicIdPartition, int]) -> None:
        """Begins new leader epochs for the partitions whose epochs were rolled back with etcd."""
        image, disputed, histories = self._membership.image, self._disputed, self._client.histories
        seen = {tp: epoch for tp, epoch in epochs.items() if tp in disputed or self._led.get(tp) != (epoch, life.node_epoch)}
        outdone = to_outdo(image, life, seen, disputed)
        for transaction in change_partitions(image, outdone):
            revision = await self._client.transact(*transaction, histories=histories)
            if revision is None:
                continue
            made = [tp for tp in outdone if image.keys.partition(tp) in transaction.puts]
            self._tell("etcd has gone back: began new leader epochs of %s, in which no copy is cut: %s", made)
            with contextlib.suppress(TimeoutError):  # until then the image shows the rolled-back epochs
                async with asyncio.timeout(_RETRY_S):
                    await self._membership.until(revision)
            disputed.difference_update(tp for tp in made if outdone[tp].leader == self._node_id)

    def _look_back(self, epochs: Mapping[TopicIdPartition, int]) -> None:
        """Notes partitions whose leader epochs were rolled back: elections may hide that before this node can act on it."""
        image, copy = self._membership.image, InSyncReplica(self._node_id, self._membership.directory_id)
        self._disputed |= gone_back(image, self._node_id, epochs)
        for tp in list(self._disputed):
            at = image.partition(tp)
            if at is None or copy in at.entry.superseded or self._node_id not in at.entry.replicas:
                self._disputed.discard(tp)

    async def _follow_elected(self) -> None:
        # A leader whose epoch etcd has given to another node has missed a rollback: it follows, and its log is compared.
        unled = {partition.tp for partition in self._partitions if partition.role is not Role.FOLLOWER}
        histories = self._histories
        found = to_follow(self._membership.image, self._node_id, self._epochs(), unled)
        followed = {tp: epoch for tp, epoch in found.items() if tp not in self._disputed}
        if followed:
            # A node that stops follows its successors: still in sync, it must keep reporting, but get no more requests.
            await self._admin.run(self._replicas.follow(followed), at_stop=True)
            if histories != self._histories:
                self._end_roles()
                return
            self._tell("follows the leaders of %s from now on: %s", followed)

    def _tell(self, text: str, tps: Collection[TopicIdPartition]) -> None:
        names = some_of(map(self._membership.image.partition_name, tps))
        logger.info(text, counted(len(tps), "partition"), names)

    async def _drop(self, tp: TopicIdPartition, partition: PartitionAt) -> None:
        await self._admin.run(self._replicas.drop(tp.topic_id, [tp.partition]))
        copy = InSyncReplica(self._node_id, self._membership.directory_id)
        await self._client.transact(*copy_dropped(self._membership.image, tp, partition, copy))
        name = self._membership.image.partition_name(tp)
        logger.info("removed the copy of partition %s: this node is no replica of it any more", name)

    def _epochs(self) -> dict[TopicIdPartition, int]:
        """The highest leader epoch that each partition of the directory has seen."""
        return {partition.tp: partition.leader_epoch for partition in self._partitions}


def entry_of(topic: Topic) -> TopicEntry:
    """The store's entry for a topic of the directory."""
    return TopicEntry(topic.name, topic.partition_count, topic.configs)
