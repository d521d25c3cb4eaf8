"""All transactional ids: whom they belong to, how many there may be, and what is decided on each request.

A decision changes nothing (`init`, `commit`, `abort`, `abort_all`, `expire`, `forget`; only signs of life are noted). The caller
appends the event's record to the log and calls `apply` at once; it answers when the record is durable, and not before all is that
the decision went by. Decisions on one transactional id, up to `apply`, come one at a time. What is known is the fold of the log.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from brokerd.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    PolicyViolationError,
    TransactionalIdAuthorizationFailedError,
)
from brokerd.transaction.executions import ExecutionKey
from brokerd.transaction.known import Known, OpenMember, Slots
from brokerd.transaction.loading import load
from brokerd.transaction.model import (
    MEMBER_EPOCH,
    CommitDecision,
    EndRequest,
    Execution,
    Forgotten,
    Held,
    InitMember,
    LogEntry,
    MembersAborted,
    Opened,
    PreparedCommit,
    Repeated,
)
from brokerd.transaction.snapshot import Snapshot
from brokerd.transaction.transactional_id import TransactionalIdState

# Ids that serve one write, as the sink says of its batch writes. So long after their commit they are known: it is asked for again
# for half an hour at most. Counted by the monotonic clock, from the start at the earliest: this one alone is never ahead of the
# driver's. A wall clock may jump, and one that goes on while the machine sleeps would forget the id of a driver that sleeps with
# it. So an id may be known for longer, never for less; a driver that has slept alone finds out (client/transaction_calls.py).
JOB_KEPT_MS = 3_600_000


class Limits(NamedTuple):
    """Limits of a coordinator. The slots are its own."""

    transactional_ids: Slots
    open_members: Slots
    timeout_max_ms: int
    age_max_ms: int


class Coordinator:
    """See the module. Times are monotonic, ms, unless they are called wall clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known = self._nothing()
        self._snapshot: Snapshot | None = None  # which is being written

    def _nothing(self) -> Known:
        return Known(self._limits.transactional_ids, self._limits.open_members, self._limits.age_max_ms)

    # Reading

    @property
    def states(self) -> Mapping[str, TransactionalIdState]:
        """All transactional ids. Only `apply` changes them."""
        return self._known.states

    def states_of(self, principal: str) -> Mapping[str, TransactionalIdState]:
        """Those of one principal."""
        return self._known.owned.get(principal, {})

    @property
    def open_members(self) -> Mapping[int, OpenMember]:
        """All open members, by producer id."""
        return self._known.open

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """True if this is an open member: its data may be appended now."""
        return producer_id in self._known.open and producer_epoch == MEMBER_EPOCH

    def expires_at(self, producer_id: int) -> int:
        """When the execution of an open member expires without a further sign of life."""
        return self._known.executions.expires_at(self._known.open[producer_id].execution)

    def prepared(self) -> list[tuple[str, PreparedCommit]]:
        """The commits that must be finished, by transactional id: before serving after a start, and now and then."""
        return [(name, state.prepared) for name, state in self._known.prepared.items() if state.prepared is not None]

    def presumed_aborted(self, producer_ids: Iterable[int]) -> list[int]:
        """Of the members that hold open data somewhere, those that are neither open nor in a prepared commit.

        Their data is void, once all that is applied now is durable; unless a partition may have lost their marker (endings.py).
        """
        prepared = {pid for _, commit in self.prepared() for pid in (*commit.committed_ids, *commit.aborted_ids)}
        return [pid for pid in producer_ids if pid not in self._known.open and pid not in prepared]

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
        self._check_room(state)
        return decided

    def abort(self, asked: EndRequest) -> tuple[MembersAborted, ...]:
        """The event that ends the listed members, if any is open. Raises AlreadyCommittedError;
        TransactionalIdAuthorizationFailedError."""
        return self._state_for(asked).decide_abort(asked)

    def abort_all(self, transactional_id: str, execution_id: str = "") -> tuple[MembersAborted, ...]:
        """An operator's abort: the event that ends all open members, or those of one execution; none if nobody is open."""
        state = self._known.states.get(transactional_id)
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
        known = self._known.open.get(producer_id)
        if known is not None:
            self._known.executions.renew(known.execution, now_ms)

    def expired(self, now_ms: int) -> list[ExecutionKey]:
        """Executions without a sign of life for too long, and those that are too old. Each is to be asked about with `expire`."""
        return self._known.executions.expired(now_ms)

    def is_too_old(self, key: ExecutionKey, now_ms: int) -> bool:
        """True if an expired execution is so by its age."""
        return self._known.executions.is_too_old(key, now_ms)

    def expire(self, key: ExecutionKey, now_ms: int) -> tuple[MembersAborted, ...]:
        """The event that ends an expired execution; none if it has given a sign since, or was decided."""
        state = self._known.states.get(key.transactional_id)
        if state is None or not self._known.executions.is_expired(key, now_ms):
            return ()
        return state.decide_expiry(key.version, key.execution_id)

    def forget_at_once(self, transactional_id: str) -> tuple[Forgotten, ...]:
        """An operator's wish: the event that forgets the id; none if it is not known. Raises InvalidTxnStateError."""
        state = self._known.states.get(transactional_id)
        if state is None:
            return ()
        if state.is_at_work:
            count = len(state.members)
            work = f"members are open ({count}): abort them first" if count else "a commit is not finished: wait for it"
            raise InvalidTxnStateError(f"transactional id {transactional_id!r} cannot be forgotten while {work}")
        return (Forgotten(),)

    def forgettable(self, now_ms: int) -> Iterator[str]:
        """Ids of one write whose commit nobody asks for again. Each is to be asked about with `forget`, and events may be applied
        in between: an id is looked at only when it is asked for.
        """
        return itertools.takewhile(lambda name: self._is_old_job(name, now_ms), list(self._known.jobs))

    def forget(self, transactional_id: str, now_ms: int) -> tuple[Forgotten, ...]:
        """The event that forgets the id, if it may be."""
        if not self._is_old_job(transactional_id, now_ms) or self._known.states[transactional_id].is_at_work:
            return ()
        return (Forgotten(),)

    def _is_old_job(self, transactional_id: str, now_ms: int) -> bool:
        committed_ms = self._known.jobs.get(transactional_id)
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
        state = self._known.states.get(transactional_id)
        if state is None:
            return TransactionalIdState(transactional_id, principal, self._known.ended)
        if state.principal != principal:
            raise TransactionalIdAuthorizationFailedError(
                f"transactional id {transactional_id!r} belongs to another principal: use an id of your own, or have an operator "
                "hand it over (brokerd transactions forget)"
            )
        return state

    def _check_room(self, state: TransactionalIdState) -> None:
        if state.transactional_id in self._known.states or self._limits.transactional_ids.has_room(state.principal, 1):
            return
        raise PolicyViolationError(
            f"transactional id {state.transactional_id!r} would be one more than max.transactional.ids leaves room for: "
            "use fewer ids, or raise the limit"
        )

    # The log

    def apply(self, entry: LogEntry, now_ms: int) -> None:
        """Takes an event that stands in the log."""
        if self._snapshot is not None:
            self._snapshot.keep(entry.transactional_id)
        self._known.apply(entry, now_ms)

    @contextlib.contextmanager
    def snapshot(self, now_wall_ms: int) -> Iterator[Snapshot]:
        """All that is known now, to be written instead of the log up to here; one at a time. Events may be applied meanwhile."""
        assert self._snapshot is None, "a state is being written"
        self._snapshot = Snapshot(self._known.states, now_wall_ms)
        try:
            yield self._snapshot
        finally:
            self._snapshot = None

    def load(self, entries: Iterable[LogEntry], now_ms: int) -> None:
        """Reads the log from its start; every execution gets its full time-out from now on. Raises CorruptMessageError if a state
        in it is not what its end says.
        """
        self._known = load(entries, self._nothing, now_ms)
