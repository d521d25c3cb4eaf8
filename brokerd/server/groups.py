"""One broker's groups: appends the table's decisions to an internal log, waits until they are durable, and responds.

There is no await between a decision and `apply`, so decisions do not interleave. A response is sent only when everything it
depends on is durable: an offset that was read is never undone by a crash.

A transaction may commit offsets too. Its record in the transaction log holds them; once that is durable they are copied to this
log by whichever needs them first, the transaction or a request for the group, which waits for it. So no request reads an offset
older than a decision, and no commit is overtaken by one.

A damaged log is not served: a reader that found no offset would silently start elsewhere. The rest of the broker runs without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import (
    CorruptMessageError,
    DataDirectoryError,
    LogDamagedError,
    UnknownGroupError,
    UnknownTopicIdError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.groups.decided import Decided
from brokerd.groups.group_table import GroupLimits, GroupTable
from brokerd.groups.records import decode, offsets_committed
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.server.own_log import OwnEntry, OwnLog
from brokerd.sharing import Shares
from brokerd.wire.v1.group_log_pb2 import CommittedOffset, GroupLogRecord

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


async def _nothing_is_decided() -> None:
    """The default where no transactions commit offsets."""


class Groups:
    """The broker's groups. Create it inside the running event loop."""

    def __init__(self, config: BrokerConfig, log: OwnLog, topics: TopicStore, time: DirectoryTime) -> None:
        self.log = log
        self._topics = topics
        self._time = time
        self._retention_ms = config.offsets_retention_minutes * _MS_PER_MINUTE
        self._unusable = ""  # why the log is not served
        limits = GroupLimits(Shares(config.max_groups), Shares(config.max_group_offsets))
        self.table = GroupTable(limits, self._name_of)
        self.decided = Decided(self.table, limits)
        self.decisions_durable: Callable[[], Awaitable[None]] = _nothing_is_decided  # waits for all decisions before the call
        self._deciding: dict[str, asyncio.Event] = {}  # groups reserved by a transaction until it may decide
        self._undurable: dict[str, int] = {}  # groups with possibly undurable changes: the log's end offset after the last one

    async def start(self) -> None:
        """Loads the log. Call it before the broker serves requests."""
        try:
            for record in await asyncio.to_thread(lambda: [decode(value) for value in self.log.read() if value is not None]):
                self.table.apply(record)
        except (DataDirectoryError, CorruptMessageError, UnsupportedVersionError) as error:
            self._unusable = error.message
            logger.error("the offsets of groups cannot be used: %s; run `brokerd doctor` for advice", error)
        self.table.keep_topics(self._exists)

    # Requests

    async def commit(self, group_id: str, principal: str, offsets: Collection[CommittedOffset]) -> None:
        """Commits offsets atomically; durable on return. Raises the errors of GroupTable.commit, LogDamagedError, and retriable
        errors."""
        self._check_usable()
        await self.log.make()
        await self._recorded(group_id, lambda: self.table.commit(group_id, principal, self._of_known_topics(offsets)))

    async def renew(self, group_id: str) -> None:
        """Keeps a group from expiring while it is read. Recorded only if a quarter of the retention has passed since its last
        commit, so most calls cost no write. Raises LogDamagedError, and retriable errors."""
        now_ms, ahead_ms = self._time.stamp_ms()
        async with self.settled(group_id) as table:
            group = table.groups.get(group_id)
        if group is not None and now_ms - ahead_ms - group.last_commit_ms >= self._retention_ms // _RENEWED_PARTS:
            with contextlib.suppress(UnknownGroupError):  # deleted meanwhile
                await self._recorded(group_id, lambda: self.table.renew(group_id, now_ms, ahead_ms))

    async def delete(self, group_id: str) -> int:
        """Deletes a group, durably on return; returns the number of offsets it had. Raises the errors of GroupTable.delete,
        LogDamagedError, and retriable errors."""
        self._check_usable()
        count = 0

        def decide() -> GroupLogRecord:
            nonlocal count
            count = self.table.required(group_id).count
            return self.table.delete(group_id)

        await self._recorded(group_id, decide)
        return count

    async def delete_offsets(self, group_id: str, tps: Iterable[TopicIdPartition]) -> int:
        """Deletes some offsets of a group, durably on return; returns their number. Raises as `delete` does."""
        self._check_usable()
        record = await self._recorded(group_id, lambda: self.table.delete_offsets(group_id, tps))
        return len(record.offsets_deleted.partitions)

    @contextlib.asynccontextmanager
    async def settled(self, group_id: str = "") -> AsyncIterator[GroupTable]:
        """Yields the table with all decided offsets of this group applied. On exit, and before it re-raises a WireError, waits
        until everything in the table is durable. Raises LogDamagedError, and retriable errors."""
        self._check_usable()
        if self.decided.is_waiting(group_id):
            await self.bring_in()
        try:
            yield self.table
        except WireError:
            await self.log.durable()
            raise
        await self.log.durable()

    # With transactions

    async def ready(self, asked: AskedOffsets) -> None:
        """Waits until `decide` may be called. The decision depends on the group's offsets, which are in another log: they must be
        durable first, or a crash might keep the decision without them. Other commits to the group wait meanwhile, lest a stream
        of them delay it for ever. Raises LogDamagedError, and retriable errors."""
        self._check_usable()
        await self.log.make()
        while True:
            if self.decided.is_waiting(asked.group_id):
                await self.bring_in()
            elif not self.log.is_durable(self._undurable.get(asked.group_id, 0)):
                with self._others_waiting(asked.group_id):
                    await self.log.durable()
            else:
                return

    @contextlib.contextmanager
    def _others_waiting(self, group_id: str) -> Iterator[None]:
        ended = self._deciding[group_id] = asyncio.Event()
        try:
            yield
        finally:
            ended.set()  # the waiters resume after the caller, which decides without awaiting
            if self._deciding.get(group_id) is ended:
                del self._deciding[group_id]

    def decide(self, asked: AskedOffsets) -> GroupLogRecord:
        """The record to embed in the commit's record. Raises the errors of GroupTable.commit and of `asked.offsets`; await
        `log.durable` before you report them."""
        return self.decided.decide(asked.group_id, asked.principal, self._of_known_topics(asked.offsets()), asked.expected)

    async def bring_in(self) -> None:
        """Copies all offsets that transactions decided before the call to this log and the table, once their records are durable.
        The copies are durable once `log.durable` returns. Raises LogDamagedError, and retriable errors; these groups' offsets must
        not be reported until a later call succeeds."""
        last = self.decided.last
        await self.decisions_durable()
        self._check_usable()
        await self.log.make()
        for record in self.decided.due(last):
            known = self._of_known_topics(record.offsets_committed.offsets)
            written = offsets_committed(record.group_id, record.principal, known, record.decision)
            self.log.append([_entry(written)])
            self.decided.apply(record, written)

    def forget_topic(self, topic_id: bytes) -> None:
        """Forgets the offsets of a deleted topic."""
        self.table.forget_topic(topic_id)

    # Time

    async def sweep(self) -> None:
        """Deletes expired groups. Logs errors."""
        if self._unusable:
            return
        self._undurable = {name: end for name, end in self._undurable.items() if not self.log.is_durable(end)}
        try:
            expired = self._expired()
            while records := list(itertools.islice(expired, _EXPIRED_AT_ONCE)):
                self._record(*records)
                names = ", ".join(repr(record.group_id) for record in records[:_NAMED_MAX])
                logger.info("%d groups have expired by offsets.retention.minutes, among them %s", len(records), names)
                await asyncio.sleep(0)
        except WireError as error:
            logger.warning("groups cannot expire: %s", error)

    async def compact(self) -> None:
        """Compacts the log if it has grown, while requests are served. Must not run twice at once. Logs errors."""
        if self._unusable or not self.log.has_grown():
            return
        try:
            await self.log.compact([_entry(record) for record in piece] for piece in self.table.pieces())
        except (WireError, OSError) as error:
            logger.warning("the log of group offsets cannot be compacted: %s", error)

    def _expired(self) -> Iterator[GroupLogRecord]:
        expired = self.table.expired(self._time.now_ms() - self._retention_ms)
        return (record for record in expired if not self.decided.is_waiting(record.group_id))

    # Recording

    async def _recorded(self, group_id: str, decide: Callable[[], GroupLogRecord]) -> GroupLogRecord:
        """The decision, once it is durable. A refusal is raised once everything it depends on is durable."""
        while True:
            if self.decided.is_waiting(group_id):
                await self.bring_in()
            elif group_id in self._deciding:
                await self._deciding[group_id].wait()
            else:
                break
        try:
            record = decide()
        except WireError:
            await self.log.durable()
            raise
        self._record(record)
        await self.log.durable()
        if self.log.is_durable(self._undurable.get(group_id, 0)):
            self._undurable.pop(group_id, None)
        return record

    def _record(self, *records: GroupLogRecord) -> None:
        """Appends records and applies them; no effect if it raises."""
        self.log.append([_entry(record) for record in records])
        for record in records:
            self.table.apply(record)
            self._undurable[record.group_id] = self.log.end_offset

    def _check_usable(self) -> None:
        if self._unusable:
            raise LogDamagedError(
                f"the offsets of groups cannot be used: {self._unusable.rstrip('.')}. An operator runs `brokerd doctor` for advice"
            )

    def _of_known_topics(self, offsets: Collection[CommittedOffset]) -> Collection[CommittedOffset]:
        """The offsets without those of topics deleted since the request was validated."""
        known = {topic_id for topic_id in {one.topic_id for one in offsets} if self._exists(topic_id)}
        return [one for one in offsets if one.topic_id in known]

    def _name_of(self, tp: TopicIdPartition) -> str:
        if not self._exists(tp.topic_id):
            return str(tp)
        return str(TopicPartition(self._topics.by_id(tp.topic_id).name, tp.partition))

    def _exists(self, topic_id: bytes) -> bool:
        try:
            self._topics.by_id(topic_id)
        except UnknownTopicIdError:
            return False
        return True


def _entry(record: GroupLogRecord) -> OwnEntry:
    return OwnEntry(record.group_id.encode(), record.SerializeToString())
