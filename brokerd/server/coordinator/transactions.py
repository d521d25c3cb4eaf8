"""One broker's transactions: records the coordinator's decisions, makes them durable, carries them out and responds, in this order:

    member durable -> its response            end of members durable -> the markers that void their data
    commit durable -> its markers             all its markers durable -> last stable offsets advance, atomically -> its response

Group offsets of a commit (groups.py) are in the batch of its record: a crash keeps both or neither.

The record of a commit lists the partitions it holds back, each with an offset: their last stable offsets do not pass it until the
commit is finished, restarts included.

There is no await between a decision and `apply`, so decisions do not interleave. A response, even a refusal, is sent only when
everything it depends on is durable. A commit that cannot be finished (a disk refuses a marker) stays prepared; the next request
retries it, and so does the sweep, with a growing delay. Open data of a member that is neither open nor in a prepared commit is
void: it is aborted at the start and by each sweep, unless its partition may have lost the marker to damage (local_leaders.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.coordinator.loading import load
from brokerd.coordinator.markers import RecordFor, control_records
from brokerd.coordinator.pages import Pages
from brokerd.coordinator.records import Event, is_of_group, record_of
from brokerd.coordinator.transaction_coordinator import TransactionCoordinator, TransactionLimits
from brokerd.coordinator.transactional_id import MEMBER_EPOCH, NO_VERSION, Held, Progress, execution_text
from brokerd.datadir.decided_members import DecidedMembers
from brokerd.datadir.node_state import ProducerIds
from brokerd.errors import (
    CorruptMessageError,
    DataDirectoryError,
    Fate,
    NotReadyError,
    StorageError,
    WireError,
)
from brokerd.ids import TopicIdPartition, member_producer_id
from brokerd.record.header import BatchHeader
from brokerd.server.admin import STOPPING, Admin
from brokerd.server.coordinator.groups import AskedOffsets, Groups
from brokerd.server.coordinator.local_leaders import LocalLeaders, LostMarkers, Markers
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.failures import to_its_end
from brokerd.server.paging import Pauses
from brokerd.sharing import Shares
from brokerd.wire.v1.coordinator_log_pb2 import (
    CommitCompleted,
    CommitPrepared,
    CoordinatorRecord,
    MemberOpened,
    MembersAborted,
)
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, HeartbeatRequest, InitProducerIdRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_AFTER_MS = 500
_RECORD_PIECES = 14  # cost of an event's record in units of Pauses
_UNMARKED = ""  # the key of markers outside a commit; no transactional id is empty
_HELD_BACK = (
    "; until then readers of committed records wait for it in all its partitions. If one of them will never take a marker again, "
    "let `brokerd doctor` accept its damage, or delete its topic"
)
# The sweep retries what failed after this time, and what failed again after that: fewer attempts and log lines while a disk fails.
# Requests try at once.
FIRST_MS = 10_000
MAX_MS = 60_000


class Outcomes:
    """Counts of decided transactions, since the start."""

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0  # aborts by requests and operators
        self.expired = 0  # executions


class Transactions:
    """The broker's transactions. Create it inside the running event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        log: CoordinatorLog,
        leaders: LocalLeaders,
        groups: Groups,
        producer_ids: ProducerIds,
        reserving: Admin,
        clock: Clock,
        *,
        decided_members: DecidedMembers,
    ) -> None:
        """`reserving` runs the reservations of producer ids."""
        self.log = log
        self.leaders = leaders
        self._groups = groups
        self._producer_ids = producer_ids
        self._reserving = reserving
        self._clock = clock
        self._decided_members = decided_members
        self._limits = TransactionLimits(
            Shares(config.max_transactional_ids),
            Shares(config.max_open_members),
            config.transaction_max_timeout_ms,
            config.transaction_max_age_ms,
        )
        self.coordinator = self._new_coordinator()
        self.pages = Pages()
        self.outcomes = Outcomes()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by transactional id
        self._markers: dict[str, Markers] = {}  # of unfinished commits, by transactional id
        self._retry_at_ms: dict[str, int] = {}  # what the sweep failed to finish, by transactional id
        self._lost_markers = LostMarkers()
        self._refused: frozenset[int] = frozenset()  # ended members with a marker that could not be written
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    def _new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self._limits)

    # Start and stop

    async def start(self) -> None:
        """Loads the log, of groups too, finishes prepared commits and voids the data of ended members. Call it before the broker
        serves requests. A commit that cannot be finished stays held back and is retried. Raises DataDirectoryError if any part of
        the log is unusable: running without it would lose commits or apply them twice.
        """
        try:
            await self._load()
        except (DataDirectoryError, CorruptMessageError) as error:
            raise DataDirectoryError(
                f"the coordinator's log cannot be used: {error.message.rstrip('.')}. Without it commits could be lost or done "
                "twice, and readers would start elsewhere, so the broker does not start; run `brokerd doctor` for advice"
            ) from error
        await self.sweep()

    async def _load(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.coordinator = await asyncio.to_thread(
            lambda: load(self._with_groups(), self.log.start_offset, self._new_coordinator, now_ms)
        )
        self._groups.loaded()
        prepared = self.coordinator.prepared()
        for name, commit in prepared:
            self.leaders.hold_back(name, commit.held_back)  # there, markers in the log have taken effect already
        ended = self.coordinator.presumed_aborted(self.leaders.producer_ids)
        self._lost_markers.find(ended, self.leaders.known.of_clients(), self.log.read(), self._decided_members)

    def _with_groups(self) -> Iterator[CoordinatorRecord | None]:
        """All records. Applies those of groups."""
        for record in self.log.read():
            if record is not None and is_of_group(record):
                self._groups.table.apply(record)
            yield record

    def begin_stop(self) -> None:
        """Refuses new decisions; pending ones continue."""
        self._is_stopping = True

    async def drain(self) -> None:
        """Waits for all pending decisions, and records their ends."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._try(self._record_rest())

    @property
    def undecided_count(self) -> int:
        """The number of members that hold back readers until an operator decides their outcome."""
        return len(self._lost_markers.undecided(self.leaders.producer_ids))

    # Members

    async def init_member(self, principal: str, asked: InitProducerIdRequest, own_id: Callable[[int], int]) -> MemberOpened:
        """The member, open and durable. `own_id` turns a fresh number into a producer id of the caller's. Raises the errors of
        TransactionCoordinator.init, StorageError and other retriable errors.
        """
        await self.log.make()
        ids = self._producer_ids
        while not ids.has_next:
            await self._reserving.run(ids.reserve())
        next_id = own_id(member_producer_id(ids.next_id))
        member = await self._decided(lambda: self.coordinator.init(principal, asked, self._clock.monotonic_ms(), next_id))
        if member.producer_id not in self.coordinator.open_members:
            self._record(asked.transactional_id, principal, member)
            ids.take()
        await self.log.durable()
        return member

    async def heartbeat(self, principal: str, asked: HeartbeatRequest) -> None:
        """Renews a member. Raises the errors of TransactionCoordinator.heartbeat."""
        await self._decided(lambda: self.coordinator.heartbeat(principal, asked, self._clock.monotonic_ms()))

    def is_open_member(self, header: BatchHeader) -> bool:
        """True if the batch's producer is an open member. There must be no await between this call and the append. The epoch of a
        non-transactional batch is not compared: the partition refuses such a batch from a member.
        """
        is_known = header.producer_id in self.coordinator.open_members
        return is_known and (header.producer_epoch == MEMBER_EPOCH or not header.is_transactional)

    def appended(self, producer_id: int, tp: TopicIdPartition, records: int) -> None:
        """Counts a member's appended records (0 for a duplicate) and renews the member."""
        self.leaders.appended(producer_id, tp, records)
        self.coordinator.renew(producer_id, self._clock.monotonic_ms())

    # Decisions

    async def commit(self, principal: str, asked: EndTransactionRequest, offsets: AskedOffsets | None = None) -> None:
        """Commits a version, and `offsets` with it; returns once all of it is visible. Raises the errors of
        TransactionCoordinator.commit and Groups.decide; a retriable error if the commit is unfinished or its outcome unknown: the
        request may be repeated.
        """
        await self._run(self._commit(principal, asked, offsets))

    async def abort(self, principal: str, asked: EndTransactionRequest) -> None:
        """Ends the listed members, durably on return. Raises the errors of TransactionCoordinator.abort, and retriable errors."""
        await self._run(self._abort(asked.transactional_id, lambda: self.coordinator.abort(principal, asked)))

    async def abort_all(self, transactional_id: str, execution_id: str) -> int:
        """Ends all open members, or those of one execution; returns their number. Raises retriable errors."""
        return await self._run(self._abort(transactional_id, lambda: self.coordinator.abort_all(transactional_id, execution_id)))

    async def forget(self, transactional_id: str) -> int:
        """Forgets an id, durably on return; returns its last committed version, -1 if it had none. Raises InvalidTxnStateError
        while it is in use, and retriable errors."""
        return await self._run(self._forget_at_once(transactional_id))

    def _lock(self, name: str) -> asyncio.Lock:
        """The lock that serialises decisions on one transactional id. It exists while a task holds or awaits it."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    async def _commit(self, principal: str, asked: EndTransactionRequest, offsets: AskedOffsets | None) -> None:
        name = asked.transactional_id
        await self.log.make()
        async with self._lock(name):
            while True:
                decided = await self._decided(lambda: self.coordinator.commit(principal, asked, self._held(asked)))
                if decided is Progress.COMPLETE:
                    await self.log.durable()
                    return
                if isinstance(decided, CommitPrepared):
                    committed = await self._decided(partial(self._groups.decide, offsets)) if offsets is not None else None
                    self._prepare(name, principal, decided, committed)
                elif decided is not Progress.UNFINISHED:
                    self._record(name, principal, decided)
                    continue
                await self._finish(name)
                if isinstance(decided, CommitPrepared):  # CommitCompleted need not be durable: a restart finishes it again
                    return

    def _prepare(self, name: str, principal: str, event: CommitPrepared, offsets: CoordinatorRecord | None) -> None:
        event.held_back.extend(self.leaders.held_back((*event.committed_producer_ids, *event.aborted_producer_ids)))
        record = self._record_of(name, principal, event)
        self.log.append([record] if offsets is None else [record, offsets])
        self.coordinator.apply(record, self._clock.monotonic_ms())
        if offsets is not None:
            self._groups.table.apply(offsets)
        self.leaders.hold_back(name, event.held_back)
        self.outcomes.committed += 1

    def _held(self, asked: EndTransactionRequest) -> Held:
        named = [TopicIdPartition(one.topic_id, one.partition) for one in asked.partitions]
        return self.leaders.held([member.producer_id for member in asked.members], named)

    async def _finish(self, name: str) -> bool:
        """Writes the markers of the prepared commit and makes them take effect; False if none is prepared. The caller holds the
        id's lock."""
        state = self.coordinator.states.get(name)
        if state is None or state.prepared is None:
            return False
        prepared = state.prepared
        winners, losers = prepared.committed_producer_ids, prepared.aborted_producer_ids
        record_for = control_records(name, prepared.txn_version, committed=winners, aborted=losers)
        await self.log.durable()
        markers = self._markers.setdefault(name, {})
        try:
            await self.leaders.write_markers(self.leaders.partitions_of((*winners, *losers)), record_for, markers)
        except NotReadyError:
            raise
        except WireError as error:
            raise StorageError(
                f"{_subject(name, prepared)}: it is committed, but not visible yet: {error.message}; "
                "retry later; the broker keeps trying",
                retry_after_ms=_RETRY_AFTER_MS,
            ) from error
        self.leaders.release(name, prepared.held_back)
        del self._markers[name]
        self._retry_at_ms.pop(name, None)
        self._record_completed(name, state.principal, prepared)
        logger.debug("%s: committed, %d members in %d partitions", _subject(name, prepared), len(winners), len(markers))
        return True

    def _record_completed(self, name: str, principal: str, prepared: CommitPrepared) -> None:
        """Records the end of a commit with the next event. If a crash loses it, the next start only looks for missing markers."""
        record = self._record_of(name, principal, CommitCompleted(txn_version=prepared.txn_version))
        self.log.append_late(record)
        self.coordinator.apply(record, self._clock.monotonic_ms())

    async def _abort(self, name: str, decide: Callable[[], MembersAborted | None]) -> int:
        event = await self._decided(decide)
        if event is None:
            await self.log.durable()  # an earlier abort may have ended them
            return 0
        logger.info("transactional id %r: aborted %s", name, self._texts(event.producer_ids))
        self._record(name, self.coordinator.states[name].principal, event)
        self.outcomes.aborted += 1
        await self.log.durable()
        await self._void(name, event.producer_ids)
        return len(event.producer_ids)

    async def _forget_at_once(self, name: str) -> int:
        last_version = NO_VERSION
        async with self._lock(name):
            event = await self._decided(lambda: self.coordinator.forget_at_once(name))
            if event is not None:
                state = self.coordinator.states[name]
                last_version = state.last_version
                self._record(name, state.principal, event)
                logger.warning(
                    "transactional id %r of %s is forgotten, with its last version %d", name, state.principal, last_version
                )
        await self.log.durable()
        return last_version

    async def _void(self, name: str, producer_ids: Iterable[int]) -> bool:
        """Writes the markers of members whose end is durable; False if any is missing, which the sweep then writes."""
        ended = list(producer_ids)
        return await self._write_late(name, ended, control_records(name, NO_VERSION, aborted=ended), "aborted")

    async def _write_late(self, name: str, producer_ids: list[int], record_for: RecordFor, outcome: str) -> bool:
        try:
            await self.leaders.write_markers(self.leaders.partitions_of(producer_ids), record_for, {})
        except WireError as error:
            logger.warning(
                "transactional id %r: members are %s, but not all of their markers are written: %s", name, outcome, error.message
            )
            return False
        return True

    # Time

    async def sweep(self) -> None:
        """Ends expired executions, finishes prepared commits, writes missing markers of ended members, and forgets old ids and
        pages. An error in one part is logged and does not stop the others.
        """
        for part in (self._expire, self._finish_prepared, self._end_unmarked, self._forget, self._record_rest):
            await self._try(part())

    async def compact(self) -> None:
        """Replaces the log by its state, of groups too, if it has grown, while requests are served. Must not run twice at once.
        Logs errors."""
        if self.log.has_grown():
            try:
                with self.coordinator.writing_state(self._clock.wall_ms()) as state:
                    await self.log.compact(state.pieces(groups=self._groups.table.pieces()))
            except (WireError, OSError) as error:
                logger.warning("the coordinator's log cannot be compacted: %s", error)

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (WireError, OSError) as error:
            logger.warning("transactions: %s", error)

    async def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for key in self.coordinator.expired(now_ms):
            event, name = self.coordinator.expire(key, now_ms), key.transactional_id
            if event is not None:
                is_too_old = self.coordinator.is_too_old(key, now_ms)
                why = "after transaction.max.age.ms, although it is alive" if is_too_old else "without a heartbeat"
                logger.warning("transactional id %r: expired %s: %s", name, why, self._texts(event.producer_ids))
                self._record(name, self.coordinator.states[name].principal, event)
                self.outcomes.expired += 1
                await self.log.durable()
                await self._void(name, event.producer_ids)

    async def _finish_prepared(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for name, prepared in self.coordinator.prepared():
            if now_ms < self._retry_at_ms.get(name, 0):
                continue
            try:
                async with self._lock(name):
                    is_finished = await self._finish(name)
            except WireError as error:  # go on with the others
                self._failed(name)
                logger.warning("%s%s", error.message, _HELD_BACK if isinstance(error, StorageError) else "")
            else:
                if is_finished:  # not by a request meanwhile
                    logger.info("%s: finished its commit", _subject(name, prepared))

    async def _end_unmarked(self) -> None:
        ended = self.coordinator.presumed_aborted(self.leaders.producer_ids)
        is_refused = self._refused.issuperset(ended) and self._clock.monotonic_ms() < self._retry_at_ms.get(_UNMARKED, 0)
        if not ended or is_refused:
            return
        await self.log.durable()  # including the events that ended them
        are_written = True
        for (_, name, version), producer_ids in self._lost_markers.committed(ended).items():
            said = (name, version, producer_ids[:20])
            logger.warning("transactional id %r: writing lost markers of version %d again, of producers %s", *said)
            again = control_records(name, version, committed=producer_ids)
            are_written &= await self._write_late(name, producer_ids, again, "committed")
        void = self._lost_markers.void(ended)
        if void:
            logger.info("aborting the data of producers that are no longer members: %s", void[:20])
            are_written &= await self._void("", void)
        if are_written:
            self._retry_at_ms.pop(_UNMARKED, None)
        else:
            self._failed(_UNMARKED)
        self._refused = frozenset() if are_written else frozenset(ended)

    def _failed(self, name: str) -> None:
        pause_ms = MAX_MS if name in self._retry_at_ms else FIRST_MS
        self._retry_at_ms[name] = self._clock.monotonic_ms() + pause_ms

    async def _forget(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.pages.expire(now_ms)
        pauses = Pauses()  # JOB_KEPT_MS after a start, all ids loaded by it expire at once
        for name in self.coordinator.forgettable(now_ms):
            event = self.coordinator.forget(name, now_ms)
            if event is not None:
                self._record(name, self.coordinator.states[name].principal, event)
            await pauses.after(_RECORD_PIECES)

    # Recording

    async def _decided(self, decide: Callable[[], T]) -> T:
        """The result of `decide`, without an await. A refusal is raised once everything it depends on is durable."""
        if self._is_stopping:
            raise NotReadyError(STOPPING, fate=Fate.NOT_APPENDED)
        try:
            return decide()
        except WireError:
            await self.log.durable()
            raise

    def _record(self, name: str, principal: str, event: Event) -> None:
        """Appends an event and applies it; no effect if it raises."""
        record = self._record_of(name, principal, event)
        self.log.append([record])
        self.coordinator.apply(record, self._clock.monotonic_ms())

    def _record_of(self, name: str, principal: str, event: Event) -> CoordinatorRecord:
        return record_of(name, principal, self._clock.wall_ms(), event)

    async def _record_rest(self) -> None:
        self.log.append_rest()

    async def _run(self, decision: Coroutine[Any, Any, T]) -> T:
        """Runs the decision to completion, even if the caller is cancelled."""
        return await to_its_end(decision, self._tasks)

    def _texts(self, producer_ids: Iterable[int]) -> str:
        """The executions of open members, for log messages."""
        members = [known.member for pid in producer_ids if (known := self.coordinator.open_members.get(pid)) is not None]
        return f"{len(members)} members of " + ", ".join(dict.fromkeys(map(execution_text, members)))


def _subject(name: str, prepared: CommitPrepared) -> str:
    return f"transactional id {name!r}, {execution_text(prepared)}"
