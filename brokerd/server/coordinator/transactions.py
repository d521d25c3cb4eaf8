"""The transactions of one coordinator: records its decisions, makes them durable, carries them out and responds, in this order:

    member durable -> its response            end of members durable -> the markers that void their data
    members frozen at all leaders -> the decision on a commit -> commit durable -> its markers
    all its markers durable -> last stable offsets advance, in one step at each leader -> its response

The package's docstring has the steps. Group offsets of a commit (groups.py) are in the batch of its record: a crash keeps both or
neither.

There is no await between a decision and `apply`, so decisions do not interleave. A response, even a refusal, is sent only when
everything it depends on is durable. A commit that cannot be finished (a disk refuses a marker, a leader does not answer) stays
prepared. The next request retries it, and so does the sweep, with a growing delay. Open data of a member that is neither open nor
in a prepared commit is void. The start and each sweep abort it, unless its partition may have lost the marker to damage
(leaders.py).

A coordinator belongs to one leader epoch of its log. Once that ends, nothing more can be recorded, and decisions under way fail
with NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.coordinator.loading import load
from brokerd.coordinator.pages import Pages
from brokerd.coordinator.records import Event, is_of_group, record_of
from brokerd.coordinator.transaction_coordinator import TransactionCoordinator, TransactionLimits
from brokerd.coordinator.transactional_id import NO_VERSION, CommitDecision, Held, Progress, execution_text
from brokerd.datadir.node_state import DecidedMembers
from brokerd.errors import (
    CoordinatorNotAvailableError,
    CorruptMessageError,
    DataDirectoryError,
    Fate,
    NotCoordinatorError,
    NotReadyError,
    StorageError,
    WireError,
)
from brokerd.ids import TopicIdPartition, member_producer_id
from brokerd.internode.v1 import internode_pb2
from brokerd.internode.v1.internode_pb2 import (
    PreparedHold,
    PreparedHoldsRequest,
    PreparedHoldsResponse,
    VerifiedMember,
    VerifyMembersRequest,
    VerifyMembersResponse,
)
from brokerd.server.admin import STOPPING
from brokerd.server.coordinator.groups import AskedOffsets, Groups
from brokerd.server.coordinator.leaders import Frozen, Leaders, LostMarkers
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.members import PARTITIONS_MAX, OpenMember
from brokerd.server.coordinator.producer_ids import ProducerIds
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
# Delays of the sweep's first and later retries: fewer attempts and log lines while a disk fails. Requests retry at once.
FIRST_MS = 10_000
MAX_MS = 60_000


class Outcomes:
    """Counts of decided transactions since the start."""

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0  # by requests and operators
        self.expired = 0  # executions


class Transactions:
    """See the module docstring. Create it inside the running event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        log: CoordinatorLog,
        leaders: Leaders,
        groups: Groups,
        producer_ids: ProducerIds,
        clock: Clock,
        *,
        decided_members: DecidedMembers,
        outcomes: Outcomes | None = None,
    ) -> None:
        """`outcomes`: counts to continue."""
        self.log = log
        self.producer_ids = producer_ids
        self.leaders = leaders
        self.groups = groups
        self._clock = clock
        self._limits = TransactionLimits(
            Shares(config.max_transactional_ids),
            Shares(config.max_open_members),
            config.transaction_max_timeout_ms,
            config.transaction_max_age_ms,
        )
        self.coordinator = self._new_coordinator()
        self.pages = Pages()
        self.outcomes = outcomes or Outcomes()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by transactional id
        self._deciding: set[int] = set()  # members whose data is being counted, until the decision: see _decide
        self._releasing: set[str] = set()  # transactional ids of commits whose markers are all durable
        self._retry_at_ms: dict[str, int] = {}  # when the sweep may retry, by transactional id
        self._lost_markers = LostMarkers(decided_members)
        self._refused: frozenset[int] = frozenset()  # ended members whose markers could not all be written
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    def _new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self._limits)

    # Start and stop

    async def load(self) -> None:
        """Loads the log, including groups and producer ids. Raises DataDirectoryError if any part of it is unusable: running
        without it would lose commits or apply them twice."""
        now_ms = self._clock.monotonic_ms()
        try:
            self.coordinator = await asyncio.to_thread(
                lambda: load(self._records(), self.log.start_offset, self._new_coordinator, now_ms)
            )
        except (DataDirectoryError, CorruptMessageError) as error:
            raise DataDirectoryError(
                f"the coordinator's log cannot be used: {error.message.rstrip('.')}. Without it commits could be lost or done "
                "twice, and readers would start elsewhere, so the broker does not start; run `brokerd doctor` for advice"
            ) from error
        self.producer_ids.loaded()
        with contextlib.suppress(NotReadyError):  # the first request for an id retries
            await self.producer_ids.fill()
        self.groups.loaded()  # last: topics deleted before this coordinator is hosted are not reported to it

    def _records(self) -> Iterator[CoordinatorRecord | None]:
        """All records; applies those of groups and producer ids."""
        for record in self.log.read():
            self.producer_ids.load(record)
            if record is not None and is_of_group(record):
                self.groups.table.apply(record)
            yield record

    @property
    def epoch(self) -> int:
        """The coordinator's epoch: the leader epoch of its log; 0 while there is no log."""
        return self.log.leader_epoch

    def begin_stop(self) -> None:
        """Refuses new decisions; pending ones continue."""
        self._is_stopping = True

    @property
    def is_at_work(self) -> bool:
        """True if decisions are pending."""
        return bool(self._tasks)

    async def decided(self) -> None:
        """Waits for all pending decisions."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self) -> None:
        """Waits for all pending decisions, and records their ends."""
        await self.decided()
        await self._try(self._record_rest())

    def retry_soon(self) -> None:
        """Lets the next sweep retry failed work: a leader may be back."""
        self._retry_at_ms.clear()

    @property
    def undecided_count(self) -> int:
        """The number of members that hold back readers until an operator decides their outcome."""
        return len(self._lost_markers.undecided(self.leaders.producer_ids))

    # Members

    async def init_member(self, principal: str, asked: InitProducerIdRequest, own_id: Callable[[int], int]) -> MemberOpened:
        """The member, open and durable. `own_id` turns a fresh number into a producer id of the caller. Raises the errors of
        TransactionCoordinator.init, StorageError and other retriable errors."""
        ids = self.producer_ids
        while not ids.has_next:
            await ids.reserve()
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

    def open_member(self, producer_id: int) -> OpenMember | None:
        """The open member; None if there is none. Raises CoordinatorNotAvailableError while it is being decided."""
        known = self.coordinator.open_members.get(producer_id)
        if known is None:
            return None
        if producer_id in self._deciding:
            raise CoordinatorNotAvailableError(
                f"producer {producer_id} is a member of a transaction that is being decided: retry",
                fate=Fate.NOT_APPENDED,
                retry_after_ms=_RETRY_AFTER_MS,
            )
        return OpenMember(known.state.transactional_id, known.member.member_id)

    def renew(self, producer_id: int) -> None:
        """Renews a member; no effect for any other producer id."""
        self.coordinator.renew(producer_id, self._clock.monotonic_ms())

    # What leaders ask

    async def verify_members(self, asked: VerifyMembersRequest) -> VerifyMembersResponse:
        """Which members are open, once that is durable. Raises retriable errors. That a member has ended is a refusal, which needs
        the coordinator confirmed. That it is open does not: if another coordinator has ended it without counting a batch accepted
        now, the batch is void."""
        response = VerifyMembersResponse(coordinator_epoch=self.epoch, members=map(self._verified, asked.producer_ids))
        if any(one.state == internode_pb2.MEMBER_STATE_ENDED for one in response.members):
            await self.log.confirmed()
        else:
            await self.log.durable()
        return response

    def _verified(self, producer_id: int) -> VerifiedMember:
        try:
            member = self.open_member(producer_id)
        except CoordinatorNotAvailableError:
            return VerifiedMember(producer_id=producer_id)
        if member is None:
            return VerifiedMember(producer_id=producer_id, state=internode_pb2.MEMBER_STATE_ENDED)
        return VerifiedMember(producer_id=producer_id, state=internode_pb2.MEMBER_STATE_OPEN, **member._asdict())

    async def prepared_holds(self, asked: PreparedHoldsRequest) -> PreparedHoldsResponse:
        """The holds of prepared commits in these partitions, without commits being released. Raises retriable errors."""
        async with self.log.settled():
            return self._holds_in(asked)

    def _holds_in(self, asked: PreparedHoldsRequest) -> PreparedHoldsResponse:
        wanted = {(one.topic_id, one.partition) for one in asked.partitions}
        response = PreparedHoldsResponse(coordinator_epoch=self.epoch)
        count = 0
        for name, commit in sorted(self.coordinator.prepared(), key=itemgetter(0)):
            if name <= asked.after_transactional_id or name in self._releasing:
                continue
            held_back = [one for one in commit.held_back if (one.topic_id, one.partition) in wanted]
            if held_back and count >= PARTITIONS_MAX:
                response.more = True
                break
            if held_back:
                response.commits.append(PreparedHold(transactional_id=name, txn_version=commit.txn_version, held_back=held_back))
                count += len(held_back)
        return response

    # Decisions

    async def commit(self, principal: str, asked: EndTransactionRequest, offsets: AskedOffsets | None = None) -> None:
        """Commits a version, and `offsets` with it; returns once all of it is visible. Raises the errors of
        TransactionCoordinator.commit and Groups.decide; a retriable error if the commit is unfinished or its outcome unknown: the
        request may be repeated."""
        await self._check_owner(principal, asked.transactional_id)
        await self._run(self._commit(principal, asked, offsets))

    async def abort(self, principal: str, asked: EndTransactionRequest) -> None:
        """Ends the listed members, durably on return. Raises the errors of TransactionCoordinator.abort, and retriable errors."""
        await self._check_owner(principal, asked.transactional_id)
        await self._run(self._abort(asked.transactional_id, lambda: self.coordinator.abort(principal, asked)))

    async def abort_all(self, transactional_id: str, execution_id: str) -> int:
        """Ends all open members, or those of one execution; returns their number. Raises retriable errors."""
        return await self._run(self._abort(transactional_id, lambda: self.coordinator.abort_all(transactional_id, execution_id)))

    async def forget(self, transactional_id: str) -> int:
        """Forgets an id, durably on return; returns its last committed version, -1 if it had none. Raises InvalidTxnStateError
        while it is in use, and retriable errors."""
        return await self._run(self._forget_at_once(transactional_id))

    async def _check_owner(self, principal: str, transactional_id: str) -> None:
        """Called before the id's lock is taken, so that another principal's calls do not delay the owner's."""
        await self._decided(lambda: self.coordinator.check_owner(transactional_id, principal))

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
            while self.coordinator.may_use(name, principal):  # another principal may have used it first during the wait
                decided = await self._decide(principal, asked, offsets)
                if decided is Progress.COMPLETE:
                    await self.log.durable()
                    return
                if not isinstance(decided, CommitPrepared) and decided is not Progress.UNFINISHED:
                    self._record(name, principal, decided)
                    continue
                await self._finish(name)
                if isinstance(decided, CommitPrepared):  # CommitCompleted need not be durable: a restart finishes it again
                    return
        await self._check_owner(principal, name)

    async def _decide(self, principal: str, asked: EndTransactionRequest, offsets: AskedOffsets | None) -> CommitDecision:
        """Decides a commit, and prepares it if it can be committed. Its members are marked as being decided from before the freeze
        until after the decision, so that no leader verifies them as open."""
        name = asked.transactional_id
        while True:
            ids = await self._decided(lambda: self.coordinator.to_freeze(principal, asked))
            if ids is None:
                return await self._decided(lambda: self.coordinator.commit(principal, asked, Held({})))
            deciding = set(ids) - self._deciding
            self._deciding |= deciding
            try:
                frozen = await self._frozen(asked, ids)
                now = self.coordinator.to_freeze(principal, asked)
                if now is not None and not set(now) <= set(ids):
                    continue  # a member was opened meanwhile
                decided = await self._decided(partial(self.coordinator.commit, principal, asked, frozen.held))
                if isinstance(decided, CommitPrepared):
                    committed = await self._decided(partial(self.groups.decide, offsets)) if offsets is not None else None
                    decided.held_back.extend(frozen.held_back)
                    self._record(name, principal, decided, committed)
                    self.outcomes.committed += 1
                return decided
            finally:
                self._deciding -= deciding

    async def _frozen(self, asked: EndTransactionRequest, producer_ids: Collection[int]) -> Frozen:
        named = [TopicIdPartition(one.topic_id, one.partition) for one in asked.partitions]
        try:
            return await self.leaders.freeze(producer_ids, named)
        except WireError:
            await self.log.confirmed()
            raise

    async def _finish(self, name: str) -> bool:
        """Writes the markers of the prepared commit and makes them take effect; False if none is prepared. The caller holds the
        id's lock."""
        state = self.coordinator.states.get(name)
        if state is None or state.prepared is None:
            return False
        prepared = state.prepared
        await self.log.durable()
        try:
            await self.leaders.write_markers(name, prepared)
            self._releasing.add(name)
            await self.leaders.release(name, prepared)
        except NotCoordinatorError:
            raise
        except WireError as error:
            text = f"{_subject(name, prepared)}: it is committed, but not visible yet: {error.message}"
            if isinstance(error, NotReadyError):
                raise NotReadyError(text, retry_after_ms=error.retry_after_ms) from error
            raise StorageError(f"{text}; retry later; the broker keeps trying", retry_after_ms=_RETRY_AFTER_MS) from error
        self._releasing.discard(name)
        self._retry_at_ms.pop(name, None)
        self._record_completed(name, state.principal, prepared)
        count = len(prepared.committed_producer_ids)
        logger.debug("%s: committed, %d members in %d partitions", _subject(name, prepared), count, len(prepared.held_back))
        return True

    def _record_completed(self, name: str, principal: str, prepared: CommitPrepared) -> None:
        """Records the end of a commit with the next event. If a crash loses it, the next start only looks for missing markers."""
        record = self._record_of(name, principal, CommitCompleted(txn_version=prepared.txn_version))
        self.log.append_late(record)
        self.coordinator.apply(record, self._clock.monotonic_ms())

    async def _abort(self, name: str, decide: Callable[[], MembersAborted | None]) -> int:
        event = await self._decided(decide)
        if event is None:
            await self.log.confirmed()  # an earlier abort may have ended the members, or they are open at another coordinator
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
        await self.log.confirmed()
        return last_version

    async def _void(self, name: str, producer_ids: Iterable[int]) -> bool:
        """Writes the markers of members whose end is durable; False if any is missing, which the sweep then writes."""
        return await self._write_late(name, self.leaders.abort(name, list(producer_ids)), "aborted")

    async def _write_late(self, name: str, writing: Awaitable[None], outcome: str) -> bool:
        try:
            await writing
        except WireError as error:
            logger.warning(
                "transactional id %r: members are %s, but not all of their markers are written: %s", name, outcome, error.message
            )
            return False
        return True

    # Time

    async def sweep(self) -> None:
        """Ends expired executions, finishes prepared commits, writes missing markers of ended members, and forgets old ids and
        pages. Logs the error of one part and continues with the others."""
        for part in (self._expire, self._finish_prepared, self._end_unmarked, self._forget, self._record_rest):
            await self._try(part())

    async def compact(self) -> None:
        """Replaces the log by its state, including groups and producer ids, if it has grown. Requests are served meanwhile. Must
        not run twice at once. Logs errors."""
        if self.log.has_grown():
            try:
                with self.coordinator.writing_state(self._clock.wall_ms()) as state:
                    others = itertools.chain(self.producer_ids.pieces(), self.groups.table.pieces())
                    await self.log.compact(state.pieces(others=others))
            except (WireError, OSError) as error:
                logger.warning("the coordinator's log cannot be compacted: %s", error)

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (WireError, DataDirectoryError, OSError) as error:
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
            except WireError as error:  # continue with the others
                self._failed(name)
                logger.warning("%s%s", error.message, _HELD_BACK if isinstance(error, StorageError) else "")
            else:
                if is_finished:  # otherwise a request has finished it meanwhile
                    logger.info("%s: finished its commit", _subject(name, prepared))

    async def _end_unmarked(self) -> None:
        found = await self.leaders.open_members()
        ended = self.coordinator.presumed_aborted(found.producer_ids)
        is_refused = self._refused.issuperset(ended) and self._clock.monotonic_ms() < self._retry_at_ms.get(_UNMARKED, 0)
        if not ended or is_refused:
            return
        if found.others:
            # A replaced coordinator cannot append this entry: members that it takes for ended may be open at its successor.
            self.log.append([record_of("", "", self._clock.wall_ms(), MembersAborted())])
        data = await self.leaders.open_data(ended)
        await self.log.durable()  # includes the events that ended them
        await self._lost_markers.find(ended, data, self.log.read, self.groups.name_of)
        are_written = True
        for ending, producer_ids in self._lost_markers.committed(ended).items():
            name, version = ending.transactional_id, ending.version
            said = (name, version, producer_ids[:20])
            logger.warning("transactional id %r: writing lost markers of version %d again, of producers %s", *said)
            ids = frozenset(producer_ids)
            theirs = [one for one in data if one.producer_id in ids]
            are_written &= await self._write_late(name, self.leaders.rewrite_lost(ending, theirs, others=found.others), "committed")
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
        pauses = Pauses()  # JOB_KEPT_MS after a start, all loaded ids expire at once
        for name in self.coordinator.forgettable(now_ms):
            event = self.coordinator.forget(name, now_ms)
            if event is not None:
                self._record(name, self.coordinator.states[name].principal, event)
            await pauses.after(_RECORD_PIECES)

    # Recording

    async def _decided(self, decide: Callable[[], T]) -> T:
        """The result of `decide`, without an await before it. A refusal is raised once everything it depends on is durable."""
        if self._is_stopping:
            raise NotReadyError(STOPPING, fate=Fate.NOT_APPENDED)
        self.log.check_not_cut_off()  # a member renewed only here would expire at another coordinator
        try:
            return decide()
        except WireError:
            await self.log.confirmed()
            raise

    def _record(self, name: str, principal: str, event: Event, offsets: CoordinatorRecord | None = None) -> None:
        """Appends an event, with a group's offsets if given, and applies both; no effect if it raises."""
        record = self._record_of(name, principal, event)
        self.log.append([record] if offsets is None else [record, offsets])
        self.coordinator.apply(record, self._clock.monotonic_ms())
        if offsets is not None:
            self.groups.table.apply(offsets)

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
