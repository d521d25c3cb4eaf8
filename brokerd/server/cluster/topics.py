"""Topics of the cluster, changed by any node on behalf of its clients: checked as a node alone checks them, written under the
comparison of what was checked, and answered once this node itself has them.

The checks read the topics of the data directory, which follow the image a moment later. So a change first waits until both say the
same of its topic: it would otherwise undo what another node has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from brokerd.cluster.changes import ABSENT, Transaction, change_topic, create_topic, delete_topic, grow_topic
from brokerd.cluster.election import place
from brokerd.cluster.keys import PartitionEntry
from brokerd.config.topic import REPLICAS_MAX
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.topic_changes import TopicChanges
from brokerd.datadir.topic_store import COORDINATOR, Topic, TopicStore
from brokerd.errors import (
    CoordinationError,
    Fate,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    NotReadyError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    counted,
)
from brokerd.ids import TopicIdPartition, topic_name_problem
from brokerd.server.cluster.directory import ClusterDirectory, entry_of
from brokerd.server.cluster.membership import Membership

_PATIENCE_S = 10.0  # for this node to follow the image
_ATTEMPTS = 10  # against nodes that change the same topic
# Refusals that rest on what this node knows of the topic, which another one may have changed a moment ago.
_RESTS_ON_TOPIC = (TopicAlreadyExistsError, UnknownTopicOrPartitionError, InvalidPartitionsError)


class ClusterTopics:
    """See the module docstring. Every method raises the errors of the same method of TopicChanges, NotReadyError if the store or
    this node does not keep up, and StorageError if the store's answer is lost, with an unknown fate if the change may be made.
    """

    def __init__(
        self,
        client: CoordinationClient,
        membership: Membership,
        directory: ClusterDirectory,
        topics: TopicStore,
        changes: TopicChanges,
        default_factor: int = 1,
    ) -> None:
        self._default_factor = default_factor
        self._client = client
        self._membership = membership
        self._directory = directory
        self._topics = topics
        self._changes = changes
        self._creating = asyncio.Lock()  # the coordinator's log: a thousand clients that look for it at once create it once

    async def create(self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int = 0) -> Topic:
        """Creates a topic. `replication_factor` 0: default.replication.factor. Raises InvalidReplicationFactorError, too."""

        def decide() -> tuple[Topic, list[Transaction]]:
            topic = self._changes.check_create(name, partitions, configs)
            placed = self._placed(topic.partition_count, self.check_factor(name, replication_factor))
            return topic, create_topic(self._membership.image, topic.id, entry_of(topic), placed)

        return await self._change(name, decide)

    def check_factor(self, name: str, replication_factor: int) -> int:
        """The replication factor of a new topic. Raises InvalidReplicationFactorError."""
        factor, alive = replication_factor or self._default_factor, max(len(self._membership.image.nodes), 1)
        if factor > min(alive, REPLICAS_MAX):
            setting = "" if replication_factor else " (default.replication.factor)"
            why = f"{counted(alive, 'node')} of the cluster {'is' if alive == 1 else 'are'} alive"
            if factor > REPLICAS_MAX:
                why = f"at most {REPLICAS_MAX} are allowed"
            raise InvalidReplicationFactorError(f"topic '{name}' cannot have a replication factor of {factor}{setting}: {why}")
        return factor

    async def create_coordinator(self) -> None:
        """Creates the topic of the coordinator's log, unless there is one. On return the image has it, the directory maybe not."""
        image, membership = self._membership.image, self._membership
        try:
            async with asyncio.timeout(_PATIENCE_S), self._creating:
                while image.topic(COORDINATOR.id) is None:
                    # With as many nodes as there are: the controller adds the rest once they have joined.
                    factor = max(1, min(self._default_factor, len(image.nodes)))
                    generation, placed = membership.generation, self._placed(COORDINATOR.partition_count, factor)
                    # If it fails, another node has created it, or is about to.
                    await self._run(create_topic(image, COORDINATOR.id, entry_of(COORDINATOR), placed))
                    await membership.after(generation)
        except TimeoutError:
            raise _behind(COORDINATOR.name, Fate.UNKNOWN) from None

    async def grow(self, name: str, total: int) -> Topic:
        """Adds partitions up to `total`."""

        def decide() -> tuple[Topic, list[Transaction]]:
            grown = self._changes.check_grow(name, total)
            first = self._membership.image.partition(TopicIdPartition(grown.id, 0))
            factor = len(first.entry.replicas) if first is not None else 1
            factor = max(1, min(factor, len(self._membership.image.nodes)))
            added = self._placed(total - self._topics.by_name(name).partition_count, factor)
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
        """Deletes a topic. Other nodes remove their partitions a moment later."""

        def decide() -> tuple[Topic, list[Transaction]]:
            topic = self._changes.check_delete(name)
            return topic, [delete_topic(self._membership.image, topic.id)]

        return await self._change(name, decide)

    async def _change(self, name: str, decide: Callable[[], tuple[Topic, list[Transaction]]]) -> Topic:
        """Changes a topic by what this node and the image say of it now; again, if it has changed meanwhile. Returns it as it was
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

    def _has_followed(self, name: str, revision: int) -> bool:
        """True if the data directory and the image say the same of a topic, at this revision or later."""
        if self._membership.revision < revision:
            return False
        topic_id = self._membership.image.topic_id(name)
        try:
            topic = self._topics.by_name(name)
        except UnknownTopicOrPartitionError:
            return topic_id in (None, COORDINATOR.id)  # which clients cannot see
        return topic.id == topic_id and entry_of(topic) == self._membership.image.topic(topic.id)

    async def _is_newest(self, name: str) -> bool:
        """True if the store says the same of a topic as the image does now."""
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
        """See `run`."""
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
    """Runs the transactions of a change, and returns the revision of the last one, which makes it; None if one fails. What was
    written before that, nobody sees. Raises CoordinationError, whose fate is that of the change.
    """
    revision: int | None = None
    put: dict[str, int] = {}
    for transaction in transactions:
        try:
            revision = await client.transact(*transaction.after(put))
        except CoordinationError as error:
            error.is_fate_unknown &= transaction is transactions[-1]
            raise
        if revision is None:
            break
        put.update(dict.fromkeys(transaction.puts, revision))
    return revision


def _unavailable(error: CoordinationError) -> NotReadyError:
    return NotReadyError(f"{error}: topics cannot be changed at present", fate=Fate.NOT_APPENDED)


def _behind(name: str, fate: Fate) -> NotReadyError:
    return NotReadyError(f"this node has not heard of the change of topic '{name}' yet: try again", fate=fate)
