"""One broker's transactions: what the pure coordinator decides is recorded, waited for, carried out and answered, in this order:

    a member durable -> its answer            its end durable -> the markers that void its data
    a commit durable -> its markers           all its markers durable -> last stable offsets move, in one step -> the answer

Offsets of a group that go with a commit stand in its record, and are brought in (server/groups) before it is finished.

A commit is recorded with the partitions that it holds back, and from which offsets: their last stable offsets do not pass them
before the commit is finished, in this life and the next ones.

From a decision until its event is recorded and applied there is no await, so no other decision comes between. Nothing is answered
before all is durable that the answer rests on, refusals included. A commit that cannot be finished (a disk does not take a marker)
stays prepared, and is driven on by the next request and by the sweep, less and less often. Data that nobody answers for is void: a
partition's open data of a member that is neither open nor in a prepared commit is aborted at the start, and by each sweep. Only
where a partition may have lost the marker to damage, that is not presumed (lost_markers.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_manager import LogManager
from brokerd.errors import CorruptMessageError, DataDirectoryError, Fate, NotReadyError, StorageError, WireError
from brokerd.groups.model import LogEntry as GroupEntry
from brokerd.ids import TopicIdPartition, member_producer_id
from brokerd.server.admin import STOPPING, Admin
from brokerd.server.groups.groups import AskedOffsets, Groups
from brokerd.server.replica_manager import ReplicaManager
from brokerd.server.tasks import forget_end
from brokerd.server.transactions.id_locks import IdLocks
from brokerd.server.transactions.local_leaders import LocalLeaders, Markers
from brokerd.server.transactions.lost_markers import LostMarkers
from brokerd.server.transactions.retries import Retries
from brokerd.server.transactions.transaction_log import TransactionLog
from brokerd.server.waiting.pauses import Pauses
from brokerd.sharing.shares import Shares
from brokerd.transaction.coordinator import Coordinator, Limits
from brokerd.transaction.markers import RecordFor, abort_records, again_records, commit_records
from brokerd.transaction.model import (
    AlreadyCommitted,
    CommitCompleted,
    CommitPrepared,
    EndRequest,
    Event,
    Execution,
    Held,
    InitMember,
    LogEntry,
    Member,
    MembersAborted,
    Opened,
    Prepare,
    PreparedCommit,
    Repeat,
)
from brokerd.transaction.pages import Pages

logger = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_AFTER_MS = 500
_NO_VERSION = -1
_RECORD_PIECES = 14  # an event's record takes about so many times as long as what Pauses counts
_UNMARKED = ""  # among retries, which are by transactional id: no id is empty
_HELD_BACK = (
    "; until then readers of committed records wait for it in all its partitions. If one of them will never take a marker again, "
    "let `brokerd doctor` accept its damage, or delete its topic"
)


class Outcomes:
    """Counts of decided transactions, since the start."""

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0  # requests and operators that ended members without a commit
        self.expired = 0  # executions


class Transactions:
    """See the module. Create it inside the running event loop, after `logs` is open."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: ReplicaManager,
        admin: Admin,
        producer_ids: Admin,
        groups: Groups,
        clock: Clock,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._producer_ids = producer_ids
        self.coordinator = Coordinator(
            Limits(
                Shares(config.max_transactional_ids),
                Shares(config.max_open_members),
                config.transaction_max_timeout_ms,
                config.transaction_max_age_ms,
            )
        )
        self.log = TransactionLog(logs, replicas, admin, clock)
        self._groups = groups
        groups.decisions_durable = self.log.durable
        self.leaders = LocalLeaders(logs, replicas, clock)
        self.pages = Pages()
        self.outcomes = Outcomes()
        self._locks = IdLocks()
        self._markers: dict[str, Markers] = {}  # of commits that are not finished, by transactional id
        self._retries = Retries()
        self._lost_markers = LostMarkers()
        self._refused: frozenset[int] = frozenset()  # members that have ended, and a partition takes no marker of
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    # Start and stop

    async def start(self) -> None:
        """Loads the log, finishes what was prepared and voids what nobody answers for: before anything is served, and after the
        groups have started. What cannot be finished is held back and goes on being tried. Raises DataDirectoryError if the log
        cannot be trusted as a whole.
        """
        try:
            await asyncio.to_thread(self.coordinator.load, self.log.entries(), self._clock.monotonic_ms())
        except CorruptMessageError as error:
            raise DataDirectoryError(f"the transaction log cannot be used: {error}; run `brokerd doctor` for advice") from error
        for name, prepared in self.coordinator.prepared():
            self.leaders.hold_back(name, prepared.held_back)  # markers of the life before count there already
        decided = [prepared.group_offsets for _, prepared in self.coordinator.prepared() if prepared.group_offsets is not None]
        for entry in sorted(decided, key=lambda entry: entry.decision):
            self._groups.decided.add(entry)
        ended = self.coordinator.presumed_aborted(self.leaders.producer_ids)
        self._lost_markers.find(ended, self._logs.partitions(), self.log.entries(), self._logs.decided_members)
        await self.sweep()

    def begin_stop(self) -> None:
        """Refuses new decisions; those under way go on."""
        self._is_stopping = True

    async def drain(self) -> None:
        """Returns once no decision is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def undecided_count(self) -> int:
        """Members that hold back readers, and of whom only an operator can tell how they ended."""
        return len(self._lost_markers.undecided(self.leaders.producer_ids))

    # Members

    async def init_member(self, asked: InitMember, own_id: Callable[[int], int]) -> Member:
        """The member, open and durable; `own_id` makes a fresh number the caller's producer id. Raises the errors of
        Coordinator.init, StorageError and other retriable ones.
        """
        await self.log.make()
        while not self._logs.has_producer_id:
            await self._producer_ids.run(self._logs.reserve_producer_ids())
        decided = await self._decided(
            lambda: self.coordinator.init(
                asked, self._clock.monotonic_ms(), own_id(member_producer_id(self._logs.free_producer_id))
            )
        )
        if isinstance(decided, Opened):
            self._record(asked.transactional_id, asked.principal, decided.event)
            self._logs.next_producer_id()
        await self.log.durable()
        return decided.member

    async def heartbeat(self, transactional_id: str, principal: str, execution: Execution, member_id: bytes) -> None:
        """A sign of life. Raises the errors of Coordinator.heartbeat."""
        now_ms = self._clock.monotonic_ms()
        await self._decided(lambda: self.coordinator.heartbeat(transactional_id, principal, execution, member_id, now_ms))

    def appended(self, producer_id: int, tp: TopicIdPartition, records: int) -> None:
        """A member has written so many records, or the same again (0), which is a sign of life too."""
        self.leaders.appended(producer_id, tp, records)
        self.coordinator.renew(producer_id, self._clock.monotonic_ms())

    # Decisions

    async def commit(self, asked: EndRequest, offsets: AskedOffsets | None = None) -> None:
        """Returns once the version is committed and all of it is visible, and the offsets with it. Raises the errors of
        Coordinator.commit and Groups.decide; a retriable one if that could not be finished or is not known: the same request may be
        sent again.
        """
        await self._run(self._commit(asked, offsets))

    async def abort(self, asked: EndRequest) -> None:
        """Returns once the listed members have ended. Raises the errors of Coordinator.abort, and retriable ones."""
        await self._run(self._abort(asked.transactional_id, lambda: self.coordinator.abort(asked)))

    async def abort_all(self, transactional_id: str, execution_id: str) -> int:
        """Ends all open members, or those of one execution; returns how many. Raises retriable errors."""
        return await self._run(self._abort(transactional_id, lambda: self.coordinator.abort_all(transactional_id, execution_id)))

    async def forget(self, transactional_id: str) -> int:
        """Forgets an id, durably on return; returns its last committed version, -1 if it had none. Raises InvalidTxnStateError
        while it is at work, and retriable errors."""
        return await self._run(self._forget_at_once(transactional_id))

    async def _commit(self, asked: EndRequest, offsets: AskedOffsets | None) -> None:
        name = asked.transactional_id
        await self.log.make()
        async with self._locks.of(name):
            while True:
                decided = await self._decided(lambda: self.coordinator.commit(asked, self._held(asked)))
                if isinstance(decided, Prepare) and offsets is not None:
                    await self._groups.ready(offsets)
                    # That may have taken a while: both decisions are made in one step.
                    decided = await self._decided(lambda: self.coordinator.commit(asked, self._held(asked)))
                if isinstance(decided, Prepare):
                    group_offsets = await self._decided_offsets(offsets) if offsets is not None else None
                    self._prepare(name, asked.principal, decided.event._replace(group_offsets=group_offsets))
                if isinstance(decided, Repeat):
                    self._record(name, asked.principal, decided.event)
                    continue
                if isinstance(decided, AlreadyCommitted):
                    await self.log.durable()
                    return
                await self._finish(name)
                if isinstance(decided, Prepare):  # that it is finished need not be durable: else a start finishes it again
                    return

    def _prepare(self, name: str, principal: str, event: CommitPrepared) -> None:
        held_back = self.leaders.held_back((*event.committed_ids, *event.aborted_ids))
        self._record(name, principal, event._replace(held_back=held_back))
        self.leaders.hold_back(name, held_back)
        if event.group_offsets is not None:
            self._groups.decided.add(event.group_offsets)
        self.outcomes.committed += 1

    async def _decided_offsets(self, offsets: AskedOffsets) -> GroupEntry:
        """The decision about them, at once. A refusal is raised when all is durable that it rests on."""
        try:
            return self._groups.decide(offsets)
        except WireError:
            await self.log.durable()
            await self._groups.log.durable()
            raise

    def _held(self, asked: EndRequest) -> Held:
        return self.leaders.held([member.producer_id for member in asked.members], asked.partitions)

    async def _finish(self, name: str) -> None:
        """Writes the markers of what is prepared, and lets them count. The id's lock is held."""
        state = self.coordinator.states.get(name)
        if state is None or state.prepared is None:
            return
        prepared = state.prepared
        await self.log.durable()
        markers = self._markers.setdefault(name, {})
        try:
            if prepared.group_offsets is not None:
                await self._groups.bring_in()
            await self.leaders.write_markers(
                self.leaders.partitions_of((*prepared.committed_ids, *prepared.aborted_ids)),
                commit_records(name, prepared),
                markers,
            )
            if prepared.group_offsets is not None:
                await self._groups.log.durable()
        except NotReadyError:
            raise
        except WireError as error:
            raise StorageError(
                f"{_subject(name, prepared)}: it is committed, but not visible yet: {error.message}; "
                "ask again, the broker goes on trying",
                retry_after_ms=_RETRY_AFTER_MS,
            ) from error
        self.leaders.release(name, prepared.held_back)
        del self._markers[name]
        self._retries.done(name)
        self._record_completed(name, state.principal, prepared)
        logger.debug(
            "%s: committed, %d members in %d partitions", _subject(name, prepared), len(prepared.committed_ids), len(markers)
        )

    def _record_completed(self, name: str, principal: str, prepared: PreparedCommit) -> None:
        event = CommitCompleted(prepared.execution.version)
        try:
            self._record(name, principal, event)
        except WireError as error:  # all is done; without the record, the next start only looks for markers that are missing
            logger.warning("%s: that it is finished could not be written: %s", _subject(name, prepared), error.message)
            self.coordinator.apply(self._entry(name, principal, event), self._clock.monotonic_ms())

    async def _abort(self, name: str, decide: Callable[[], tuple[MembersAborted, ...]]) -> int:
        events = await self._decided(decide)
        if not events:
            return 0
        principal = self.coordinator.states[name].principal
        ended = [producer_id for event in events for producer_id in event.producer_ids]
        for event in events:
            logger.info("transactional id %r: aborted %s", name, self._texts(event.producer_ids))
            self._record(name, principal, event)
        self.outcomes.aborted += 1
        await self.log.durable()
        await self._void(name, ended)
        return len(ended)

    async def _forget_at_once(self, name: str) -> int:
        last_version = _NO_VERSION
        async with self._locks.of(name):
            for event in await self._decided(lambda: self.coordinator.forget_at_once(name)):
                state = self.coordinator.states[name]
                last_version = state.last_version
                self._record(name, state.principal, event)
                logger.warning(
                    "transactional id %r of %s is forgotten, with its last version %d", name, state.principal, last_version
                )
        await self.log.durable()
        return last_version

    async def _void(self, name: str, producer_ids: Iterable[int]) -> bool:
        """Writes the markers of members whose end is durable; True if all are written. The sweep writes the others."""
        ended = list(producer_ids)
        return await self._write_late(name, ended, abort_records(name, ended), "aborted")

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
        """Ends executions that gave no sign of life or are too old, finishes what is prepared, voids what nobody answers for, and
        forgets what is old. One part's trouble is logged and does not stop the others.
        """
        for part in (self._expire, self._finish_prepared, self._end_unmarked, self._forget):
            await self._try(part())

    async def compact(self) -> None:
        """Writes all that is known in place of the log, if that has grown; also while requests are answered. One at a time. Trouble
        is logged."""
        if self.log.has_grown():
            with self.coordinator.snapshot(self._clock.wall_ms()) as state:
                await self._try(self.log.compact_to(state))

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (WireError, OSError) as error:
            logger.warning("transactions: %s", error)

    async def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for key in self.coordinator.expired(now_ms):
            ended: list[int] = []
            for event in self.coordinator.expire(key, now_ms):
                is_too_old = self.coordinator.is_too_old(key, now_ms)
                why = "after transaction.max.age.ms, though it lives" if is_too_old else "without a sign of life"
                logger.warning("transactional id %r: expired %s: %s", key.transactional_id, why, self._texts(event.producer_ids))
                self._record(key.transactional_id, self.coordinator.states[key.transactional_id].principal, event)
                ended.extend(event.producer_ids)
            if ended:
                self.outcomes.expired += 1
                await self.log.durable()
                await self._void(key.transactional_id, ended)

    async def _finish_prepared(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for name, prepared in self.coordinator.prepared():
            if not self._retries.is_due(name, now_ms):
                continue
            try:
                async with self._locks.of(name):
                    await self._finish(name)
            except WireError as error:  # the others are finished all the same
                self._retries.failed(name, self._clock.monotonic_ms())
                logger.warning("%s%s", error.message, _HELD_BACK if isinstance(error, StorageError) else "")
            else:
                logger.info("%s: finished its commit", _subject(name, prepared))

    async def _end_unmarked(self) -> None:
        ended = self.coordinator.presumed_aborted(self.leaders.producer_ids)
        is_refused = self._refused.issuperset(ended) and not self._retries.is_due(_UNMARKED, self._clock.monotonic_ms())
        if not ended or is_refused:
            return
        await self.log.durable()  # whatever ended them
        are_written = True
        for (_, name, version), producer_ids in self._lost_markers.committed(ended).items():
            said = (name, version, producer_ids[:20])
            logger.warning("transactional id %r: writing lost markers of version %d again, of producers %s", *said)
            records = again_records(name, version, producer_ids)
            are_written &= await self._write_late(name, producer_ids, records, "committed")
        void = self._lost_markers.void(ended)
        if void:
            logger.info("aborting the data of producers that are no members any more: %s", void[:20])
            are_written &= await self._void("", void)
        if are_written:
            self._retries.done(_UNMARKED)
        else:
            self._retries.failed(_UNMARKED, self._clock.monotonic_ms())
        self._refused = frozenset() if are_written else frozenset(ended)

    async def _forget(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.pages.expire(now_ms)
        pauses = Pauses()  # an hour after a start all ids are old at once that it found
        for name in self.coordinator.forgettable(now_ms):
            for event in self.coordinator.forget(name, now_ms):
                self._record(name, self.coordinator.states[name].principal, event)
            await pauses.after(_RECORD_PIECES)

    # Recording

    async def _decided(self, decide: Callable[[], T]) -> T:
        """The result of `decide`, at once. A refusal is raised when all is durable that it rests on."""
        if self._is_stopping:
            raise NotReadyError(STOPPING, fate=Fate.NOT_APPENDED)
        try:
            return decide()
        except WireError:
            await self.log.durable()
            raise

    def _record(self, name: str, principal: str, event: Event) -> None:
        """Appends an event, and applies it; nothing has happened if it raises."""
        entry = self._entry(name, principal, event)
        self.log.append_entry(entry)
        self.coordinator.apply(entry, self._clock.monotonic_ms())

    def _entry(self, name: str, principal: str, event: Event) -> LogEntry:
        return LogEntry(name, principal, self._clock.wall_ms(), event)

    async def _run(self, decision: Coroutine[Any, Any, T]) -> T:
        """Carries it out to its end, also if the caller stops waiting."""
        task = asyncio.create_task(decision)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        forget_end(task)
        return await asyncio.shield(task)

    def _texts(self, producer_ids: Iterable[int]) -> str:
        """Executions of open members, for the log."""
        members = [known.member for pid in producer_ids if (known := self.coordinator.open_members.get(pid)) is not None]
        executions = dict.fromkeys(member.execution for member in members)
        return f"{len(members)} members of " + ", ".join(
            f"version {one.version} in execution {one.execution_id!r}" for one in executions
        )


def _subject(name: str, prepared: PreparedCommit) -> str:
    return f"transactional id {name!r}, version {prepared.execution.version} in execution {prepared.execution.execution_id!r}"
