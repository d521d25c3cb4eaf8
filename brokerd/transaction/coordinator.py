"""All transactional ids: whom they belong to, how many there may be, and the state as a fold of the log.

A decision changes nothing (`init`, `commit`, `abort`, `abort_all`, `expire`, `forget`; only signs of life are noted). The caller
appends the event's record to the log and calls `apply` at once; it answers when the record is durable, and not before all is that
the decision went by. Decisions on one transactional id, up to `apply`, come one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from brokerd.errors import (
    CorruptMessageError,
    InvalidRequestError,
    InvalidTxnStateError,
    PolicyViolationError,
    TransactionalIdAuthorizationFailedError,
)
from brokerd.transaction.ended_members import EndedMembers
from brokerd.transaction.executions import ExecutionKey, Executions, key_of
from brokerd.transaction.model import (
    MEMBER_EPOCH,
    AlreadyCommitted,
    CommitDecision,
    CommitPrepared,
    EndRequest,
    Execution,
    Forgotten,
    Held,
    InitMember,
    LogEntry,
    Member,
    MemberOpened,
    MembersAborted,
    Opened,
    PreparedCommit,
    Repeated,
    StateBegins,
    StateEnds,
)
from brokerd.transaction.transactional_id import TransactionalIdState

# Ids that serve one write, as the sink says of its batch writes. So long after their commit they are known: it is asked for again
# for half an hour at most. Counted by the monotonic clock, from the start at the earliest: this one alone is never ahead of the
# driver's. A wall clock may jump, and one that goes on while the machine sleeps would forget the id of a driver that sleeps with
# it. So an id may be known for longer, never for less; a driver that has slept alone finds out (client/transaction_calls.py).
JOB_KEPT_MS = 3_600_000
# Producer ids of the last commits' members that are remembered when all markers are durable, of all transactional ids together. Of
# commits that are longer ago they are forgotten first; those of the newest one are always known.
ENDED_IDS_MAX = 100_000


class Slots(Protocol):
    """A limited number of slots, and how many of them each principal has."""

    def has_room(self, principal: str, count: int) -> bool:
        """True if the principal may take `count` more."""
        ...

    def add(self, principal: str, count: int) -> None:
        """Takes `count` slots, or returns them if negative."""
        ...


class Limits(NamedTuple):
    """Limits of a coordinator. The slots are its own."""

    transactional_ids: Slots
    open_members: Slots
    timeout_max_ms: int


class OpenMember(NamedTuple):
    """An open member, with the monotonic time from which its age counts, ms."""

    state: TransactionalIdState
    member: Member
    opened_ms: int
    execution: ExecutionKey


class Coordinator:
    """See the module. Times are monotonic, ms, unless they are called wall clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ended = EndedMembers()
        self._states: dict[str, TransactionalIdState] = {}
        self._open: dict[int, OpenMember] = {}  # by producer id
        self._executions = Executions()
        self._jobs: dict[str, int] = {}  # ids of one write: when they were committed, in this order
        self._ended_ids: dict[str, int] = {}  # how many members of its last commit an id remembers, in the order of the commits
        self._ended_id_count = 0

    # Reading

    @property
    def states(self) -> Mapping[str, TransactionalIdState]:
        """All transactional ids. Only `apply` changes them."""
        return self._states

    @property
    def open_members(self) -> Mapping[int, OpenMember]:
        """All open members, by producer id."""
        return self._open

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """True if this is an open member: its data may be appended now."""
        return producer_id in self._open and producer_epoch == MEMBER_EPOCH

    def expires_at(self, producer_id: int) -> int:
        """When the execution of an open member expires without a further sign of life."""
        return self._executions.expires_at(self._open[producer_id].execution)

    def prepared(self) -> list[tuple[str, PreparedCommit]]:
        """The commits that must be finished, by transactional id: before serving after a start, and now and then."""
        return [(name, state.prepared) for name, state in self._states.items() if state.prepared is not None]

    def presumed_aborted(self, producer_ids: Iterable[int]) -> list[int]:
        """Of the members that hold open data somewhere, those that are neither open nor in a prepared commit.

        Their data is void, once all that is applied now is durable; unless a partition may have lost their marker (endings.py).
        """
        prepared = {pid for _, commit in self.prepared() for pid in (*commit.committed_ids, *commit.aborted_ids)}
        return [pid for pid in producer_ids if pid not in self._open and pid not in prepared]

    # Decisions

    def init(self, asked: InitMember, now_ms: int, next_producer_id: int) -> Repeated | Opened:
        """A member, new or repeated.

        Raises ProducerFencedError, AlreadyCommittedError, TxnConflictError, InvalidTxnStateError by the table;
        TransactionalIdAuthorizationFailedError; InvalidRequestError for a time-out that is too long; PolicyViolationError.
        """
        timeout_max_ms = self._limits.timeout_max_ms
        if not 0 < asked.timeout_ms <= timeout_max_ms:
            raise InvalidRequestError(
                f"timeout_ms is {asked.timeout_ms}, outside 1 to {timeout_max_ms} (transaction.max.timeout.ms): "
                "set transaction.timeout.ms accordingly"
            )
        state = self._state_for(asked)
        decided = state.decide_init(asked, next_producer_id)
        if isinstance(decided, Repeated):
            self.renew(decided.member.producer_id, now_ms)
            return decided
        self._check_room(state)
        if not self._limits.open_members.has_room(asked.principal, 1):
            raise PolicyViolationError(
                f"transactional id {asked.transactional_id!r}: max.open.members leaves no room for another open member: let open "
                "transactions end, or raise the limit"
            )
        return decided

    def commit(self, asked: EndRequest, held: Held) -> CommitDecision:
        """Decides about a commit. `held` is the open data of the listed members now.

        Raises ProducerFencedError, TxnConflictError, ReplayMismatchError, TxnAbortedError by the table;
        TransactionalIdAuthorizationFailedError; PolicyViolationError.
        """
        state = self._state_for(asked)
        decided = state.decide_commit(asked, held)
        if isinstance(decided, AlreadyCommitted):
            state.note_replay(asked.execution)
        self._check_room(state)
        return decided

    def abort(self, asked: EndRequest) -> tuple[MembersAborted, ...]:
        """The event that ends the listed members, if any is open. Raises AlreadyCommittedError;
        TransactionalIdAuthorizationFailedError."""
        return self._state_for(asked).decide_abort(asked)

    def abort_all(self, transactional_id: str, execution_id: str = "") -> tuple[MembersAborted, ...]:
        """An operator's abort: the event that ends all open members, or those of one execution; none if nobody is open."""
        state = self._states.get(transactional_id)
        if state is None:
            return ()
        members = state.members.values()
        ended = tuple(member.producer_id for member in members if execution_id in ("", member.execution.execution_id))
        return (MembersAborted(ended),) if ended else ()

    def heartbeat(self, transactional_id: str, principal: str, execution: Execution, member_id: bytes, now_ms: int) -> None:
        """A sign of life. Raises InvalidTxnStateError if the member is not open; TransactionalIdAuthorizationFailedError."""
        member = self._state(transactional_id, principal).open_member(execution, member_id)
        self.renew(member.producer_id, now_ms)

    def renew(self, producer_id: int, now_ms: int) -> None:
        """A sign of life of an open member counts for its execution; of another one for nothing."""
        known = self._open.get(producer_id)
        if known is not None:
            self._executions.renew(known.execution, now_ms)

    def expired(self, now_ms: int) -> list[ExecutionKey]:
        """Executions that have gone without a sign of life for too long. Each is to be asked about with `expire`."""
        return self._executions.expired(now_ms)

    def expire(self, key: ExecutionKey, now_ms: int) -> tuple[MembersAborted, ...]:
        """The event that ends an execution; none if it has given a sign since, or was decided."""
        state = self._states.get(key.transactional_id)
        if state is None or not self._executions.is_expired(key, now_ms):
            return ()
        return state.decide_expiry(key.version, key.execution_id)

    def forget_at_once(self, transactional_id: str) -> tuple[Forgotten, ...]:
        """An operator's wish: the event that forgets the id; none if it is not known. Raises InvalidTxnStateError."""
        state = self._states.get(transactional_id)
        if state is None:
            return ()
        if state.is_at_work:
            count = len(state.members)
            work = f"members are open ({count}): abort them first" if count else "a commit is not finished: wait for it"
            raise InvalidTxnStateError(f"transactional id {transactional_id!r} cannot be forgotten while {work}")
        return (Forgotten(),)

    def forgettable(self, now_ms: int) -> list[str]:
        """Ids of one write whose commit nobody asks for again. Each is to be asked about with `forget`."""
        old = itertools.takewhile(lambda name: self._is_old_job(name, now_ms), self._jobs)
        return [name for name in old if self.forget(name, now_ms)]

    def forget(self, transactional_id: str, now_ms: int) -> tuple[Forgotten, ...]:
        """The event that forgets the id, if it may be."""
        if not self._is_old_job(transactional_id, now_ms) or self._states[transactional_id].is_at_work:
            return ()
        return (Forgotten(),)

    def _is_old_job(self, transactional_id: str, now_ms: int) -> bool:
        committed_ms = self._jobs.get(transactional_id)
        return committed_ms is not None and now_ms - committed_ms >= JOB_KEPT_MS

    def _state_for(self, asked: InitMember | EndRequest) -> TransactionalIdState:
        version = asked.execution.version
        if version < 0:
            raise InvalidRequestError(
                f"transactional id {asked.transactional_id!r}: txn_version is {version}, but versions count from 0"
            )
        return self._state(asked.transactional_id, asked.principal)

    def _state(self, transactional_id: str, principal: str) -> TransactionalIdState:
        """The id's state, a new one if it is not known. Raises TransactionalIdAuthorizationFailedError."""
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

    # Events of the log

    def apply(self, entry: LogEntry, now_ms: int) -> None:
        """Takes an entry that stands in the log."""
        name, event = entry.transactional_id, entry.event
        assert not isinstance(event, StateBegins | StateEnds), "a state is read with `load`"
        if isinstance(event, Forgotten):
            self._drop(name)
            return
        state = self._states.get(name)
        if state is None:
            if not isinstance(event, MemberOpened | CommitPrepared):
                return  # of an id that is not known any more
            state = self._states[name] = TransactionalIdState(name, entry.principal, self._ended)
            self._limits.transactional_ids.add(entry.principal, 1)
        self._ended_now(state, state.apply(event, entry.timestamp))
        if isinstance(event, MemberOpened):
            self._opened_now(state, event.member, now_ms)
        elif isinstance(event, CommitPrepared):
            self._committed_now(name, event, now_ms)
        if state.is_empty:
            self._drop(name)

    def _opened_now(self, state: TransactionalIdState, member: Member, now_ms: int) -> None:
        key = key_of(state.transactional_id, member)
        self._open[member.producer_id] = OpenMember(state, member, now_ms, key)
        self._executions.add(key, member.timeout_ms, now_ms)
        self._limits.open_members.add(state.principal, 1)

    def _committed_now(self, name: str, event: CommitPrepared, now_ms: int) -> None:
        self._jobs.pop(name, None)
        if event.is_one_write:
            self._jobs[name] = now_ms
        self._forget_ended(name)
        self._ended_ids[name] = len(event.committed_ids) + len(event.aborted_ids)
        self._ended_id_count += self._ended_ids[name]
        while self._ended_id_count > ENDED_IDS_MAX and len(self._ended_ids) > 1:
            oldest = next(iter(self._ended_ids))
            self._forget_ended(oldest)
            self._states[oldest].forget_ended()

    def _forget_ended(self, name: str) -> None:
        self._ended_id_count -= self._ended_ids.pop(name, 0)

    def _ended_now(self, state: TransactionalIdState, members: Collection[Member]) -> None:
        for member in members:
            self._executions.remove(self._open.pop(member.producer_id).execution)
        if members:
            self._limits.open_members.add(state.principal, -len(members))

    def _drop(self, transactional_id: str) -> None:
        state = self._states.pop(transactional_id, None)
        self._jobs.pop(transactional_id, None)
        self._forget_ended(transactional_id)
        if state is not None:
            self._ended_now(state, list(state.members.values()))
            self._limits.transactional_ids.add(state.principal, -1)

    # The log as a whole

    def entries(self, now_wall_ms: int) -> Iterator[LogEntry]:
        """A state of everything: what the log needs to hold instead of all that was. To be appended in one go."""
        yield LogEntry("", "", now_wall_ms, StateBegins())
        for name, state in self._states.items():
            for timestamp, event in state.events():
                yield LogEntry(name, state.principal, timestamp or now_wall_ms, event)
        yield LogEntry("", "", now_wall_ms, StateEnds(len(self._states)))

    def load(self, entries: Iterable[LogEntry], now_ms: int) -> bool:
        """Reads the log from its start; every execution gets its full time-out from now on.

        False if the log ends within a state, which then counts for nothing: a new state must be appended before anything else.
        Raises CorruptMessageError if a state is not what its end says.
        """
        events: list[LogEntry] = []  # of all that counts
        state: list[LogEntry] | None = None  # what was read of a state
        for entry in entries:
            if isinstance(entry.event, StateBegins):
                state = []
            elif isinstance(entry.event, StateEnds):
                events, state = _whole(state, entry.event), None
            else:
                (events if state is None else state).append(entry)
        for entry in events:
            self.apply(entry, now_ms)
        return state is None


def _whole(state: list[LogEntry] | None, end: StateEnds) -> list[LogEntry]:
    found = -1 if state is None else len({entry.transactional_id for entry in state})
    if state is None or found != end.transactional_ids:
        raise CorruptMessageError(
            f"the transaction log has a state that ends with {end.transactional_ids} transactional ids, but {found} were read"
        )
    return state
