"""An independent model of the coordinator's answers, written from the table of transactions in ARCHITECTURE.md rather than from the
code, so that the two can be compared. It has no time, markers or I/O; the caller passes the record counts held in partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.errors import (
    AlreadyCommittedError,
    InvalidTxnStateError,
    ProducerFencedError,
    ReplayMismatchError,
    TxnAbortedError,
    TxnConflictError,
)
from brokerd.ids import ProducerIdAndEpoch
from brokerd.producer.core.membership import Membership, Totals, TransactionEnd

NO_VERSION = -1


@dataclass
class TransactionalIdModel:
    """One transactional id."""

    last: TransactionEnd | None = None
    runs: dict[str, str] = field(default_factory=dict)  # by run id: its execution that committed or repeated the last version
    open: dict[bytes, tuple[int, Membership]] = field(default_factory=dict)  # by member id
    ended: set[bytes] = field(default_factory=set)  # member ids

    @property
    def last_version(self) -> int:
        return self.last.txn_version if self.last is not None else NO_VERSION

    def end(self, member_ids: list[bytes]) -> list[int]:
        """Ends members; returns their producer ids."""
        self.ended.update(member_ids)
        return [self.open.pop(member_id)[0] for member_id in member_ids]


@dataclass
class TransactionsModel:
    """All transactional ids. `committed` and `aborted`: producer ids with a decision."""

    ids: dict[str, TransactionalIdModel] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)

    def init(self, asked: Membership, next_id: Callable[[], int]) -> ProducerIdAndEpoch:
        """The producer id of a member. Raises the table's errors."""
        known = self.ids.setdefault(asked.transactional_id, TransactionalIdModel())
        if asked.txn_version < known.last_version:
            raise ProducerFencedError("a newer version is committed")
        if known.last is not None and asked.txn_version == known.last_version:
            if known.runs.get(asked.run_id, asked.execution_id) != asked.execution_id:
                raise TxnConflictError("another write of this run")
            raise AlreadyCommittedError("this version is committed")
        if asked.member_id in known.ended:
            raise InvalidTxnStateError("the member has ended")
        if asked.member_id not in known.open:
            known.open[asked.member_id] = (next_id(), asked)
        return ProducerIdAndEpoch(known.open[asked.member_id][0], 0)

    def open_member(self, producer_id: int) -> Membership | None:
        """The open member with this producer id, or None."""
        members = (entry for known in self.ids.values() for entry in known.open.values())
        return next((member for open_id, member in members if open_id == producer_id), None)

    def is_open(self, producer_id: int) -> bool:
        """True while the member may write."""
        return self.open_member(producer_id) is not None

    def heartbeat(self, member: Membership) -> None:
        """Raises InvalidTxnStateError for a member that is not open."""
        if member.member_id not in self.ids.get(member.transactional_id, TransactionalIdModel()).open:
            raise InvalidTxnStateError("the member is not open")

    def expire(self, transactional_id: str) -> None:
        """Aborts all open members, as an expiry does."""
        known = self.ids.get(transactional_id, TransactionalIdModel())
        self.aborted.update(known.end(list(known.open)))

    def end(self, end: TransactionEnd, held_records: Callable[[int], int]) -> int:
        """Commits or aborts; returns the last committed version. Raises the table's errors."""
        known = self.ids.setdefault(end.transactional_id, TransactionalIdModel())
        if end.is_commit:
            self._commit(known, end, held_records)
        else:
            self._abort(known, end)
        return known.last_version

    def _commit(self, known: TransactionalIdModel, end: TransactionEnd, held_records: Callable[[int], int]) -> None:
        if end.txn_version < known.last_version:
            raise ProducerFencedError("a newer version is committed")
        if known.last is not None and end.txn_version == known.last_version:
            if known.runs.get(end.run_id, end.execution_id) != end.execution_id and end.totals != Totals():
                raise TxnConflictError("another write of this run")
            if known.last.totals != end.totals:
                raise ReplayMismatchError("it was committed with other totals")
            known.runs.setdefault(end.run_id, end.execution_id)
            return
        by_id = dict(known.open.values())
        for listed in end.members:
            member = by_id.get(listed.producer_id)
            if member is None or (member.txn_version, member.execution_id) != (end.txn_version, end.execution_id):
                raise TxnAbortedError("a member is not open")
            if held_records(listed.producer_id) != listed.records:
                raise TxnAbortedError("a member's records are not there")
        if end.any_skipped:
            raise TxnAbortedError("a member was skipped")
        known.last = end
        known.runs = {end.run_id: end.execution_id}
        ended = known.end([key for key, (_, member) in known.open.items() if member.txn_version <= end.txn_version])
        winners = {listed.producer_id for listed in end.members}
        self.committed |= winners
        self.aborted |= set(ended) - winners

    def _abort(self, known: TransactionalIdModel, end: TransactionEnd) -> None:
        if known.last is not None and end.txn_version == known.last_version:
            raise AlreadyCommittedError("it is committed")
        if end.txn_version < known.last_version:
            return
        listed = {member.producer_id for member in end.members}
        self.aborted.update(known.end([key for key, (producer_id, _) in known.open.items() if producer_id in listed]))
