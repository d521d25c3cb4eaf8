"""The part of producer_simulation.py about transaction members: an application that begins, commits and aborts them, and a
coordinator (transaction_model.py). Checked: a request holds batches of one member under its own producer id, and all records of a
committed member are in the log, once and in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from brokerd.errors import AbortedBatchError, BrokerdError, Fate, InvalidTxnStateError, TxnAbortedError, WireError
from brokerd.ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from brokerd.producer.core.membership import MemberReport, Membership, TransactionEnd
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import RequestProducerId, SendHeartbeat, SendRequest
from tests.support.broker_model import IdentityModel, PartitionModel
from tests.support.producer_trace import records_of
from tests.support.transaction_model import TransactionsModel

if TYPE_CHECKING:
    from tests.support.simulated_network import SentBatch

TRANSACTIONAL_ID = "id"
TIMEOUT_MS = 900


class MemberOperations(ABC):
    """Base of Simulation. Every operation is legal at any time."""

    core: ProducerCore
    identities: IdentityModel
    logs: dict[bytes, list[PartitionModel]]
    now_ms: int

    def __init__(self) -> None:
        self.transactions = TransactionsModel()
        self.member_count = 0
        self.member_of: dict[int, Membership | None] = {}  # by record
        self.id_of: dict[Membership | None, set[int]] = {}  # granted producer ids by member

    @abstractmethod
    def expect(self, condition: bool, message: str) -> None:
        """Raises SimulationError unless `condition`."""

    @property
    def membership(self) -> Membership | None:
        """The open member."""
        return self.core.identity.membership

    # --- operations of the application

    def do_begin(self) -> None:
        """Begins a member, if none is open and no records are incomplete."""
        if self.membership is None and not self.core.accumulator.incomplete and self.core.stopped_by is None:
            self.member_count += 1
            number = self.member_count
            member_id = number.to_bytes(16)
            self.core.begin_member(
                Membership(TRANSACTIONAL_ID, number, f"execution {number}", "run", "simulation", member_id, TIMEOUT_MS), self.now_ms
            )

    def do_commit(self) -> None:
        """Commits the member if all its records have results; otherwise flushes, and a later commit may succeed."""
        if self.membership is None:
            return
        if self.core.accumulator.incomplete:
            self.core.accumulator.begin_flush()
            return
        error = self.core.identity.error
        membership, report = self.end_member()
        if error is None:
            self.decide(membership, report, is_commit=True)

    def do_abort_member(self) -> None:
        """Aborts the member, even with batches under way."""
        if self.membership is not None:
            self.core.stop(AbortedBatchError("by the test"), self.now_ms)
            membership, report = self.end_member()
            self.decide(membership, report, is_commit=False)

    def do_expire_members(self) -> None:
        """The coordinator considers all members silent for too long."""
        self.transactions.expire(TRANSACTIONAL_ID)

    def end_member(self) -> tuple[Membership, MemberReport]:
        """Closes the open member; returns it and its report."""
        membership = self.membership
        assert membership is not None
        report = self.core.end_member()
        return membership, report

    def decide(self, membership: Membership, report: MemberReport, *, is_commit: bool) -> None:
        """Commits or aborts a member at the coordinator; checks what was committed."""
        listed = [report]
        members = listed if report.producer_id != NO_PRODUCER_ID else []
        end = TransactionEnd(*membership[:4], is_commit=is_commit, members=members, partitions=report.partitions)
        was_open = self.transactions.is_open(report.producer_id)
        try:
            self.transactions.end(end, self.held_records)
        except TxnAbortedError as error:
            self.expect(not was_open, f"a member that says it has written all is not believed: {error}")
            return
        if is_commit:
            self.check_committed(membership, report)

    def check_committed(self, membership: Membership, report: MemberReport) -> None:
        """Checks that exactly the records sent by a committed member are in the log of one topic, once, under its producer id."""
        topics = [logs for logs in self.logs.values() if any(report.producer_id in log.writers for log in logs)]
        self.expect(len(topics) <= 1, f"member {membership.txn_version} is committed with records of a topic that was deleted")
        written = sorted(
            record
            for logs in topics
            for log in logs
            for record, producer_id in zip(log.records, log.writers, strict=True)
            if producer_id == report.producer_id
        )
        sent = sorted(record for record, member in self.member_of.items() if member == membership)
        self.expect(written == sent, f"member {membership.txn_version} is committed with {written}, it sent {sent}")
        self.expect(report.records == len(sent), f"it reported {report.records} records of {len(sent)}")

    def held_records(self, producer_id: int) -> int:
        """Number of records of a producer id, over all partitions."""
        return sum(log.writers.count(producer_id) for logs in self.logs.values() for log in logs)

    # --- the broker

    def granted(self, command: RequestProducerId) -> ProducerIdAndEpoch | WireError:
        """The response to a request for a producer id."""
        if command.membership is None:
            identity = self.identities.init_producer_id(command.current)
        else:
            try:
                identity = self.transactions.init(command.membership, self.identities.next_id)
            except WireError as error:
                return error
            known = self.id_of.setdefault(command.membership, set())
            known.add(identity.producer_id)
            self.expect(len(known) == 1, f"member {command.membership.txn_version} asks for a second id")
        return identity

    def check_open(self, sent: SentBatch, membership: Membership | None) -> None:
        """Raises InvalidTxnStateError for a batch of a member that is not open."""
        if membership is not None and not self.transactions.is_open(sent.identity.producer_id):
            raise InvalidTxnStateError("the member is not open", fate=Fate.NOT_APPENDED)

    def respond_to_heartbeat(self, command: SendHeartbeat, lost: BrokerdError | None) -> None:
        """A heartbeat is answered, or lost."""
        try:
            if lost is not None:
                raise lost
            self.transactions.heartbeat(command.membership)
            self.core.on_heartbeat(command.membership, self.now_ms)
        except BrokerdError as error:
            self.core.on_identity_failed(command, error, self.now_ms)

    # --- checks of a request

    def check_member(self, command: SendRequest) -> None:
        """Checks that a request belongs to the current member alone, under its producer id."""
        self.expect(command.membership == self.membership, "a request is of another member than the present one")
        for batch in command.batches.values():
            members = {self.member_of[record] for record in records_of(batch)}
            self.expect(members <= {command.membership}, "a batch of another member goes with the request")
            self.expect(batch.membership == command.membership, "a batch does not name its member")
            if command.membership is not None:
                own = self.id_of.get(command.membership, set())
                self.expect(batch.identity.producer_id in own, "a batch goes under an id that is not its member's")
                self.expect(batch.identity.epoch == 0, "an epoch was raised inside a transaction")
