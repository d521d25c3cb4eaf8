"""All transactional ids: their owners, their limits, and the decision on each request.

A decision (`init`, `commit`, `abort`, `abort_all`, `expire`, `forget`) changes no state except the time of the last renewal. The
caller appends the event's record to the log, calls `apply` at once, and responds when the record and everything the decision
depends on are durable. Decisions on one transactional id, up to `apply`, must be serialised. The state is the fold of the log: only
`apply` and `forget_all` change it. Times are monotonic milliseconds unless named wall clock.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from brokerd.coordinator.records import event_of, record_of
from brokerd.coordinator.transactional_id import CommitDecision, Held, TransactionalIdState, aborted
from brokerd.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    PolicyViolationError,
    TransactionalIdAuthorizationFailedError,
)
from brokerd.sharing import Shares
from brokerd.wire.v1.coordinator_log_pb2 import (
    CommitPrepared,
    CoordinatorRecord,
    MemberOpened,
    MembersAborted,
    StateBegins,
    StateEnds,
    TransactionalIdForgotten,
)
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, HeartbeatRequest, InitProducerIdRequest

# Retention of an id that serves a single write (one_write: the sink's batch writes) after its commit; clients retry a commit for
# half an hour at most. Measured on the monotonic clock, from the broker's start at the earliest, because only that clock never runs
# ahead of the driver's: a wall clock may jump, and a clock that counts suspended time would expire the id of a driver suspended
# together with the broker. So an id may be kept longer, never shorter. A driver that is suspended alone detects this itself
# (client/transaction_calls.py).
JOB_KEPT_MS = 3_600_000
# Ended members remembered over all ids, the newest ones, so that none of them is opened again. A late retry for a forgotten member
# opens a new member with its own producer id: nothing is written twice, and the new member expires.
ENDED_MEMBERS_MAX = 50_000
# Entries remembered of the last commits of all transactional ids after their markers are durable: members' producer ids and the
# partitions with their data. The oldest commits' entries are forgotten first; the newest commit's are always kept.
COMMITTED_IDS_MAX = 100_000
PIECE_ENTRIES_MAX = 100  # per piece of a snapshot; encoding them blocks the event loop for 2 ms
PIECE_BYTES_MAX = 262_144  # exceeded by at most one record


class TransactionLimits(NamedTuple):
    """Limits of a coordinator."""

    transactional_ids: Shares
    open_members: Shares
    timeout_max_ms: int
    age_max_ms: int


class ExecutionKey(NamedTuple):
    """Identifies one execution of one version."""

    transactional_id: str
    version: int
    execution_id: str


class LiveMember(NamedTuple):
    """An open member and the time it was opened."""

    state: TransactionalIdState
    member: MemberOpened
    opened_ms: int
    execution: ExecutionKey


class _Life:
    """An execution with open members. Renewing one member renews all."""

    __slots__ = ("last_ms", "members", "opened_ms", "timeout_ms")

    def __init__(self, now_ms: int) -> None:
        self.opened_ms = self.last_ms = now_ms  # last_ms: the last renewal
        self.members = 0
        self.timeout_ms = 0  # the longest requested by a member


class StateWriter:
    """Writes one snapshot of all transactional ids, which replaces the log before it. Until the last piece is taken, call `keep`
    for each id before it changes. Records of groups (group_table.py) and of producer ids need no snapshot, since each replaces its
    predecessors; all current ones are written before the snapshot's end, so that the snapshot is complete for them too.

    A snapshot is the state at the point of the log where it begins. It is written in pieces of bounded size, one batch each, and
    the coordinator serves requests in between. Events applied meanwhile are interleaved with the pieces, whose records are flagged
    `in_state`, and take effect after the whole snapshot. An id is therefore copied before the first event that changes it
    (copy-on-write); all others are read when their piece is due, and nothing is copied up front.

    A snapshot without its end (a crash, a failed write) is ignored and all events count (loading.py), so an interrupted snapshot
    needs no clean-up. The log before a snapshot may be deleted once the whole snapshot is durable.
    """

    def __init__(self, states: Mapping[str, TransactionalIdState], now_wall_ms: int) -> None:
        self._now_wall_ms = now_wall_ms
        self._count = len(states)
        self._left = dict(states)  # ids not written yet
        self._names = iter(list(states))  # in the order of their last commits
        self._ready: deque[CoordinatorRecord] = deque()

    def keep(self, transactional_id: str) -> None:
        """Encodes the id before it changes, unless it is encoded already."""
        state = self._left.pop(transactional_id, None)
        if state is not None:
            for timestamp, event in state.events():
                at = timestamp or self._now_wall_ms
                self._ready.append(record_of(transactional_id, state.principal, at, event, in_state=True))

    def pieces(
        self, entries_max: int = PIECE_ENTRIES_MAX, *, others: Iterable[Sequence[CoordinatorRecord]] = ()
    ) -> Iterator[Sequence[CoordinatorRecord]]:
        """The pieces, in order; `others`, of groups and producer ids, precede the end. The first piece must be appended before any
        further event."""
        piece = [record_of("", "", self._now_wall_ms, StateBegins()), *self._take(entries_max)]
        while self._has_more:
            yield piece
            piece = self._take(entries_max)
        yield piece
        yield from others
        yield [record_of("", "", self._now_wall_ms, StateEnds(transactional_ids=self._count))]

    @property
    def _has_more(self) -> bool:
        return bool(self._left or self._ready)

    def _take(self, entries_max: int) -> list[CoordinatorRecord]:
        taken: list[CoordinatorRecord] = []
        size_bytes = 0
        while self._has_more and len(taken) < entries_max and size_bytes < PIECE_BYTES_MAX:
            while not self._ready:
                self.keep(next(self._names))
            taken.append(self._ready.popleft())
            size_bytes += taken[-1].ByteSize()
        return taken


class TransactionCoordinator:
    """The state of all transactional ids, and the decisions on requests."""

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._states: dict[str, TransactionalIdState] = {}  # in the order of their last commits
        self._owned: dict[str, dict[str, TransactionalIdState]] = {}  # the same states, by principal
        self._prepared: dict[str, TransactionalIdState] = {}  # those with an unfinished commit, in commit order
        self._open: dict[int, LiveMember] = {}  # by producer id
        self._lives: dict[ExecutionKey, _Life] = {}
        self._jobs: dict[str, int] = {}  # ids of a single write: time of their commit, in commit order
        self._ended: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # see ENDED_MEMBERS_MAX; oldest first
        self._committed_ids: dict[str, int] = {}  # entries of each id's last commit (COMMITTED_IDS_MAX), in commit order
        self._committed_id_count = 0
        self._writer: StateWriter | None = None  # of the snapshot being written

    # Reading

    @property
    def states(self) -> Mapping[str, TransactionalIdState]:
        """All transactional ids."""
        return self._states

    def states_of(self, principal: str) -> Mapping[str, TransactionalIdState]:
        """The transactional ids of one principal."""
        return self._owned.get(principal, {})

    @property
    def open_members(self) -> Mapping[int, LiveMember]:
        """All open members, by producer id: the members that may append data."""
        return self._open

    def prepared(self) -> list[tuple[str, CommitPrepared]]:
        """The unfinished commits with their transactional ids. The server finishes them before serving, and periodically."""
        return [(name, state.prepared) for name, state in self._prepared.items() if state.prepared is not None]

    def presumed_aborted(self, producer_ids: Iterable[int]) -> list[int]:
        """Of these members with open data, those that are neither open nor in a prepared commit.

        Their data is void once everything applied so far is durable, unless a partition may have lost their marker (markers.py).
        """
        prepared = {pid for _, one in self.prepared() for pid in (*one.committed_producer_ids, *one.aborted_producer_ids)}
        return [pid for pid in producer_ids if pid not in self._open and pid not in prepared]

    # Decisions

    def init(self, principal: str, asked: InitProducerIdRequest, now_ms: int, next_producer_id: int) -> MemberOpened:
        """Returns the member if it is already open (and renews it), else the event that opens it with `next_producer_id`.

        Raises ProducerFencedError, AlreadyCommittedError, TxnConflictError, InvalidTxnStateError by the table
        (transactional_id.py); TransactionalIdAuthorizationFailedError; InvalidRequestError for a time-out or version out of range;
        PolicyViolationError.
        """
        timeout_max_ms = self._limits.timeout_max_ms
        if not 0 < asked.timeout_ms <= timeout_max_ms:
            raise InvalidRequestError(
                f"timeout_ms is {asked.timeout_ms}, outside 1 to {timeout_max_ms} (transaction.max.timeout.ms): "
                "set transaction.timeout.ms accordingly"
            )
        state = self._state_for(principal, asked)
        member = state.decide_init(asked, next_producer_id)
        if member.producer_id in self._open:
            self.renew(member.producer_id, now_ms)
            return member
        self._check_room(state)
        if not self._limits.open_members.has_room(principal, 1):
            raise PolicyViolationError(
                f"transactional id {asked.transactional_id!r}: max.open.members leaves no room for another open member: let open "
                "transactions end, or raise the limit"
            )
        return member

    def to_freeze(self, principal: str, asked: EndTransactionRequest) -> list[int] | None:
        """Producer ids to freeze before this commit is decided: the members it lists, and the open members it would end. Nothing
        may be appended for them meanwhile. None if the decision does not depend on their data. Raises InvalidRequestError,
        TransactionalIdAuthorizationFailedError."""
        return self._state_for(principal, asked).to_freeze(asked)

    def commit(self, principal: str, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        """Decides a commit. `held`: the listed members' open data at this moment.

        Raises ProducerFencedError, TxnConflictError, ReplayMismatchError, TxnAbortedError, NotReadyError by the table;
        TransactionalIdAuthorizationFailedError; InvalidRequestError; PolicyViolationError.
        """
        state = self._state_for(principal, asked)
        decided = state.decide_commit(asked, held)
        self._check_room(state)
        return decided

    def abort(self, principal: str, asked: EndTransactionRequest) -> MembersAborted | None:
        """The event that ends the listed members that are open; None if none is. Raises AlreadyCommittedError,
        InvalidRequestError, TransactionalIdAuthorizationFailedError."""
        return self._state_for(principal, asked).decide_abort(asked)

    def abort_all(self, transactional_id: str, execution_id: str = "") -> MembersAborted | None:
        """The event for an operator's abort of all open members, or of one execution's; None if none is open."""
        state = self._states.get(transactional_id)
        members = state.members.values() if state is not None else ()
        return aborted([member.producer_id for member in members if execution_id in ("", member.execution_id)])

    def heartbeat(self, principal: str, asked: HeartbeatRequest, now_ms: int) -> None:
        """Renews a member. Raises InvalidTxnStateError if it is not open; TransactionalIdAuthorizationFailedError."""
        member = self._state(asked.transactional_id, principal).open_member(asked, asked.member_id)
        self.renew(member.producer_id, now_ms)

    def renew(self, producer_id: int, now_ms: int) -> None:
        """Renews the execution of an open member; no effect for any other producer id."""
        known = self._open.get(producer_id)
        if known is not None:
            self._lives[known.execution].last_ms = now_ms

    # An execution expires after its time-out without a renewal (heartbeat, append, repeated init), or at its maximum age.

    def expires_at(self, key: ExecutionKey) -> int:
        """When an execution with open members expires if it is not renewed."""
        life = self._lives[key]
        return min(life.last_ms + life.timeout_ms, life.opened_ms + self._limits.age_max_ms)

    def is_too_old(self, key: ExecutionKey, now_ms: int) -> bool:
        """True if an expired execution has reached its maximum age."""
        return now_ms - self._lives[key].opened_ms >= self._limits.age_max_ms

    def expired(self, now_ms: int) -> list[ExecutionKey]:
        """Executions that have expired. Call `expire` for each."""
        return [key for key in self._lives if now_ms >= self.expires_at(key)]

    def expire(self, key: ExecutionKey, now_ms: int) -> MembersAborted | None:
        """The event that ends an expired execution; None if it has been renewed or decided since."""
        if key not in self._lives or now_ms < self.expires_at(key):
            return None
        members = self._states[key.transactional_id].members.values()
        return aborted([one.producer_id for one in members if (one.txn_version, one.execution_id) == key[1:]])

    def forget_at_once(self, transactional_id: str) -> TransactionalIdForgotten | None:
        """The event by which an operator forgets the id; None if it is unknown. Raises InvalidTxnStateError while it is in use."""
        state = self._states.get(transactional_id)
        if state is None:
            return None
        if state.is_at_work:
            count = len(state.members)
            work = f"members are open ({count}): abort them first" if count else "a commit is not finished: wait for it"
            raise InvalidTxnStateError(f"transactional id {transactional_id!r} cannot be forgotten while {work}")
        return TransactionalIdForgotten()

    def forgettable(self, now_ms: int) -> Iterator[str]:
        """Ids of a single write committed at least JOB_KEPT_MS ago. Call `forget` for each; lazy, so events may be applied in
        between.
        """
        return itertools.takewhile(lambda name: self._is_old_job(name, now_ms), list(self._jobs))

    def forget(self, transactional_id: str, now_ms: int) -> TransactionalIdForgotten | None:
        """The event that forgets the id; None if it is too recent or in use."""
        if not self._is_old_job(transactional_id, now_ms) or self._states[transactional_id].is_at_work:
            return None
        return TransactionalIdForgotten()

    def _is_old_job(self, transactional_id: str, now_ms: int) -> bool:
        committed_ms = self._jobs.get(transactional_id)
        return committed_ms is not None and now_ms - committed_ms >= JOB_KEPT_MS

    def _state_for(self, principal: str, asked: InitProducerIdRequest | EndTransactionRequest) -> TransactionalIdState:
        if asked.txn_version < 0:
            raise InvalidRequestError(
                f"transactional id {asked.transactional_id!r}: txn_version is {asked.txn_version}, but versions count from 0"
            )
        return self._state(asked.transactional_id, principal)

    def check_owner(self, transactional_id: str, principal: str) -> None:
        """Raises TransactionalIdAuthorizationFailedError."""
        self._state(transactional_id, principal)

    def may_use(self, transactional_id: str, principal: str) -> bool:
        """True if the id is unknown or belongs to this principal."""
        state = self._states.get(transactional_id)
        return state is None or state.principal == principal

    def _state(self, transactional_id: str, principal: str) -> TransactionalIdState:
        """The id's state; a new one if it is unknown. Raises TransactionalIdAuthorizationFailedError."""
        state = self._states.get(transactional_id)
        if state is None:
            return TransactionalIdState(transactional_id, principal, self._ended)
        if state.principal != principal:
            raise TransactionalIdAuthorizationFailedError(
                f"transactional id {transactional_id!r} belongs to another principal: use an id of your own, or have an operator "
                "hand it over (brokerd transactions forget)"
            )
        return state

    def _check_room(self, state: TransactionalIdState) -> None:
        if state.transactional_id in self._states or self._limits.transactional_ids.has_room(state.principal, 1):
            return
        raise PolicyViolationError(
            f"transactional id {state.transactional_id!r} would be one more than max.transactional.ids leaves room for: "
            "use fewer ids, or raise the limit"
        )

    # The log

    @contextlib.contextmanager
    def writing_state(self, now_wall_ms: int) -> Iterator[StateWriter]:
        """The writer of a snapshot that replaces the log up to here; one at a time. Events may be applied meanwhile."""
        assert self._writer is None, "a state is being written"
        self._writer = StateWriter(self._states, now_wall_ms)
        try:
            yield self._writer
        finally:
            self._writer = None

    def apply(self, record: CoordinatorRecord, now_ms: int) -> None:
        """Applies an event that is in the log."""
        name, principal, event = record.transactional_id, record.principal, event_of(record)
        assert not isinstance(event, StateBegins | StateEnds), "what the log says of itself is for loading.py"
        if self._writer is not None:
            self._writer.keep(name)
        if isinstance(event, TransactionalIdForgotten):
            self._drop(name)
            return
        state = self._states.get(name)
        if state is None:
            if not isinstance(event, MemberOpened | CommitPrepared):
                return  # the id has been forgotten
            state = self._states[name] = TransactionalIdState(name, principal, self._ended)
            self._owned.setdefault(principal, {})[name] = state
            self._limits.transactional_ids.add(principal, 1)
        ended = state.apply(event, record.timestamp)
        self._close(state, ended)
        if isinstance(event, MemberOpened):
            self._opened(state, event, now_ms)
        elif isinstance(event, MembersAborted):
            self._remember_ended(name, ended)
        elif isinstance(event, CommitPrepared):
            self._committed(state, event, now_ms)
        if not state.is_prepared and self._prepared.pop(name, None) is not None and name not in self._committed_ids:
            state.forget_ended()
        if state.is_empty:
            self._drop(name)

    def forget_all(self) -> None:
        """Drops all state and frees all limits."""
        for name in list(self._states):
            self._drop(name)

    def _opened(self, state: TransactionalIdState, member: MemberOpened, now_ms: int) -> None:
        key = ExecutionKey(state.transactional_id, member.txn_version, member.execution_id)
        self._open[member.producer_id] = LiveMember(state, member, now_ms, key)
        life = self._lives.setdefault(key, _Life(now_ms))
        life.members += 1
        life.timeout_ms = max(life.timeout_ms, member.timeout_ms)
        life.last_ms = now_ms
        self._limits.open_members.add(state.principal, 1)

    def _close(self, state: TransactionalIdState, members: Collection[MemberOpened]) -> None:
        """Removes ended members from the open ones."""
        for member in members:
            key = self._open.pop(member.producer_id).execution
            life = self._lives[key]
            life.members -= 1
            if not life.members:
                del self._lives[key]
        if members:
            self._limits.open_members.add(state.principal, -len(members))

    def _remember_ended(self, name: str, members: Iterable[MemberOpened]) -> None:
        for member in members:
            self._ended[name, member.member_id] = None
            if len(self._ended) > ENDED_MEMBERS_MAX:
                self._ended.popitem(last=False)  # a plain dict would search past all entries deleted before

    def _committed(self, state: TransactionalIdState, event: CommitPrepared, now_ms: int) -> None:
        name = state.transactional_id
        self._jobs.pop(name, None)
        if event.one_write:
            self._jobs[name] = now_ms
        self._forget_committed(name)
        self._states[name] = self._prepared[name] = self._states.pop(name)  # commit order, also after a restart
        self._committed_ids[name] = len(event.committed_producer_ids) + len(event.aborted_producer_ids) + len(event.held_back)
        self._committed_id_count += self._committed_ids[name]
        while self._committed_id_count > COMMITTED_IDS_MAX and len(self._committed_ids) > 1:
            oldest = next(iter(self._committed_ids))
            self._forget_committed(oldest)
            if oldest not in self._prepared:  # a prepared commit keeps its members until it is complete
                self._states[oldest].forget_ended()

    def _forget_committed(self, name: str) -> None:
        self._committed_id_count -= self._committed_ids.pop(name, 0)

    def _drop(self, transactional_id: str) -> None:
        state = self._states.pop(transactional_id, None)
        self._prepared.pop(transactional_id, None)
        self._jobs.pop(transactional_id, None)
        self._forget_committed(transactional_id)
        if state is not None:
            owned = self._owned[state.principal]
            del owned[transactional_id]
            if not owned:
                del self._owned[state.principal]
            self._close(state, list(state.members.values()))
            self._limits.transactional_ids.add(state.principal, -1)
