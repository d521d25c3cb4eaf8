"""Topics of the cluster, changed by any node on behalf of its clients: checked as a node alone checks them, written under the
comparison of what was checked, and answered once this node itself has them.

The checks read the topics of the data directory, which follow the image a moment later. So a change first waits until both say the
same of its topic: it would otherwise undo what another node has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from brokerd.cluster.changes import Transaction, change_topic, create_topic, delete_topic, grow_topic
from brokerd.cluster.keys import PartitionEntry, TopicEntry
from brokerd.cluster.placement import place
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.topic_changes import TopicChanges
from brokerd.datadir.topic_store import COORDINATOR, Topic, TopicStore
from brokerd.errors import (
    CoordinationError,
    Fate,
    NotReadyError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from brokerd.server.cluster.directory import ClusterDirectory
from brokerd.server.cluster.membership import Membership

_PATIENCE_S = 10.0  # for this node to follow the image
_ATTEMPTS = 10  # against nodes that change the same topic
_REPLICATION_FACTOR = 1


class ClusterTopics:
    """See the module docstring. Every method raises the errors of the same method of TopicChanges, NotReadyError if the store or
    this node does not keep up, and StorageError with an unknown fate if the change may have been made.
    """

    def __init__(
        self,
        client: CoordinationClient,
        membership: Membership,
        directory: ClusterDirectory,
        topics: TopicStore,
        changes: TopicChanges,
    ) -> None:
        self._client = client
        self._membership = membership
        self._directory = directory
        self._topics = topics
        self._changes = changes

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Creates a topic."""
        topic = self._changes.check_create(name, partitions, configs)
        entry = TopicEntry(topic.name, topic.partition_count, topic.configs)
        placed = self._placed(topic.partition_count)
        if await self._run(create_topic(self._membership.image, topic.id, entry, placed)) is None:
            raise TopicAlreadyExistsError(f"topic '{name}' already exists")
        await self._until(lambda: self._topics.has(name), name)
        return topic

    async def create_coordinator(self) -> None:
        """Creates the topic of the coordinator's log, unless there is one. On return the image has it, the directory maybe not."""
        image = self._membership.image
        if image.topic(COORDINATOR.id) is None:
            entry = TopicEntry(COORDINATOR.name, COORDINATOR.partition_count, COORDINATOR.configs)
            # If it fails, another node has created it.
            await self._run(create_topic(image, COORDINATOR.id, entry, self._placed(COORDINATOR.partition_count)))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while image.topic(COORDINATOR.id) is None:
                    await self._membership.after(self._membership.generation)
        except TimeoutError:
            raise NotReadyError(f"this node has not heard of topic '{COORDINATOR.name}' yet: try again") from None

    async def grow(self, name: str, total: int) -> Topic:
        """Adds partitions up to `total`."""

        def decide(topic: Topic) -> list[Transaction]:
            grown = self._changes.check_grow(name, total)
            added = self._placed(grown.partition_count - topic.partition_count)
            return grow_topic(self._membership.image, topic.id, added)

        return await self._change(name, decide)

    async def alter(self, name: str, set_configs: Mapping[str, str], unset: Iterable[str]) -> Topic:
        """Changes settings."""
        unset = list(unset)

        def decide(topic: Topic) -> list[Transaction]:
            altered = self._changes.check_alter(name, set_configs, unset)
            entry = TopicEntry(altered.name, altered.partition_count, altered.configs)
            return [change_topic(self._membership.image, topic.id, entry)]

        return await self._change(name, decide)

    async def delete(self, name: str) -> Topic:
        """Deletes a topic. Other nodes remove their partitions a moment later."""
        return await self._change(name, lambda topic: delete_topic(self._membership.image, topic.id))

    async def _change(self, name: str, decide: Callable[[Topic], list[Transaction]]) -> Topic:
        """Changes a topic by what this node and the image say of it now; again, if it has changed meanwhile. Returns it as this
        node has it afterwards, or had it last.
        """
        for _ in range(_ATTEMPTS):
            await self._until(partial(self._has_followed, name, 0), name)
            topic = self._topics.by_name(name)
            seen, done = self._membership.revision, await self._run(decide(topic))
            # If it failed, the store was ahead of the image.
            await self._until(partial(self._has_followed, name, seen + 1 if done is None else done), name)
            if done is not None:
                return self._topics.by_name(name) if self._topics.has(name) else topic
        raise NotReadyError(f"topic '{name}' was changed by others {_ATTEMPTS} times meanwhile: try again", fate=Fate.NOT_APPENDED)

    def _has_followed(self, name: str, revision: int) -> bool:
        """True if the data directory and the image say the same of a topic, at this revision or later."""
        if self._membership.revision < revision:
            return False
        topic_id = self._membership.image.topic_id(name)
        try:
            topic = self._topics.by_name(name)
        except UnknownTopicOrPartitionError:
            return topic_id is None
        entry = TopicEntry(topic.name, topic.partition_count, topic.configs)
        return topic.id == topic_id and entry == self._membership.image.topic(topic.id)

    def _placed(self, count: int) -> Sequence[PartitionEntry]:
        if not self._membership.image.nodes:
            raise NotReadyError("no node of the cluster is registered at present: try again", fate=Fate.NOT_APPENDED)
        return place(self._membership.image, count, _REPLICATION_FACTOR)

    async def _run(self, transactions: Sequence[Transaction]) -> int | None:
        """Runs transactions, and returns the last one's revision; None if one fails. What was written before it, nobody sees."""
        revision: int | None = None
        for transaction in transactions:
            try:
                revision = await self._client.transact(*transaction)
            except CoordinationError as error:
                if error.is_fate_unknown:
                    raise StorageError(f"{error}: the change may have been made", fate=Fate.UNKNOWN) from error
                raise NotReadyError(f"{error}: topics cannot be changed at present", fate=Fate.NOT_APPENDED) from error
            if revision is None:
                break
        return revision

    async def _until(self, holds: Callable[[], bool], name: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not holds():
                    await self._directory.next_pass()
        except TimeoutError:
            raise NotReadyError(f"this node has not heard of the change of topic '{name}' yet: try again") from None
