"""The transactions of FakeBroker: requests and responses of the contract around transaction_model.py. What is held in partitions is
whatever members report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from google.protobuf.message import Message

from brokerd.errors import InvalidRequestError, NotReadyError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.membership import MemberReport, Membership, Totals, TransactionEnd
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2 as pb
from tests.support.transaction_model import TransactionsModel

LISTED_MAX = 2  # ids in one page of a list


class FakeTransactions(ABC):
    """Base of FakeBroker."""

    def __init__(self) -> None:
        self.transactions = TransactionsModel()
        self.ends: list[TransactionEnd] = []  # decided, pages joined
        self.pages: list[pb.EndTransactionRequest] = []  # of all decisions, as they came
        self._joined: list[pb.EndTransactionRequest] = []
        self.hanging: list[pb.HangingTransaction] = []
        self.has_more_hanging = False

    @abstractmethod
    def next_error(self, name: str) -> WireError | None:
        """The error that the next response of a method is to carry."""

    @abstractmethod
    def next_id(self) -> int:
        """A producer id that nobody had."""

    def init_member(self, request: pb.InitProducerIdRequest) -> Message:
        """InitProducerId of a member."""
        member = Membership(
            request.transactional_id,
            request.txn_version,
            request.execution_id,
            request.run_id,
            request.owner,
            request.member_id,
            request.timeout_ms,
        )
        response = pb.InitProducerIdResponse()
        try:
            response.producer_id, response.producer_epoch = self.transactions.init(member, self.next_id)
        except WireError as error:
            response.error.CopyFrom(to_proto(error))
        return response

    def _EndTransaction(self, request: pb.EndTransactionRequest) -> Message:  # noqa: N802
        self.pages.append(request)
        error = self.next_error("EndTransaction")
        response = pb.EndTransactionResponse()
        try:
            if error is not None:
                raise error
            if request.page == 0:
                self._joined = []
            elif request.page != len(self._joined):
                raise NotReadyError("begin again from page 0")
            self._joined.append(request)
            if not request.more_pages:
                self._decide()
        except WireError as refused:
            response.error.CopyFrom(to_proto(refused))
        return response

    def _decide(self) -> None:
        request = self._joined[0]
        totals = request.totals
        members = [member for page in self._joined for member in page.members]
        partitions = [partition for page in self._joined for partition in page.partitions]
        end = TransactionEnd(
            request.transactional_id,
            request.txn_version,
            request.execution_id,
            request.run_id,
            request.decision == pb.TRANSACTION_DECISION_COMMIT,
            [MemberReport(member.producer_id, member.producer_epoch, member.records) for member in members],
            [TopicIdPartition(partition.topic_id, partition.partition) for partition in partitions],
            Totals(totals.rows, totals.key_bytes, totals.value_bytes, totals.key_hash_sum),
            request.any_skipped,
        )
        self.ends.append(end)
        reported = {member.producer_id: member.records for member in end.members}
        self.transactions.end(end, reported.__getitem__)

    def _Heartbeat(self, request: pb.HeartbeatRequest) -> Message:  # noqa: N802
        member = Membership(request.transactional_id, request.txn_version, request.execution_id, "", "", request.member_id)
        try:
            self.transactions.heartbeat(member)
        except WireError as error:
            return pb.HeartbeatResponse(error=to_proto(error))
        return pb.HeartbeatResponse()

    def _ListTransactions(self, request: pb.ListTransactionsRequest) -> Message:  # noqa: N802
        names = sorted(name for name in self.transactions.ids if name.startswith(request.prefix) and name > request.after)
        listings = [self._listing(name) for name in names]
        wanted = [listing for listing in listings if request.state in (pb.TRANSACTION_STATE_UNSPECIFIED, listing.state)]
        return pb.ListTransactionsResponse(transactions=wanted[:LISTED_MAX], more=len(wanted) > LISTED_MAX)

    def _listing(self, name: str) -> pb.TransactionListing:
        known = self.transactions.ids[name]
        members = [member for _, member in known.open.values()]
        return pb.TransactionListing(
            transactional_id=name,
            state=pb.TRANSACTION_STATE_OPEN if members else pb.TRANSACTION_STATE_EMPTY,
            last_version=known.last_version,
            txn_version=max((member.txn_version for member in members), default=-1),
            open_members=len(members),
            age_ms=7 if members else -1,
            owner=members[-1].owner if members else "",
        )

    def _DescribeTransaction(self, request: pb.DescribeTransactionRequest) -> Message:  # noqa: N802
        known = self.transactions.ids.get(request.transactional_id)
        if known is None:
            return pb.DescribeTransactionResponse(error=to_proto(InvalidRequestError("there is no such transactional id")))
        response = pb.DescribeTransactionResponse(listing=self._listing(request.transactional_id))
        if known.last is not None:
            response.last_execution_id, response.last_run_id = known.last.execution_id, known.last.run_id
            response.last_totals.CopyFrom(pb.TransactionTotals(**known.last.totals._asdict()))
        for producer_id, member in known.open.values():
            described: Any = response.members.add(producer_id=producer_id, expires_in_ms=member.timeout_ms, age_ms=7)
            for name in ("member_id", "txn_version", "execution_id", "run_id", "owner"):
                setattr(described, name, getattr(member, name))
            described.partitions.add(topic="t", topic_id=bytes(16), partition=3, first_offset=5, last_stable_offset=4)
        return response

    def _AbortTransaction(self, request: pb.AbortTransactionRequest) -> Message:  # noqa: N802
        known = self.transactions.ids[request.transactional_id]
        wanted = request.execution_id
        ended = [member_id for member_id, (_, member) in known.open.items() if wanted in ("", member.execution_id)]
        self.transactions.aborted.update(known.end(ended))
        return pb.AbortTransactionResponse(aborted_members=len(ended))

    def _FindHangingTransactions(self, request: pb.FindHangingTransactionsRequest) -> Message:  # noqa: N802
        found = [one for one in self.hanging if one.idle_ms >= request.idle_ms]
        return pb.FindHangingTransactionsResponse(transactions=found, more=self.has_more_hanging)
