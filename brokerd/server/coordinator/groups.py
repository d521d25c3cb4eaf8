"""One broker's groups: appends the table's decisions to the coordinator's log, waits until they are durable, and responds.

There is no await between a decision and `apply`, so decisions do not interleave. A response is sent only when everything it depends
on is durable: a crash never undoes an offset that was read. Offsets committed with a transaction are in the batch of its decision
(transactions.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

from brokerd.config.broker import BrokerConfig
from brokerd.coordinator.group_table import GroupTable
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import UnknownGroupError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.sharing import Shares
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset, CoordinatorRecord

logger = logging.getLogger(__name__)

_MS_PER_MINUTE = 60_000
_EXPIRED_AT_ONCE = 100
_RENEWED_PARTS = 4  # renewals recorded per offsets.retention.minutes for a group that is being read
_NAMED_MAX = 5


class AskedOffsets(NamedTuple):
    """Offsets of a group to commit with a transaction."""

    group_id: str
    principal: str
    offsets: Callable[[], Collection[CommittedOffset]]  # validates them at the time of the decision; raises WireError
    expected: Mapping[TopicIdPartition, int]  # the group's offsets when the transaction's input was read


class Groups:
    """The broker's groups. Create it inside the running event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        log: CoordinatorLog,
        topics: TopicStore,
        time: DirectoryTime,
        has_topic: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """`has_topic`: True if the cluster has a topic that this node's directory may not have yet."""
        self._log = log
        self._topics = topics
        self._has_topic = has_topic
        self._time = time
        self._retention_ms = config.offsets_retention_minutes * _MS_PER_MINUTE
        self._unrecorded_ms = self._retention_ms // _RENEWED_PARTS  # a renewal within this time of the recorded one is not recorded
        self.table = GroupTable(Shares(config.max_groups), Shares(config.max_group_offsets), self.name_of)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by group

    def loaded(self) -> None:
        """Drops the offsets of deleted topics. Call it once the log's records are applied to the table."""
        self.table.keep_topics(self._exists)

    # Requests

    def turn(self, group_id: str) -> asyncio.Lock:
        """Held by a request that commits or deletes offsets, from its arrival until just before it is recorded, so that the last to
        arrive wins. A client that loses its connection commits again over a new one, while the older commit, which may wait for the
        store, runs to its end."""
        return self._turns.setdefault(group_id, asyncio.Lock())

    async def commit(self, group_id: str, principal: str, offsets: Collection[CommittedOffset]) -> None:
        """Commits offsets atomically; durable on return. Raises the errors of GroupTable.commit, and retriable errors."""
        await self._log.make()
        await self._recorded(lambda: self.table.commit(group_id, principal, self._of_known_topics(offsets)))

    async def renew(self, group_id: str) -> None:
        """Keeps a group from expiring while it is read. Recorded at most every quarter of the retention, so most calls cost no
        write; the last record is durable on return, for the next coordinator. Raises retriable errors."""
        now_ms, ahead_ms = self._time.stamp_ms()
        group = self.table.groups.get(group_id)
        if group is not None and now_ms - ahead_ms - group.last_commit_ms >= self._unrecorded_ms:
            with contextlib.suppress(UnknownGroupError):  # deleted meanwhile
                await self._recorded(lambda: self.table.renew(group_id, now_ms, ahead_ms))
        else:
            await self._log.durable()

    async def delete(self, group_id: str) -> int:
        """Deletes a group, durably on return; returns the number of offsets it had. Raises the errors of GroupTable.delete, and
        retriable errors."""
        group = self.table.groups.get(group_id)
        count = group.count if group is not None else 0
        await self._recorded(lambda: self.table.delete(group_id))
        return count

    async def delete_offsets(self, group_id: str, tps: Iterable[TopicIdPartition]) -> int:
        """Deletes some offsets of a group, durably on return; returns their number. Raises as `delete` does."""
        record = await self._recorded(lambda: self.table.delete_offsets(group_id, tps))
        return len(record.offsets_deleted.partitions)

    @contextlib.asynccontextmanager
    async def settled(self) -> AsyncIterator[GroupTable]:
        """Yields the table. On exit, and before it re-raises a WireError, waits until everything in the table is durable. Raises
        retriable errors."""
        async with self._log.settled():
            yield self.table

    def decide(self, asked: AskedOffsets) -> CoordinatorRecord:
        """The record of a transaction's offsets. Raises the errors of GroupTable.commit and of `asked.offsets`; await
        `CoordinatorLog.durable` before you report them."""
        return self.table.commit(asked.group_id, asked.principal, self._of_known_topics(asked.offsets()), asked.expected)

    # Time

    async def sweep(self) -> None:
        """Deletes groups idle for the retention plus one renewal interval: later renewals may be unrecorded. Logs errors."""
        expired = self.table.expired(self._time.now_ms() - self._retention_ms - self._unrecorded_ms)
        try:
            while records := list(itertools.islice(expired, _EXPIRED_AT_ONCE)):
                self._record(*records)
                names = ", ".join(repr(record.group_id) for record in records[:_NAMED_MAX])
                logger.info("%d groups have expired by offsets.retention.minutes, among them %s", len(records), names)
                await asyncio.sleep(0)
        except WireError as error:
            logger.warning("groups cannot expire: %s", error)

    # Recording

    async def _recorded(self, decide: Callable[[], CoordinatorRecord]) -> CoordinatorRecord:
        """The decision, once it is durable. A refusal is raised once everything it depends on is durable."""
        try:
            record = decide()
        except WireError:
            await self._log.confirmed()
            raise
        self._record(record)
        await self._log.durable()
        return record

    def _record(self, *records: CoordinatorRecord) -> None:
        """Appends records and applies them; no effect if it raises."""
        self._log.append(records)
        for record in records:
            self.table.apply(record)

    def _of_known_topics(self, offsets: Collection[CommittedOffset]) -> Collection[CommittedOffset]:
        """The offsets without those of topics deleted since the request was validated."""
        known = {topic_id for topic_id in {one.topic_id for one in offsets} if self._exists(topic_id)}
        return [one for one in offsets if one.topic_id in known]

    def name_of(self, tp: TopicIdPartition) -> str:
        """A partition's name for messages; its id if the topic is deleted."""
        try:
            return str(TopicPartition(self._topics.by_id(tp.topic_id).name, tp.partition))
        except UnknownTopicIdError:
            return str(tp)

    def _exists(self, topic_id: bytes) -> bool:
        try:
            self._topics.by_id(topic_id)
        except UnknownTopicIdError:
            return self._has_topic(topic_id)
        return True
