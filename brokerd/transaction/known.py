"""Everything that a coordinator knows: the fold of its log, one event after another. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from brokerd.transaction.ended_members import EndedMembers
from brokerd.transaction.executions import ExecutionKey, Executions, key_of
from brokerd.transaction.model import CommitPrepared, EntriesLost, Forgotten, LogEntry, Member, MemberOpened, StateBegins, StateEnds
from brokerd.transaction.transactional_id import TransactionalIdState

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


class OpenMember(NamedTuple):
    """An open member, with the monotonic time from which its age counts, ms."""

    state: TransactionalIdState
    member: Member
    opened_ms: int
    execution: ExecutionKey


class Known:
    """See the module. Only `apply` and `forget_all` change it. Times are monotonic, ms."""

    def __init__(self, transactional_ids: Slots, open_members: Slots, age_max_ms: int) -> None:
        self.states: dict[str, TransactionalIdState] = {}
        self.owned: dict[str, dict[str, TransactionalIdState]] = {}  # the same, by principal
        self.prepared: dict[str, TransactionalIdState] = {}  # those of them whose commit must be finished, in the order of commits
        self.open: dict[int, OpenMember] = {}  # by producer id
        self.executions = Executions(age_max_ms)
        self.jobs: dict[str, int] = {}  # ids of one write: when they were committed, in this order
        self.ended = EndedMembers()
        self._ended_ids: dict[str, int] = {}  # how many members of its last commit an id remembers, in the order of the commits
        self._ended_id_count = 0
        self._transactional_ids = transactional_ids
        self._open_members = open_members

    def apply(self, entry: LogEntry, now_ms: int) -> None:
        """Takes an event."""
        name, event = entry.transactional_id, entry.event
        assert not isinstance(event, StateBegins | StateEnds | EntriesLost), "what the log says of itself is for loading.py"
        if isinstance(event, Forgotten):
            self._drop(name)
            return
        state = self.states.get(name)
        if state is None:
            if not isinstance(event, MemberOpened | CommitPrepared):
                return  # of an id that is not known any more
            state = self.states[name] = TransactionalIdState(name, entry.principal, self.ended)
            self.owned.setdefault(entry.principal, {})[name] = state
            self._transactional_ids.add(entry.principal, 1)
        self._ended_now(state, state.apply(event, entry.timestamp))
        if isinstance(event, MemberOpened):
            self._opened_now(state, event.member, now_ms)
        elif isinstance(event, CommitPrepared):
            self._committed_now(name, event, now_ms)
        if state.prepared is None:
            self.prepared.pop(name, None)
        if state.is_empty:
            self._drop(name)

    def forget_all(self) -> None:
        """Nothing is known any more, and no slot is taken."""
        for name in list(self.states):
            self._drop(name)

    def _opened_now(self, state: TransactionalIdState, member: Member, now_ms: int) -> None:
        key = key_of(state.transactional_id, member)
        self.open[member.producer_id] = OpenMember(state, member, now_ms, key)
        self.executions.add(key, member.timeout_ms, now_ms)
        self._open_members.add(state.principal, 1)

    def _committed_now(self, name: str, event: CommitPrepared, now_ms: int) -> None:
        self.jobs.pop(name, None)
        if event.is_one_write:
            self.jobs[name] = now_ms
        self._forget_ended(name)
        self.states[name] = self.states.pop(name)  # in the order of the commits, so that it is the same after a start
        self.prepared[name] = self.states[name]
        self._ended_ids[name] = len(event.committed_ids) + len(event.aborted_ids)
        self._ended_id_count += self._ended_ids[name]
        while self._ended_id_count > ENDED_IDS_MAX and len(self._ended_ids) > 1:
            oldest = next(iter(self._ended_ids))
            self._forget_ended(oldest)
            self.states[oldest].forget_ended()

    def _forget_ended(self, name: str) -> None:
        self._ended_id_count -= self._ended_ids.pop(name, 0)

    def _ended_now(self, state: TransactionalIdState, members: Collection[Member]) -> None:
        for member in members:
            self.executions.remove(self.open.pop(member.producer_id).execution)
        if members:
            self._open_members.add(state.principal, -len(members))

    def _drop(self, transactional_id: str) -> None:
        state = self.states.pop(transactional_id, None)
        self.prepared.pop(transactional_id, None)
        self.jobs.pop(transactional_id, None)
        self._forget_ended(transactional_id)
        if state is not None:
            owned = self.owned[state.principal]
            del owned[transactional_id]
            if not owned:
                del self.owned[state.principal]
            self._ended_now(state, list(state.members.values()))
            self._transactional_ids.add(state.principal, -1)
