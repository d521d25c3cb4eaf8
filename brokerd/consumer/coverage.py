"""Warns about unread partitions: groups have no members to distribute partitions among, so a partition added to a topic stays
unread until a consumer assigns it. Checks periodically in the background; warns once per partition."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping

from brokerd.client.broker_client import BrokerClient
from brokerd.client.groups import group_offsets
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition

logger = logging.getLogger(__name__)

LOOK_MS = 30_000  # gives other consumers of the group time to start
_NAMED_MAX = 10


class Coverage:
    """The partitions that one consumer has seen and warned about."""

    def __init__(self, client: BrokerClient, group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._counts: dict[bytes, int] = {}  # a topic's partition count at the first check
        self._told: set[TopicIdPartition] = set()

    async def look(self, topics: Mapping[bytes, str], assigned: Collection[TopicIdPartition]) -> None:
        """Warns about unassigned partitions of `topics` (by id): without a group, those added since the first check; in a group,
        those without a committed offset."""
        with contextlib.suppress(BrokerdError):  # the next check retries
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
