"""Changes of the cluster's topics, made by any node for its clients: checked as on a standalone node, written under a comparison of
what was checked, and answered once this node has applied them.

The checks read the topics of the data directory, which lag slightly behind the image. So a change first waits until both agree on
its topic; otherwise it would undo another node's change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from brokerd.cluster.changes import (
    ABSENT,
    OPERATIONS_MAX,
    Transaction,
    change_partitions,
    change_topic,
    create_topic,
    delete_topic,
    grow_topic,
)
from brokerd.cluster.election import elected_unclean, no_copy_alive, place, shares
from brokerd.cluster.image import Node
from brokerd.cluster.keys import PartitionEntry
from brokerd.config.topic import REPLICAS_MAX
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.topic_changes import TopicChanges
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, Topic, TopicStore
from brokerd.errors import (
    CoordinationError,
    Fate,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NotReadyError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WireError,
    counted,
)
from brokerd.ids import NO_LEADER, TopicIdPartition, nodes_text, topic_name_problem
from brokerd.internode.v1 import internode_pb2
from brokerd.replication.reassignment import drained, stopped
from brokerd.server.cluster.directory import ClusterDirectory, entry_of
from brokerd.server.cluster.membership import Membership
from brokerd.wire.v1.topics_pb2 import CopyEnd

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
_PATIENCE_S = 10.0  # for this node to catch up with the store
_ANSWERS_S = 10.0  # for a node to report the end of its copy
_HEARS_S = 2.0  # for this node to learn of requested topics
_HEARS_OF = 100  # topics looked up per request: enough for a program's own, and a bound for arbitrary names
_ATTEMPTS = 10  # if other nodes change the same topic
_AT_ONCE = OPERATIONS_MAX // 4  # partitions per transaction: if one has changed, all are decided again
_LOOKED_AT = 1_000  # partitions between yields to the event loop: about 1 ms
# Refusals that rest on this node's view of the topic, which another node may just have changed.
_RESTS_ON_TOPIC = (TopicAlreadyExistsError, UnknownTopicOrPartitionError, InvalidPartitionsError)


class Call(Protocol):
    """See ClusterNode.call."""

    def __call__(self, node_id: int, request: Message, response_type: type[R]) -> Awaitable[R]: ...


class Drain(NamedTuple):
    """The state of a node's drain. `begun`: number of partitions given a new target by this call; `moving`: partitions still on
    the node that go to others; `staying`: partitions that no other node can take, and why; `waiting`: moving partitions without a
    live copy of all records, and where that copy is."""

    begun: int
    moving: Sequence[TopicIdPartition]
    staying: Mapping[TopicIdPartition, str]
    waiting: Mapping[TopicIdPartition, str]


class ClusterTopics:
    """See the module docstring. Every method raises the errors of the same method of TopicChanges, NotReadyError if the store is
    unavailable or this node does not catch up with it, and StorageError, with an unknown fate, if the store's answer is lost.
    """

    def __init__(
        self,
        client: CoordinationClient,
        membership: Membership,
        directory: ClusterDirectory,
        topics: TopicStore,
        changes: TopicChanges,
        call: Call,
        default_factor: int = 1,
    ) -> None:
        """`call` calls a node, which may be this one."""
        self._call = call
        self._default_factor = default_factor
        self._client = client
        self._membership = membership
        self._directory = directory
        self._topics = topics
        self._changes = changes
        self._creating = asyncio.Lock()  # many clients may look for the coordinator's log at once; it is created once
        self._hearing = asyncio.Lock()  # lookups of unknown topics make one store call at a time

    async def hear_of(self, names: Iterable[str], topic_ids: Iterable[bytes]) -> bool:
        """Waits until this node has those of these topics that the store has, so that every node knows a topic once one node has
        acknowledged its creation. Looks up the first _HEARS_OF unknown topics. Returns False if some remain uncertain: there are
        more, two seconds have passed, or the store is unreachable.
        """
        keys, missing = self._membership.image.keys, dict[str, Callable[[], bool]]()
        for name in names:
            if not self._topics.has(name) and topic_name_problem(name) is None:
                missing[keys.name(name)] = partial(self._topics.has, name)
        for topic_id in topic_ids:
            if self._topics.any_by_id(topic_id) is None:
                missing[keys.topic(topic_id)] = partial(self._has_id, topic_id)
        if not missing:
            return True
        if not self._membership.is_registered:
            return False
        try:
            async with asyncio.timeout(_HEARS_S):
                async with self._hearing:
                    asked = islice(missing.items(), _HEARS_OF)
                    created = [is_here for key, is_here in asked if not is_here() and await self._client.get(key) is not None]
                await self._directory.until(lambda: all(is_here() for is_here in created))
        except (CoordinationError, TimeoutError):
            return False
        return len(missing) <= _HEARS_OF

    def _has_id(self, topic_id: bytes) -> bool:
        return self._topics.any_by_id(topic_id) is not None

    async def create(self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int = 0) -> Topic:
        """Creates a topic. `replication_factor` 0: default.replication.factor. Also raises InvalidReplicationFactorError."""

        def decide() -> tuple[Topic, list[Transaction]]:
            topic = self._changes.check_create(name, partitions, configs)
            placed = self._placed(topic.partition_count, self.check_factor(name, replication_factor))
            return topic, create_topic(self._membership.image, topic.id, entry_of(topic), placed)

        return await self._change(name, decide)

    def check_factor(self, name: str, replication_factor: int) -> int:
        """The replication factor of a new topic; 0 selects the default. Raises InvalidReplicationFactorError."""
        factor, alive = replication_factor or self._default_factor, max(len(self._membership.image.nodes), 1)
        if factor > min(alive, REPLICAS_MAX):
            setting = "" if replication_factor else " (default.replication.factor)"
            why = f"{counted(alive, 'node')} of the cluster {'is' if alive == 1 else 'are'} alive"
            if factor > REPLICAS_MAX:
                why = f"at most {REPLICAS_MAX} are allowed"
            raise InvalidReplicationFactorError(f"topic '{name}' cannot have a replication factor of {factor}{setting}: {why}")
        return factor

    async def create_coordinator(self) -> None:
        """Creates the topic of the coordinator's log, unless it exists. On return the image has it; the directory may lag."""
        image, membership = self._membership.image, self._membership
        try:
            async with asyncio.timeout(_PATIENCE_S), self._creating:
                while image.topic(COORDINATOR.id) is None:
                    # At most as many as live nodes: the controller adds the rest as nodes join.
                    factor = max(1, min(self._default_factor, len(image.nodes)))
                    generation, placed = membership.generation, self._placed(COORDINATOR.partition_count, factor)
                    # If a comparison fails, another node has created it, or is about to.
                    await self._run(create_topic(image, COORDINATOR.id, entry_of(COORDINATOR), placed))
                    await membership.after(generation)
        except TimeoutError:
            raise _behind(COORDINATOR.name, Fate.UNKNOWN) from None

    async def grow(self, name: str, total: int) -> Topic:
        """Adds partitions up to `total`, with the replication factor of the others. Also raises InvalidReplicationFactorError."""

        def decide() -> tuple[Topic, list[Transaction]]:
            grown = self._changes.check_grow(name, total)
            first = self._membership.image.partition(TopicIdPartition(grown.id, 0))
            factor = len(first.entry.target or first.entry.replicas) if first is not None else 1
            added = self._placed(total - self._topics.by_name(name).partition_count, self.check_factor(name, factor))
            return grown, grow_topic(self._membership.image, grown.id, added)

        return await self._change(name, decide)

    async def alter(self, name: str, set_configs: Mapping[str, str], unset: Iterable[str]) -> Topic:
        """Changes settings."""
        unset = list(unset)

        def decide() -> tuple[Topic, list[Transaction]]:
            altered = self._changes.check_alter(name, set_configs, unset)
            return altered, [change_topic(self._membership.image, altered.id, entry_of(altered))]

        return await self._change(name, decide)

    async def delete(self, name: str) -> Topic:
        """Deletes a topic. Other nodes remove their partitions shortly afterwards."""

        def decide() -> tuple[Topic, list[Transaction]]:
            topic = self._changes.check_delete(name)
            return topic, [delete_topic(self._membership.image, topic.id)]

        return await self._change(name, decide)

    async def reassign(self, name: str, number: int, replicas: Sequence[int], *, is_order_only: bool = False) -> bool:
        """Sets a partition's target replicas, preferred leader first; none cancels a reassignment under way. The controller carries
        it out. `is_order_only`: `replicas` only reorders the current or target replicas; none keeps their order. Returns False if
        there is nothing to change. Raises InvalidRequestError for nodes that cannot have a copy, and StorageError (unknown fate).
        """
        topic = await self._known(name, number)

        def decide(_tp: TopicIdPartition, entry: PartitionEntry) -> PartitionEntry | None:
            nodes = self._membership.image.nodes
            held = entry.target or entry.replicas
            wanted = tuple(replicas) or (held if is_order_only else ())
            if is_order_only and set(held) != set(wanted):
                was = f"{name}-{number} is on {nodes_text(held)}, or moves there, not on {nodes_text(wanted)}"
                raise InvalidRequestError(f"{was}: look where it is now, and try again")
            if is_order_only and wanted[0] in nodes and nodes[wanted[0]].registration.refuses:
                raise InvalidRequestError(f"node {wanted[0]} cannot lead {name}-{number}: its disk refuses, as its log says")
            if not wanted:
                return stopped(entry, nodes)
            check_target(entry, wanted, nodes)
            is_done = not entry.target and entry.replicas == wanted and entry.leader == wanted[0]
            return None if is_done else entry._replace(target=wanted)

        return await self._change_partitions([TopicIdPartition(topic.id, number)], decide)

    async def drain(self, node_id: int, *, validate_only: bool = False) -> Drain:
        """Moves all partitions of a node to other nodes, the coordinator's log included. Raises InvalidRequestError if the cluster
        does not know the node, and the errors of `reassign`. `validate_only`: changes nothing, and returns the same.
        """
        image, held = self._membership.image, list[TopicIdPartition]()
        for looked, (tp, at) in enumerate(image.partitions()):
            if node_id in at.entry.replicas or node_id in at.entry.target:
                held.append(tp)
            if looked % _LOOKED_AT == _LOOKED_AT - 1:
                await asyncio.sleep(0)
        if not held and node_id not in image.nodes:
            raise InvalidRequestError(
                f"node {node_id} has no partition, and is not alive: 'brokerd cluster nodes' prints the nodes that are"
            )
        replicas, _ = shares(image)
        begun, staying = set[TopicIdPartition](), dict[TopicIdPartition, str]()

        def decide(tp: TopicIdPartition, entry: PartitionEntry) -> PartitionEntry | None:
            if node_id not in (entry.target or entry.replicas):
                return None  # it is moving already
            # The coordinator's log is not counted: it is small.
            counts = replicas if tp != COORDINATOR_LOG else Counter[int]()
            target = drained(entry, node_id, image.nodes, counts)
            if target is None:
                others = image.nodes.keys() - {node_id}
                staying[tp] = "every other node that is alive has it already" if others else "no other node is alive"
                return None
            if len({*entry.replicas, *target}) > REPLICAS_MAX:  # during the move, the entry lists both sets
                staying[tp] = f"it would be on more than {REPLICAS_MAX} nodes meanwhile"
                return None
            begun.add(tp)
            return None if validate_only else entry._replace(target=tuple(target))

        await self._change_partitions(held, decide)
        moving, waiting = [tp for tp in held if tp not in staying], dict[TopicIdPartition, str]()
        for tp in moving:
            seen = image.partition(tp)
            if seen is not None and seen.entry.leader == NO_LEADER:
                why = no_copy_alive(seen.entry, image.nodes, may_delete=tp != COORDINATOR_LOG)
                waiting.update({tp: why} if why else {})
        return Drain(len(begun), moving, staying, waiting)

    async def elect_unclean(self, name: str, number: int, *, validate_only: bool = False) -> Sequence[CopyEnd]:
        """Elects the best live copy, although it is not in sync. Returns the live copies, best first. Raises InvalidRequestError if
        an in-sync copy is alive or no copy is, and the errors of `reassign`. `validate_only`: changes nothing, returns the same.
        """
        tp = TopicIdPartition((await self._known(name, number)).id, number)
        at = self._membership.image.partition(tp)
        if at is None:
            raise _behind(name, Fate.NOT_APPENDED)
        check_is_lost(at.entry, self._membership.image.nodes, f"{name}-{number}")
        asked = dict(self._membership.image.nodes)
        copies = await self._copies(tp, [node_id for node_id in at.entry.replicas if node_id in asked])
        if not copies:
            raise InvalidRequestError(
                f"no node that is alive has a copy of {name}-{number}, not even an older one, or none answers"
            )
        winner = asked[copies[0].node_id]

        def decide(_tp: TopicIdPartition, entry: PartitionEntry) -> PartitionEntry | None:
            nodes = self._membership.image.nodes
            check_is_lost(entry, nodes, f"{name}-{number}")
            now = nodes.get(winner.id)
            # After a new registration the node may have another directory, or lack unsynced records.
            if now is None or now.epoch != winner.epoch or entry.leader_epoch != at.entry.leader_epoch:
                raise NotReadyError(f"{name}-{number} has changed meanwhile: try again", fate=Fate.NOT_APPENDED)
            return None if validate_only else elected_unclean(entry, winner)

        def unchanged(entry: PartitionEntry) -> dict[str, int]:
            """Comparisons: when the entry is written, no in-sync copy has come back, and the winner is alive."""
            image = self._membership.image
            node_ids = (winner.id, *(replica.node_id for replica in entry.isr))
            known = {node_id: image.nodes.get(node_id) for node_id in node_ids}
            return {image.keys.node(id_): node.mod_revision if node is not None else ABSENT for id_, node in known.items()}

        await self._change_partitions([tp], decide, unchanged)
        return copies

    async def _copies(self, tp: TopicIdPartition, node_ids: Sequence[int]) -> list[CopyEnd]:
        """The copies of the nodes that answer, newest first by epoch and then length, as in Raft (section 5.4.1): the extra
        records of a longer log of an older epoch were never acknowledged. Damaged copies come after those, and empty ones last.
        """
        request = internode_pb2.CopyEndRequest(partition=internode_pb2.Partition(topic_id=tp.topic_id, partition=tp.partition))

        async def ask(node_id: int) -> CopyEnd | None:
            try:
                async with asyncio.timeout(_ANSWERS_S):
                    found = await self._call(node_id, request, internode_pb2.CopyEndResponse)
            except (WireError, TimeoutError) as error:
                name, why = self._membership.image.partition_name(tp), str(error) or "it does not answer"
                logger.warning("an unclean election of %s leaves out node %d: %s", name, node_id, why)
                return None
            end, epoch = found.log_end_offset, found.leader_epoch
            return CopyEnd(node_id=node_id, leader_epoch=epoch, log_end_offset=end, has_stopped=found.has_stopped)

        found = [copy for copy in await asyncio.gather(*map(ask, node_ids)) if copy is not None]
        return sorted(found, key=lambda one: (not one.log_end_offset, one.has_stopped, -one.leader_epoch, -one.log_end_offset))

    async def _change_partitions(
        self,
        tps: Iterable[TopicIdPartition],
        decide: Callable[[TopicIdPartition, PartitionEntry], PartitionEntry | None],
        compares: Callable[[PartitionEntry], dict[str, int]] = lambda _entry: {},
    ) -> bool:
        """Replaces partitions' entries by those that `decide` returns (None: no change). Decides again where an entry, or a key in
        its `compares`, has changed meanwhile. Returns once the image has the changes; False if there were none. If it raises, some
        of the partitions may have been changed.
        """
        membership, due, is_begun = self._membership, list(tps), False
        for _ in range(_ATTEMPTS):
            image, revision, failed = membership.image, 0, list[TopicIdPartition]()
            for at in range(0, len(due), _AT_ONCE):
                before = membership.revision
                seen = [(tp, known.entry) for tp in due[at : at + _AT_ONCE] if (known := image.partition(tp)) is not None]
                changed = {tp: entry for tp, old in seen if (entry := decide(tp, old)) is not None}
                if not changed:
                    await asyncio.sleep(0)
                    continue
                try:
                    also = {key: at for tp, entry in seen if tp in changed for key, at in compares(entry).items()}
                    made = change_partitions(image, changed)
                    done = await self._run([one._replace(compares={**also, **one.compares}) for one in made])
                except WireError as error:
                    error.fate = Fate.UNKNOWN if is_begun else error.fate
                    raise
                is_begun |= done is not None
                if done is None:
                    failed += changed
                revision = max(revision, done if done is not None else before + 1)  # on failure, the store is ahead of the image
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await membership.until(revision)
            except TimeoutError:
                raise NotReadyError("this node has not heard of the change yet: try again", fate=Fate.UNKNOWN) from None
            due = failed
            if not due:
                return is_begun
        fate = Fate.UNKNOWN if is_begun else Fate.NOT_APPENDED
        raise NotReadyError(f"a partition was changed by others {_ATTEMPTS} times meanwhile: try again", fate=fate)

    async def _change(self, name: str, decide: Callable[[], tuple[Topic, list[Transaction]]]) -> Topic:
        """Decides and writes a change of a topic; decides again if the topic has changed meanwhile. Returns the topic as it was
        decided.
        """
        await self._until_followed(name, 0, Fate.NOT_APPENDED)
        for _ in range(_ATTEMPTS):
            seen = self._membership.revision
            try:
                topic, transactions = decide()
            except _RESTS_ON_TOPIC:
                if await self._is_newest(name):
                    raise
            else:
                done = await self._run(transactions)
                if done is not None:
                    await self._until_followed(name, done, Fate.UNKNOWN)
                    return topic
            await self._until_followed(name, seen + 1, Fate.NOT_APPENDED)  # the store is ahead of the image
        raise NotReadyError(f"topic '{name}' was changed by others {_ATTEMPTS} times meanwhile: try again", fate=Fate.NOT_APPENDED)

    async def _known(self, name: str, number: int) -> Topic:
        """The topic of this name, which may be the coordinator's, with this partition. Raises UnknownTopicOrPartitionError."""
        for _ in range(_ATTEMPTS):
            await self._until_followed(name, 0, Fate.NOT_APPENDED)
            seen = self._membership.revision
            try:
                log = self._topics.any_by_id(COORDINATOR.id) if name == COORDINATOR.name else None
                topic = log if log is not None else self._topics.by_name(name)
                if 0 <= number < topic.partition_count:
                    return topic
                raise UnknownTopicOrPartitionError(f"topic '{name}' has partitions 0 to {topic.partition_count - 1}, not {number}")
            except UnknownTopicOrPartitionError:
                if await self._is_newest(name):
                    raise
            await self._until_followed(name, seen + 1, Fate.NOT_APPENDED)
        raise _behind(name, Fate.NOT_APPENDED)

    def _has_followed(self, name: str, revision: int) -> bool:
        """True if the data directory and the image agree on a topic, at this revision or later."""
        if self._membership.revision < revision:
            return False
        topic_id = self._membership.image.topic_id(name)
        try:
            topic = self._topics.by_name(name)
        except UnknownTopicOrPartitionError:
            return topic_id in (None, COORDINATOR.id)  # the coordinator's is hidden from clients
        return topic.id == topic_id and entry_of(topic) == self._membership.image.topic(topic.id)

    async def _is_newest(self, name: str) -> bool:
        """True if the image is up to date with the store on a topic."""
        if topic_name_problem(name):
            return True
        image, client = self._membership.image, self._client
        topic_id = image.topic_id(name)
        revision = image.topic_revision(topic_id) if topic_id is not None else ABSENT
        try:
            named = await client.get(image.keys.name(name))
            topic = await client.get(image.keys.topic(topic_id)) if topic_id is not None else None
        except CoordinationError as error:
            raise _unavailable(error) from error
        stored = (named.value if named is not None else None, topic.mod_revision if topic is not None else ABSENT)
        return stored == (topic_id.hex().encode() if topic_id is not None else None, revision)

    def _placed(self, count: int, replication_factor: int) -> Sequence[PartitionEntry]:
        if not self._membership.image.nodes:
            raise NotReadyError("no node of the cluster is registered at present: try again", fate=Fate.NOT_APPENDED)
        return place(self._membership.image, count, replication_factor)

    async def _run(self, transactions: Sequence[Transaction]) -> int | None:
        """See `run`. Raises StorageError, NotReadyError."""
        try:
            return await run(self._client, transactions)
        except CoordinationError as error:
            if error.is_fate_unknown:
                raise StorageError(f"{error}: the change may have been made", fate=Fate.UNKNOWN) from error
            raise _unavailable(error) from error

    async def _until_followed(self, name: str, revision: int, fate: Fate) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._directory.until(partial(self._has_followed, name, revision))
        except TimeoutError:
            raise _behind(name, fate) from None


async def run(client: CoordinationClient, transactions: Sequence[Transaction]) -> int | None:
    """Runs the transactions of a change. Returns the revision of the last one, which makes the change visible; None if one fails,
    which leaves the earlier ones without effect. Raises CoordinationError, whose fate is that of the change.
    """
    revision: int | None = None
    put: dict[str, int] = {}
    histories = client.histories
    for transaction in transactions:
        try:
            revision = await client.transact(*transaction.after(put), histories=histories)
        except CoordinationError as error:
            error.is_fate_unknown &= transaction is transactions[-1]
            raise
        if revision is None:
            break
        put.update(dict.fromkeys(transaction.puts, revision))
    return revision


def check_is_lost(entry: PartitionEntry, nodes: Mapping[int, Node], name: str) -> None:
    """Checks that no in-sync copy is alive. `name`: the partition's. Raises InvalidRequestError."""
    if not no_copy_alive(entry, nodes):
        leads = f"node {entry.leader} leads" if entry.leader != NO_LEADER else "it is about to lead"
        raise InvalidRequestError(f"a copy of {name} that is in sync is alive, and {leads}: an unclean election would lose records")


def check_target(entry: PartitionEntry, replicas: Sequence[int], nodes: Mapping[int, Node]) -> None:
    """Checks target replicas: new ones on live nodes, at most REPLICAS_MAX with the present ones. Raises InvalidRequestError."""
    for node_id in replicas:
        if node_id not in nodes and node_id not in entry.replicas:
            alive = nodes_text(sorted(nodes))
            raise InvalidRequestError(
                f"node {node_id} cannot get a copy: it is not alive, but {alive} {'is' if len(nodes) == 1 else 'are'} "
                "(see 'brokerd cluster nodes')"
            )
    count = len({*entry.replicas, *replicas})
    if count > REPLICAS_MAX:
        raise InvalidRequestError(
            f"partitions.replicas and those that the partition has now are {count} nodes, more than the {REPLICAS_MAX} allowed: "
            "move it in steps"
        )


def _unavailable(error: CoordinationError) -> NotReadyError:
    return NotReadyError(f"{error}: topics cannot be changed at present", fate=Fate.NOT_APPENDED)


def _behind(name: str, fate: Fate) -> NotReadyError:
    return NotReadyError(f"this node has not heard of the change of topic '{name}' yet: try again", fate=fate)
