"""One transactional id: which version it committed last, what is prepared, which members are open; and the table of answers.

    request        | version < last  | version = last                       | version > last
    ---------------+-----------------+--------------------------------------+-----------------------------------------------
    init           | PRODUCER_FENCED | ALREADY_COMMITTED;                   | open, or the open member again;
                   |                 | another write of a known run:        | INVALID_TXN_STATE if it has ended, or is open
                   |                 | TXN_CONFLICT                         | in another execution. Nobody is aborted
    commit         | done, if one of | after the markers:                   | after the markers of what is prepared:
                   | the last few    | another write of a known run, any    | prepare, if no member was told that it is too
                   | commits; else   | rows: TXN_CONFLICT; other totals:    | late, and all are open, of this execution, and
                   | PRODUCER_FENCED | REPLAY_MISMATCH; else done, and its  | have durably what they report; else TXN_ABORTED
                   |                 | run is known                         |
    abort          | no effect       | ALREADY_COMMITTED, no effect         | the listed members that are open in this execution
    heartbeat      | INVALID_TXN_STATE                                      | open members only, else INVALID_TXN_STATE
    expiry         | none is open    | none is open                         | abort of the whole execution

A run writes each version once. Known is the run that committed the last version, and each one that repeated it since: of these, an
execution that is not the one that committed or repeated it is another write. Nothing is decided by totals before that. An execution
of no run, or of one that is not known, is a repetition if its totals are equal. What is known outlives the broker.

A commit ends all open members of its version and older ones, whatever their execution: that is why none is open there. A member
that is not open never opens again. What is decided changes nothing; `apply` does.

A commit whose answer was lost may be asked about after others have committed newer versions. EARLIER_MAX of the versions before the
last one are remembered for that. Of an older one, PRODUCER_FENCED says by its fate that nobody knows whether it was committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from brokerd.errors import (
    AlreadyCommittedError,
    Fate,
    InvalidTxnStateError,
    ProducerFencedError,
    ReplayMismatchError,
    TxnAbortedError,
    TxnConflictError,
)
from brokerd.transaction.advice import needs_its_own_id, rows_are_others, version_is_old
from brokerd.transaction.ended_members import EndedMembers
from brokerd.transaction.model import (
    MEMBER_EPOCH,
    AlreadyCommitted,
    CommitCompleted,
    CommitDecision,
    CommitPrepared,
    EarlierCommit,
    EndRequest,
    Event,
    Execution,
    Finish,
    Held,
    HeldData,
    InitMember,
    LastCommit,
    Member,
    MemberOpened,
    MemberReport,
    MembersAborted,
    Opened,
    Prepare,
    PreparedCommit,
    Repeat,
    Repeated,
    Totals,
    VersionRepeated,
)

EARLIER_MAX = 5  # commits before the last one that an id remembers
_DIGEST_BYTES = 16
_NO_DATA = HeldData(0, True)
_RING = 1 << 31  # a partition counts a member's records modulo this
REPEATS_MAX = 100  # a driver would have to stand still within a batch while so many others repeat it, to be forgotten


class TransactionalIdState:
    """See the module."""

    def __init__(self, transactional_id: str, principal: str, ended: EndedMembers) -> None:
        self.transactional_id = transactional_id
        self.principal = principal
        self.last: LastCommit | None = None
        self.prepared: PreparedCommit | None = None
        self.members: dict[int, Member] = {}  # open, by producer id
        self._by_member_id: dict[bytes, Member] = {}  # the same
        self._ended = ended
        self.owner = ""  # what the newest member said of it, for people; a state of everything has that of open members only

    @property
    def last_version(self) -> int:
        """The newest committed version; -1 if there is none."""
        return self.last.execution.version if self.last is not None else -1

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever committed and nobody is open."""
        return self.last is None and not self.members

    @property
    def is_at_work(self) -> bool:
        """True if members are open, or a commit is not finished."""
        return self.prepared is not None or bool(self.members)

    # Decisions

    def decide_init(self, asked: InitMember, next_producer_id: int) -> Repeated | Opened:
        """The member. Raises ProducerFencedError, AlreadyCommittedError, TxnConflictError, InvalidTxnStateError."""
        execution = asked.execution
        if execution.version < self.last_version:
            raise self._fenced(execution, Fate.UNSPECIFIED)
        if execution.version == self.last_version:
            self._check_not_another_write(execution)
            raise self._already_committed(execution)
        known = self._by_member_id.get(asked.member_id)
        if known is not None and _is_same(known.execution, execution):
            return Repeated(known)
        if known is not None or (self.transactional_id, asked.member_id) in self._ended:
            raise InvalidTxnStateError(
                f"{self._subject(execution)}: member {asked.member_id.hex()} "
                + (f"is open in {_text(known.execution)}" if known is not None else "was open and has ended")
                + f"; {self._committed()}; begin again with another member id"
            )
        return Opened(MemberOpened(Member(asked.member_id, next_producer_id, execution, asked.owner, asked.timeout_ms)))

    def decide_commit(self, asked: EndRequest, held: Held) -> CommitDecision:
        """Decides about a commit; `held` is the listed members' open data.

        Raises ProducerFencedError, TxnConflictError, ReplayMismatchError, TxnAbortedError.
        """
        execution = asked.execution
        if execution.version < self.last_version:
            return self._decide_earlier(asked)
        if self.prepared is not None:
            return Finish(self.prepared)
        if self.last is not None and execution.version == self.last_version:
            # A second write of a run that has no rows has lost none: the first one's commit stands for it.
            if asked.totals.rows or not self._is_another_write(execution):
                self._check_not_another_write(execution)
                self._check_replay(asked, self.last)
            if execution.run_id and not self._of_its_run(execution):
                return Repeat(VersionRepeated(execution))
            return AlreadyCommitted(self.last.execution, self.last.totals)
        self._check_members(asked, held)
        winners = dict.fromkeys(member.producer_id for member in asked.members)
        losers = tuple(producer_id for producer_id in self.ending(execution.version) if producer_id not in winners)
        missing = set(held.missing)
        partitions = tuple(partition for partition in asked.partitions if partition not in missing)
        event = CommitPrepared(execution, tuple(winners), losers, partitions, asked.totals, is_one_write=asked.is_one_write)
        return Prepare(event)

    def decide_abort(self, asked: EndRequest) -> tuple[MembersAborted, ...]:
        """The event that ends the listed members that are open; none if there is nothing to end. Raises AlreadyCommittedError."""
        execution = asked.execution
        if execution.version == self.last_version:
            raise self._already_committed(execution)
        listed = (self.members.get(member.producer_id) for member in asked.members)
        ended = dict.fromkeys(
            member.producer_id for member in listed if member is not None and _is_same(member.execution, execution)
        )
        return (MembersAborted(tuple(ended)),) if ended else ()

    def decide_expiry(self, version: int, execution_id: str) -> tuple[MembersAborted, ...]:
        """The event that ends all members of an execution that are open; none if there are none."""
        key = (version, execution_id)
        ended = tuple(producer_id for producer_id, member in self.members.items() if member.execution[:2] == key)
        return (MembersAborted(ended),) if ended else ()

    def open_member(self, execution: Execution, member_id: bytes) -> Member:
        """The member, if it is open. Raises InvalidTxnStateError."""
        member = self._by_member_id.get(member_id)
        if member is None or not _is_same(member.execution, execution):
            raise InvalidTxnStateError(
                f"{self._subject(execution)}: member {member_id.hex()} is not open: it expired, was aborted or its version is "
                f"decided; {self._committed()}; begin again with another member id"
            )
        return member

    def ending(self, version: int) -> list[int]:
        """Producer ids of the open members that end when this version is committed."""
        return [producer_id for producer_id, member in self.members.items() if member.execution.version <= version]

    # Checks

    def _decide_earlier(self, asked: EndRequest) -> AlreadyCommitted:
        """A commit of a version below the last one, asked about again. Raises ProducerFencedError, whose fate says whether it is
        certain that this execution has not committed it."""
        version, earlier = asked.execution.version, self.last.earlier if self.last is not None else ()
        if EarlierCommit(version, _digest(asked.execution, asked.totals)) in earlier:
            return AlreadyCommitted(asked.execution, asked.totals)
        is_certain = len(earlier) < EARLIER_MAX or version >= earlier[0].version
        raise self._fenced(asked.execution, Fate.NOT_APPENDED if is_certain else Fate.UNKNOWN)

    def _fenced(self, execution: Execution, fate: Fate) -> ProducerFencedError:
        known = {
            Fate.NOT_APPENDED: "; nothing of this one is visible",
            Fate.UNKNOWN: "; whether this one was committed before is not known any more",
        }
        return ProducerFencedError(
            f"{self._subject(execution)}: {self._committed()}, which is newer{known.get(fate, '')}. "
            + version_is_old(self.transactional_id, self.last_version),
            fate=fate,
        )

    def _is_another_write(self, execution: Execution) -> bool:
        """True for another write of a run that committed this version, or repeated it."""
        known = self._of_its_run(execution)
        return bool(execution.run_id and known) and all(one.execution_id != execution.execution_id for one in known)

    def _of_its_run(self, execution: Execution) -> list[Execution]:
        """The executions of the same run that committed the last version or repeated it."""
        known = (self.last.execution, *self.last.repeats) if self.last is not None else ()
        return [one for one in known if one.run_id == execution.run_id]

    def _check_not_another_write(self, execution: Execution) -> None:
        if self._is_another_write(execution):
            raise TxnConflictError(
                f"{self._subject(execution)}: {self._committed()}, which is another write of the same micro-batch or run; nothing "
                "of this one is visible: " + needs_its_own_id(self.transactional_id)
            )

    def _already_committed(self, execution: Execution) -> AlreadyCommittedError:
        return AlreadyCommittedError(
            f"{self._subject(execution)}: {self._committed()}; its rows are there and nothing is to be written again"
        )

    def _check_replay(self, asked: EndRequest, last: LastCommit) -> None:
        if asked.totals == last.totals:
            return
        differences = ", ".join(
            f"{name} {ours} instead of {theirs}"
            for name, ours, theirs in zip(asked.totals._fields, asked.totals, last.totals, strict=True)
            if ours != theirs
        )
        raise ReplayMismatchError(
            f"{self._subject(asked.execution)}: {self._committed()}, but this replay of the version read other rows "
            f"({differences}); nothing of it is visible. " + rows_are_others(self.transactional_id, self.last_version)
        )

    def _check_members(self, asked: EndRequest, held: Held) -> None:
        execution = asked.execution
        if asked.any_skipped:
            raise self._aborted(execution, "a member was told that the version is committed and sent nothing")
        seen: set[int] = set()
        for report in asked.members:
            found = held.members.get(report.producer_id, _NO_DATA)
            problem = self._problem(report, execution, found, may_miss=bool(held.missing))
            if report.producer_id in seen:
                problem = "is listed twice"
            if problem:
                raise self._aborted(execution, f"producer {report.producer_id} {problem}")
            seen.add(report.producer_id)

    def _problem(self, report: MemberReport, execution: Execution, found: HeldData, *, may_miss: bool) -> str:
        """Why this member cannot be committed; empty if it can."""
        member = self.members.get(report.producer_id)
        if member is None or report.producer_epoch != MEMBER_EPOCH:
            return f"in epoch {report.producer_epoch} is not open: it expired, was aborted or never was a member"
        if not _is_same(member.execution, execution):
            return f"is a member of {_text(member.execution)}"
        if not found.is_durable:
            return "has records that are not durable"
        if may_miss and found.records <= report.records:  # a topic is deleted, and its part with it
            return ""
        if (found.records - report.records) % _RING:
            return f"reports {report.records} records, but {found.records} are there"
        return ""

    def _aborted(self, execution: Execution, reason: str) -> TxnAbortedError:
        return TxnAbortedError(
            f"{self._subject(execution)}: cannot be committed, since {reason}; {self._committed()}; nothing has changed: "
            "run the batch again"
        )

    # Texts

    def _subject(self, execution: Execution) -> str:
        return f"transactional id {self.transactional_id!r}, {_text(execution)}"

    def _committed(self) -> str:
        last = self.last
        if last is None:
            return "no version is committed"
        run = f" of run {last.execution.run_id!r}" if last.execution.run_id else ""
        return f"{_text(last.execution)}{run} is committed with {last.totals.rows} rows"

    # Events of the log

    def apply(self, event: Event, timestamp: int) -> list[Member]:
        """Takes an event whose record stands in the log; returns the members that it ended. Forgotten is not for here."""
        if isinstance(event, MemberOpened):
            member = event.member
            self.members[member.producer_id] = member
            self._by_member_id[member.member_id] = member
            self.owner = member.owner
        elif isinstance(event, MembersAborted):
            ended = self._end(event.producer_ids)
            for member in ended:
                self._ended.add(self.transactional_id, member.member_id)
            return ended
        elif isinstance(event, CommitPrepared):
            committed_ids, aborted_ids, earlier = event.committed_ids, event.aborted_ids, (*event.earlier, *self._history())
            self.last = LastCommit(
                event.execution, event.totals, timestamp, committed_ids, aborted_ids, event.is_one_write, earlier[-EARLIER_MAX:]
            )
            self.prepared = PreparedCommit(
                event.execution, event.committed_ids, event.aborted_ids, event.partitions, event.held_back, event.group_offsets
            )
            return self._end((*event.committed_ids, *event.aborted_ids))
        elif isinstance(event, CommitCompleted) and event.version == self.last_version:
            self.prepared = None
        elif isinstance(event, VersionRepeated) and self.last is not None and event.execution.version == self.last_version:
            self.last = self.last._replace(repeats=(*self.last.repeats, event.execution)[-REPEATS_MAX:])
        return []

    def _history(self) -> Sequence[EarlierCommit]:
        """The remembered commits up to now, the last one among them."""
        last = self.last
        if last is None:
            return ()
        return (*last.earlier, EarlierCommit(last.execution.version, _digest(last.execution, last.totals)))

    def forget_ended(self) -> None:
        """Forgets who took part in the last commit. While it is prepared, that is known nevertheless."""
        if self.last is not None:
            self.last = self.last._replace(committed_ids=(), aborted_ids=())

    def _end(self, producer_ids: Iterable[int]) -> list[Member]:
        ended = []
        for producer_id in producer_ids:
            member = self.members.pop(producer_id, None)
            if member is not None:
                del self._by_member_id[member.member_id]
                ended.append(member)
        return ended

    def events(self) -> list[tuple[int, Event]]:
        """All that is known, as events that make it again, each with its timestamp."""
        events: list[tuple[int, Event]] = []
        last, prepared = self.last, self.prepared
        if last is not None:
            events.append((last.timestamp, _recorded(last, prepared)))
            if prepared is None:
                events.append((last.timestamp, CommitCompleted(last.execution.version)))
            events += [(last.timestamp, VersionRepeated(execution)) for execution in last.repeats]
        events += [(0, MemberOpened(member)) for member in self.members.values()]
        return events


def _recorded(last: LastCommit, prepared: PreparedCommit | None) -> CommitPrepared:
    if prepared is None:
        prepared = PreparedCommit(last.execution, last.committed_ids, last.aborted_ids, ())
    _, committed_ids, aborted_ids, partitions, held_back, offsets = prepared
    return CommitPrepared(
        last.execution, committed_ids, aborted_ids, partitions, last.totals, held_back, last.is_one_write, offsets, last.earlier
    )


def _digest(execution: Execution, totals: Totals) -> bytes:
    """Tells a commit from others of its version: execution ids alone may come again in another run."""
    said = "\0".join((execution.execution_id, execution.run_id, *map(str, totals)))
    return hashlib.blake2b(said.encode(), digest_size=_DIGEST_BYTES).digest()


def _is_same(one: Execution, other: Execution) -> bool:
    return one.version == other.version and one.execution_id == other.execution_id


def _text(execution: Execution) -> str:
    return f"version {execution.version} in execution {execution.execution_id!r}"
