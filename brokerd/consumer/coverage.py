"""Warns of partitions that nobody reads: no members share out a topic's partitions, so those that are added to it go unread until
somebody assigns them. Looks now and then, in the background, and warns once of each partition."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping

from brokerd.client.broker_client import BrokerClient
from brokerd.client.groups import group_offsets
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition

logger = logging.getLogger(__name__)

LOOK_MS = 30_000  # others of the group may begin a little later
_NAMED_MAX = 10


class Coverage:
    """The partitions that one consumer has seen, and warned of."""

    def __init__(self, client: BrokerClient, group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._counts: dict[bytes, int] = {}  # partitions of a topic when it was first looked at
        self._told: set[TopicIdPartition] = set()

    async def look(self, topics: Mapping[bytes, str], assigned: Collection[TopicIdPartition]) -> None:
        """Warns of partitions of `topics` (by id) that are not assigned: without a group, of those that were added; in a group, of
        those in which nobody has committed an offset."""
        with contextlib.suppress(BrokerdError):  # the next look repeats it
            found = await self._client.metadata(sorted(topics.values()))
            for topic in found.topics.values():
                count = topic.partition_count
                first = 0 if self._group_id else self._counts.setdefault(topic.topic_id, count)
                others = {TopicIdPartition(topic.topic_id, number) for number in range(first, count)} - self._told
                unread = sorted(others.difference(assigned)) if topic.topic_id in topics else []
                if self._group_id and unread:
                    read = await group_offsets(self._client, self._group_id, unread)
                    unread = [tp for tp in unread if tp not in read]
                if unread:
                    self._told.update(unread)
                    self._warn(topic.name, [str(tp.partition) for tp in unread])

    def _warn(self, topic: str, numbers: list[str]) -> None:
        logger.warning(
            "topic '%s' has partitions that %s (%s): assign() them, here or in another process, or their records stay unread",
            topic,
            f"nobody in group '{self._group_id}' has read" if self._group_id else "were added, and this consumer does not read",
            ", ".join(numbers[:_NAMED_MAX]) + (", ..." if len(numbers) > _NAMED_MAX else ""),
        )
