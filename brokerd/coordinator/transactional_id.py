"""One transactional id: its last committed version, its prepared commit, its open members, and the table of answers.

    request        | version < last  | version = last                       | version > last
    ---------------+-----------------+--------------------------------------+-----------------------------------------------
    init           | PRODUCER_FENCED | ALREADY_COMMITTED;                   | open, or the open member again;
                   |                 | another write of a known run:        | INVALID_TXN_STATE if it has ended, or is open
                   |                 | TXN_CONFLICT                         | in another execution. Aborts no member
    commit         | done, if one of | after the markers:                   | after the markers of a prepared commit:
                   | the last few    | another write of a known run with    | prepare, if no member skipped its write, and all
                   | commits; else   | rows: TXN_CONFLICT; other totals:    | are open in this execution and durably have the
                   | PRODUCER_FENCED | REPLAY_MISMATCH; else done, and its  | records they report; else TXN_ABORTED, or
                   |                 | run is known                         | NOT_READY if a node did not answer
    abort          | no effect       | ALREADY_COMMITTED, no effect         | the listed members that are open in this execution
    heartbeat      | INVALID_TXN_STATE                                      | open members only, else INVALID_TXN_STATE
    expiry         | none is open    | none is open                         | abort of the whole execution

A run writes each version once. The known runs are the one that committed the last version and those that have repeated it since.
An execution of a known run that neither committed nor repeated the version is another write; this is checked before the totals. An
execution without a run, or of an unknown run, is a repetition if its totals are equal. Known runs survive a restart.

A commit ends all open members of its version and of older ones, in any execution. A member that has ended never opens again.
Decisions change no state; `apply` does.

A client that lost the response to a commit may retry it after newer versions were committed; EARLIER_MAX commits before the last
one are remembered for this. For older commits, the fate in PRODUCER_FENCED is UNKNOWN.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from brokerd.coordinator.records import Event
from brokerd.errors import (
    AlreadyCommittedError,
    Fate,
    InvalidTxnStateError,
    NotReadyError,
    ProducerFencedError,
    ReplayMismatchError,
    TxnAbortedError,
    TxnConflictError,
)
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.coordinator_log_pb2 import (
    CommitCompleted,
    CommitPrepared,
    EarlierCommit,
    MemberOpened,
    MembersAborted,
    TransactionalIdForgotten,
    VersionRepeated,
)
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, InitProducerIdRequest, TransactionMember, TransactionTotals

MEMBER_EPOCH = 0  # constant: a member's producer id serves a single transaction
NO_VERSION = -1
EARLIER_MAX = 5  # commits before the last one that an id remembers
REPEATS_MAX = 100  # a run is forgotten only if this many other runs repeat the batch while its driver is paused
_DIGEST_BYTES = 16
_RING = 1 << 31  # a partition counts a member's records modulo this
_TOTALS = ("rows", "key_bytes", "value_bytes", "key_hash_sum")
_QUERY, _APPLICATION = "spark-", "app-"  # prefixes of the Spark sink's ids; any other id is the user's own


class Execution(Protocol):
    """A message that names an execution: one attempt at a version, by one write."""

    txn_version: int
    execution_id: str


class ExecutionOfRun(Execution, Protocol):
    """A message that also names the run. A run writes every version once: in Spark's foreachBatch, it is one execution of the
    micro-batch. An empty `run_id` means no run."""

    run_id: str


class HeldData(NamedTuple):
    """A member's data that has no marker yet, over all partitions."""

    records: int  # modulo 2^31 in each partition
    is_durable: bool  # in all partitions


class Held(NamedTuple):
    """The open data of members, by producer id, at the moment of a decision."""

    members: Mapping[int, HeldData]
    missing: Collection[TopicIdPartition] = ()  # partitions named by the driver whose topics are deleted
    silent: Collection[int] = ()  # nodes that did not answer; one may lead a partition instead of the node that answered for it


class Progress(Enum):
    """The progress of a commit that needs no further event."""

    COMPLETE = "the version is committed, with these totals, and all of it is visible"
    UNFINISHED = "a prepared commit must be finished first: its markers written, CommitCompleted applied"


# The decision on a commit: an event to record (after VersionRepeated, decide again), or its progress.
CommitDecision = CommitPrepared | VersionRepeated | Progress


class TransactionalIdState:
    """The state of one transactional id. `ended`: ended members of all transactional ids, as (transactional id, member id)."""

    def __init__(self, transactional_id: str, principal: str, ended: Container[tuple[str, bytes]]) -> None:
        self.transactional_id = transactional_id
        self.principal = principal
        # The newest commit; its `earlier` holds the commits before it. Its members, and the partitions with their data, stay listed
        # after all markers are durable, as long as there is room: a marker that a copy has lost can be written again.
        self.last: CommitPrepared | None = None
        self.timestamp = 0  # of that commit, wall clock, ms
        self.is_prepared = False  # its markers are not all durable
        self.repeats: tuple[VersionRepeated, ...] = ()  # the newest repetitions by other runs, one per run
        self.members: dict[int, MemberOpened] = {}  # open, by producer id
        self._by_member_id: dict[bytes, MemberOpened] = {}  # the same, by member id
        self._ended = ended
        self.owner = ""  # as named by the newest member, for display; snapshots keep only open members' owners

    @property
    def last_version(self) -> int:
        """The newest committed version; -1 if there is none."""
        return self.last.txn_version if self.last is not None else NO_VERSION

    @property
    def prepared(self) -> CommitPrepared | None:
        """The unfinished commit, if any."""
        return self.last if self.is_prepared else None

    @property
    def is_empty(self) -> bool:
        """True if no version is committed and no member is open."""
        return self.last is None and not self.members

    @property
    def is_at_work(self) -> bool:
        """True if members are open, or a commit is not finished."""
        return self.is_prepared or bool(self.members)

    # Decisions

    def decide_init(self, asked: InitProducerIdRequest, next_producer_id: int) -> MemberOpened:
        """Returns the member if it is already open, else the event that opens it with `next_producer_id`. Raises
        ProducerFencedError, AlreadyCommittedError, TxnConflictError, InvalidTxnStateError."""
        if asked.txn_version < self.last_version:
            raise self._fenced(asked, Fate.UNSPECIFIED)
        if asked.txn_version == self.last_version:
            self._check_not_another_write(asked)
            raise self._already_committed(asked)
        known = self._by_member_id.get(asked.member_id)
        if known is not None and _is_same(known, asked):
            return known
        if known is not None or (self.transactional_id, asked.member_id) in self._ended:
            raise InvalidTxnStateError(
                f"{self._subject(asked)}: member {asked.member_id.hex()} "
                + (f"is open in {execution_text(known)}" if known is not None else "was open and has ended")
                + f"; {self._committed()}; begin again with another member id"
            )
        return MemberOpened(
            member_id=asked.member_id,
            producer_id=next_producer_id,
            txn_version=asked.txn_version,
            execution_id=asked.execution_id,
            run_id=asked.run_id,
            owner=asked.owner,
            timeout_ms=asked.timeout_ms,
        )

    def decide_commit(self, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        """Decides a commit; `held` is the listed members' open data.

        Raises ProducerFencedError, TxnConflictError, ReplayMismatchError, TxnAbortedError, NotReadyError.
        """
        if asked.txn_version < self.last_version:
            self._check_earlier(asked)
            return Progress.COMPLETE
        if self.is_prepared:
            return Progress.UNFINISHED
        if self.last is not None and asked.txn_version == self.last_version:
            # A run's second write that has no rows loses none, so it counts as committed with the first.
            if asked.totals.rows or not self._is_another_write(asked):
                self._check_not_another_write(asked)
                self._check_replay(asked, self.last)
            if asked.run_id and not self._of_its_run(asked):
                return VersionRepeated(txn_version=asked.txn_version, execution_id=asked.execution_id, run_id=asked.run_id)
            return Progress.COMPLETE
        self._check_members(asked, held)
        winners = dict.fromkeys(member.producer_id for member in asked.members)
        missing = set(held.missing)
        return CommitPrepared(
            txn_version=asked.txn_version,
            execution_id=asked.execution_id,
            run_id=asked.run_id,
            committed_producer_ids=winners,
            aborted_producer_ids=[producer_id for producer_id in self.ending(asked.txn_version) if producer_id not in winners],
            partitions=[one for one in asked.partitions if (one.topic_id, one.partition) not in missing],
            totals=asked.totals,
            one_write=asked.one_write,
        )

    def decide_abort(self, asked: EndTransactionRequest) -> MembersAborted | None:
        """The event that ends the listed members that are open; None if there are none. Raises AlreadyCommittedError."""
        if asked.txn_version == self.last_version:
            raise self._already_committed(asked)
        listed = (self.members.get(member.producer_id) for member in asked.members)
        return aborted(dict.fromkeys(one.producer_id for one in listed if one is not None and _is_same(one, asked)))

    def open_member(self, execution: Execution, member_id: bytes) -> MemberOpened:
        """The open member. Raises InvalidTxnStateError if it is not open."""
        member = self._by_member_id.get(member_id)
        if member is None or not _is_same(member, execution):
            raise InvalidTxnStateError(
                f"{self._subject(execution)}: member {member_id.hex()} is not open: it expired, was aborted or its version is "
                f"decided; {self._committed()}; begin again with another member id"
            )
        return member

    def ending(self, version: int) -> list[int]:
        """Producer ids of the open members that end when this version is committed."""
        return [producer_id for producer_id, member in self.members.items() if member.txn_version <= version]

    def to_freeze(self, asked: EndTransactionRequest) -> list[int] | None:
        """The open members that `asked` lists or would end; None if it decides nothing new, another commit is unfinished, or it
        will be refused whatever data they have."""
        if asked.txn_version <= self.last_version or self.is_prepared or asked.any_skipped:
            return None
        if any(self._why_not_open(report, asked) for report in asked.members):
            return None
        return list(dict.fromkeys([*(report.producer_id for report in asked.members), *self.ending(asked.txn_version)]))

    # Checks

    def _check_earlier(self, asked: EndTransactionRequest) -> None:
        """Checks a retried commit of a version below the last one. Raises ProducerFencedError unless this execution is known to
        have committed it; the fate is NOT_APPENDED if it certainly has not, else UNKNOWN."""
        earlier = list(self.last.earlier) if self.last is not None else []
        digest = _digest(asked)
        if any(one.txn_version == asked.txn_version and one.digest == digest for one in earlier):
            return
        is_certain = len(earlier) < EARLIER_MAX or asked.txn_version >= earlier[0].txn_version
        raise self._fenced(asked, Fate.NOT_APPENDED if is_certain else Fate.UNKNOWN)

    def _fenced(self, execution: Execution, fate: Fate) -> ProducerFencedError:
        known = {
            Fate.NOT_APPENDED: "; nothing of this one is visible",
            Fate.UNKNOWN: "; it is no longer known whether this one was committed before",
        }
        return ProducerFencedError(
            f"{self._subject(execution)}: {self._committed()}, which is newer{known.get(fate, '')}. "
            + _version_is_old(self.transactional_id, self.last_version),
            fate=fate,
        )

    def _is_another_write(self, execution: ExecutionOfRun) -> bool:
        """True for another write of a run that has committed or repeated this version."""
        known = self._of_its_run(execution)
        return bool(execution.run_id and known) and all(one.execution_id != execution.execution_id for one in known)

    def _of_its_run(self, execution: ExecutionOfRun) -> list[ExecutionOfRun]:
        """The executions of the same run that committed the last version or repeated it."""
        known: list[ExecutionOfRun] = [self.last, *self.repeats] if self.last is not None else []
        return [one for one in known if one.run_id == execution.run_id]

    def _check_not_another_write(self, execution: ExecutionOfRun) -> None:
        if self._is_another_write(execution):
            label = "txnLabel" if self.transactional_id.startswith((_QUERY, _APPLICATION)) else "transactional id"
            raise TxnConflictError(
                f"{self._subject(execution)}: {self._committed()}, which is another write of the same micro-batch or run; nothing "
                f"of this one is visible: give this write a {label} of its own, and leave the first as it is"
            )

    def _already_committed(self, execution: Execution) -> AlreadyCommittedError:
        return AlreadyCommittedError(
            f"{self._subject(execution)}: {self._committed()}; its rows are visible, so write nothing again"
        )

    def _check_replay(self, asked: EndTransactionRequest, last: CommitPrepared) -> None:
        ours, theirs = _numbers(asked.totals), _numbers(last.totals)
        if ours == theirs:
            return
        differences = ", ".join(
            f"{name} {one} instead of {other}" for name, one, other in zip(_TOTALS, ours, theirs, strict=True) if one != other
        )
        raise ReplayMismatchError(
            f"{self._subject(asked)}: {self._committed()}, but this replay of the version read other rows "
            f"({differences}); nothing of it is visible. " + _rows_are_others(self.transactional_id, self.last_version)
        )

    def _check_members(self, asked: EndTransactionRequest, held: Held) -> None:
        if asked.any_skipped:
            raise self._aborted(asked, "a member was told that the version is committed and sent nothing")
        for report in asked.members:
            problem = self._why_not_open(report, asked)
            if problem:
                raise self._aborted(asked, f"producer {report.producer_id} {problem}")
        seen: set[int] = set()
        for report in asked.members:
            if report.producer_id in seen:
                raise self._aborted(asked, f"producer {report.producer_id} is listed twice")
            seen.add(report.producer_id)
        for report in asked.members:
            found = held.members.get(report.producer_id, HeldData(0, True))
            problem = _problem(report, found, may_miss=bool(held.missing))
            if problem and held.silent:
                nodes = ", ".join(map(str, held.silent))
                raise NotReadyError(
                    f"{self._subject(asked)}: producer {report.producer_id} {problem}, but node {nodes} does not answer: retry",
                    fate=Fate.NOT_APPENDED,
                )
            if problem:
                raise self._aborted(asked, f"producer {report.producer_id} {problem}")

    def _why_not_open(self, report: TransactionMember, execution: Execution) -> str:
        """Why the reported producer is not an open member of the execution; empty if it is."""
        member = self.members.get(report.producer_id)
        if member is None or report.producer_epoch != MEMBER_EPOCH:
            return f"in epoch {report.producer_epoch} is not open: it expired, was aborted or never was a member"
        return "" if _is_same(member, execution) else f"is a member of {execution_text(member)}"

    def _aborted(self, execution: Execution, reason: str) -> TxnAbortedError:
        return TxnAbortedError(
            f"{self._subject(execution)}: cannot be committed, since {reason}; {self._committed()}; nothing has changed: "
            "run the batch again"
        )

    # Texts

    def _subject(self, execution: Execution) -> str:
        return f"transactional id {self.transactional_id!r}, {execution_text(execution)}"

    def _committed(self) -> str:
        last = self.last
        if last is None:
            return "no version is committed"
        run = f" of run {last.run_id!r}" if last.run_id else ""
        return f"{execution_text(last)}{run} is committed with {last.totals.rows} rows"

    # Events of the log

    def apply(self, event: Event, timestamp: int) -> list[MemberOpened]:
        """Applies an event that is in the log, other than TransactionalIdForgotten; returns the members it ended."""
        if isinstance(event, MemberOpened):
            self.members[event.producer_id] = self._by_member_id[event.member_id] = event
            self.owner = event.owner
        elif isinstance(event, MembersAborted):
            return self._end(event.producer_ids)
        elif isinstance(event, CommitPrepared):
            self.last = _changed(event, earlier=[*event.earlier, *self._history()][-EARLIER_MAX:])
            self.timestamp, self.is_prepared, self.repeats = timestamp, True, ()
            return self._end((*event.committed_producer_ids, *event.aborted_producer_ids))
        elif self.last is None or isinstance(event, TransactionalIdForgotten) or event.txn_version != self.last_version:
            return []
        elif isinstance(event, CommitCompleted):
            self.last, self.is_prepared = _changed(self.last, partitions=()), False
        else:
            self.repeats = (*self.repeats, event)[-REPEATS_MAX:]
        return []

    def _history(self) -> Iterable[EarlierCommit]:
        """The remembered commits, including the last one."""
        last = self.last
        return (*last.earlier, EarlierCommit(txn_version=last.txn_version, digest=_digest(last))) if last is not None else ()

    def forget_ended(self) -> None:
        """Forgets the members of the last commit, and the partitions with their data. The commit must be complete."""
        assert self.last is not None
        assert not self.is_prepared, "its markers name them"
        self.last = _changed(self.last, committed_producer_ids=(), aborted_producer_ids=(), held_back=())

    def _end(self, producer_ids: Iterable[int]) -> list[MemberOpened]:
        ended = []
        for producer_id in producer_ids:
            member = self.members.pop(producer_id, None)
            if member is not None:
                del self._by_member_id[member.member_id]
                ended.append(member)
        return ended

    def events(self) -> list[tuple[int, Event]]:
        """The events that recreate this state, each with its timestamp."""
        events: list[tuple[int, Event]] = []
        if self.last is not None:
            events.append((self.timestamp, self.last))
            if not self.is_prepared:
                events.append((self.timestamp, CommitCompleted(txn_version=self.last.txn_version)))
            events += [(self.timestamp, repeated) for repeated in self.repeats]
        events += [(0, member) for member in self.members.values()]
        return events


def _problem(report: TransactionMember, found: HeldData, *, may_miss: bool) -> str:
    """Why this open member cannot be committed with its data; empty if it can."""
    if not found.is_durable:
        return "has records that are not durable"
    if may_miss and found.records <= report.records:  # a topic was deleted with its share of the records
        return ""
    if (found.records - report.records) % _RING:
        return f"reports {report.records} records, but {found.records} are there"
    return ""


def aborted(producer_ids: Collection[int]) -> MembersAborted | None:
    """The event that ends these members; None if there are none."""
    return MembersAborted(producer_ids=producer_ids) if producer_ids else None


def _changed(commit: CommitPrepared, **fields: object) -> CommitPrepared:
    """A copy with some fields replaced; events of the log are never changed."""
    changed = CommitPrepared()
    changed.CopyFrom(commit)
    for name in fields:
        changed.ClearField(name)
    changed.MergeFrom(CommitPrepared(**fields))  # type: ignore[arg-type]
    return changed


def _digest(commit: EndTransactionRequest | CommitPrepared) -> bytes:
    """Distinguishes a commit from others of its version: another run may reuse an execution id."""
    said = "\0".join((commit.execution_id, commit.run_id, *map(str, _numbers(commit.totals))))
    return hashlib.blake2b(said.encode(), digest_size=_DIGEST_BYTES).digest()


def _numbers(totals: TransactionTotals) -> tuple[int, int, int, int]:
    return totals.rows, totals.key_bytes, totals.value_bytes, totals.key_hash_sum


def _is_same(one: Execution, other: Execution) -> bool:
    return one.txn_version == other.txn_version and one.execution_id == other.execution_id


def execution_text(execution: Execution) -> str:
    """The execution, as messages name it."""
    return f"version {execution.txn_version} in execution {execution.execution_id!r}"


# Advice about a version that cannot be written


def _version_is_old(transactional_id: str, last_version: int) -> str:
    """Advice if a newer version is committed."""
    if transactional_id.startswith(_QUERY):
        return (
            "The query runs from an old or copied checkpoint, or a stale driver still writes: restore the newest checkpoint, or, "
            "for its rows to be written again, give it another txnLabel"
        )
    if transactional_id.startswith(_APPLICATION):
        return (
            f"txnVersion must rise from write to write: continue above {last_version}, or, if it begins anew, as after a deleted "
            "checkpoint, or another program uses this txnAppId, choose another txnAppId"
        )
    return (
        f"Versions of a transactional id must rise: continue above {last_version}, or, if they begin anew, or another program uses "
        "this id, choose another id"
    )


def _rows_are_others(transactional_id: str, last_version: int) -> str:
    """Advice if the version is committed with other rows."""
    if transactional_id.startswith(_QUERY):
        return (
            "The checkpoint is not the one that committed it, or the query does not give the same rows twice: restore the right "
            "checkpoint, or, for its rows to be written again, give it another txnLabel"
        )
    version, name = ("txnVersion", "txnAppId") if transactional_id.startswith(_APPLICATION) else ("version", "id")
    return (
        f"A repetition must give the same rows; new rows need a {version} above {last_version}, or, if it begins anew, or another "
        f"program uses this {name}, another {name}"
    )
