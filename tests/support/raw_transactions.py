"""Transactions over the bare wire protocol: members, decisions, and what readers of either isolation level see. Only successful
set-up is asserted."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.record.header import Attributes
from brokerd.wire.v1 import fetch_pb2, transaction_pb2
from tests.support.raw_client import RawClient, RawProducer, code_of
from tests.support.records import key_values, new_batch

MEMBER_ID_BYTES = 16


@dataclass
class Txn:
    """One execution of one version of a transactional id."""

    client: RawClient
    name: str = "spark-q"
    version: int = 0
    execution_id: str = "execution-1"
    run_id: str = "run-1"
    timeout_ms: int = 60_000
    members: list[TxnMember] = field(default_factory=list)

    def init(self, member_id: bytes | None = None, **fields: Any) -> transaction_pb2.InitProducerIdResponse:
        """Sends InitProducerId for a member."""
        values: dict[str, Any] = {
            "transactional_id": self.name,
            "txn_version": self.version,
            "execution_id": self.execution_id,
            "run_id": self.run_id,
            "owner": "test",
            "member_id": secrets.token_bytes(MEMBER_ID_BYTES) if member_id is None else member_id,
            "timeout_ms": self.timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        response: transaction_pb2.InitProducerIdResponse = self.client.call(
            "InitProducerId", transaction_pb2.InitProducerIdRequest(**values | fields)
        )
        return response

    def member(self) -> TxnMember:
        """Opens a new member."""
        member_id = secrets.token_bytes(MEMBER_ID_BYTES)
        response = self.init(member_id)
        assert not response.HasField("error"), response.error
        member = TxnMember(self, member_id, response.producer_id, self.client.producer())
        self.members.append(member)
        return member

    def end_request(
        self,
        members: Iterable[TxnMember] | None = None,
        *,
        decision: int = transaction_pb2.TRANSACTION_DECISION_COMMIT,
        rows: int | None = None,
        **fields: Any,
    ) -> transaction_pb2.EndTransactionRequest:
        """The decision on these members (default: all)."""
        chosen = self.members if members is None else list(members)
        records = sum(member.records for member in chosen)
        values: dict[str, Any] = {
            "transactional_id": self.name,
            "txn_version": self.version,
            "execution_id": self.execution_id,
            "run_id": self.run_id,
            "decision": decision,
            "members": [
                transaction_pb2.TransactionMember(producer_id=member.producer_id, producer_epoch=0, records=member.records)
                for member in chosen
            ],
            "partitions": [
                transaction_pb2.TransactionPartition(topic_id=tp.topic_id, partition=tp.partition)
                for tp in dict.fromkeys(tp for member in chosen for tp in member.sequences)
            ],
            "totals": transaction_pb2.TransactionTotals(rows=records if rows is None else rows, key_hash_sum=7),
        }
        return transaction_pb2.EndTransactionRequest(**values | fields)

    def end(self, members: Iterable[TxnMember] | None = None, **fields: Any) -> transaction_pb2.EndTransactionResponse:
        """Sends the decision; returns the response."""
        response: transaction_pb2.EndTransactionResponse = self.client.call("EndTransaction", self.end_request(members, **fields))
        return response

    def commit(self, members: Iterable[TxnMember] | None = None, **fields: Any) -> None:
        """Commits; it must succeed."""
        response = self.end(members, **fields)
        assert not response.HasField("error"), response.error

    def abort(self, members: Iterable[TxnMember] | None = None, **fields: Any) -> None:
        """Aborts; it must succeed."""
        response = self.end(members, decision=transaction_pb2.TRANSACTION_DECISION_ABORT, **fields)
        assert not response.HasField("error"), response.error


@dataclass
class TxnMember:
    """An open member and its acknowledged records."""

    txn: Txn
    member_id: bytes
    producer_id: int
    stream: RawProducer
    sequences: dict[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of acknowledged records."""
        return sum(self.sequences.values())

    def batch(self, tp: TopicIdPartition, values: Sequence[bytes]) -> pa.Buffer:
        """Its next batch for this partition."""
        return member_batch(tp, values, self.producer_id, self.sequences.get(tp, 0))

    def send(self, tp: TopicIdPartition, *values: bytes) -> ErrorCode:
        """Sends a batch; returns its error code."""
        self.stream.post([(tp, self.batch(tp, values))], transactional_id=self.txn.name, member_id=self.member_id)
        (result,) = self.stream.answer().results
        if result.HasField("error"):
            return ErrorCode(result.error.code)
        self.sequences[tp] = self.sequences.get(tp, 0) + len(values)
        return ErrorCode.NONE

    def write(self, tp: TopicIdPartition, *values: bytes) -> None:
        """Sends a batch, which must be acknowledged."""
        code = self.send(tp, *values)
        assert code is ErrorCode.NONE, code

    def heartbeat(self) -> ErrorCode:
        """Sends a heartbeat; the error code tells whether the member is open."""
        txn = self.txn
        request = transaction_pb2.HeartbeatRequest(
            transactional_id=txn.name, txn_version=txn.version, execution_id=txn.execution_id, member_id=self.member_id
        )
        return code_of(txn.client.call("Heartbeat", request))


def member_batch(tp: TopicIdPartition, values: Sequence[bytes], producer_id: int, sequence: int) -> pa.Buffer:
    """A batch of a transaction."""
    return new_batch(
        key_values(values),
        "none",
        tp,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=int(Attributes.TRANSACTIONAL),
    )


def read(client: RawClient, tp: TopicIdPartition, *, is_committed: bool = True) -> list[bytes]:
    """The values that a reader of the isolation level sees, without the aborted ones that the broker reports."""
    fetcher = client.fetcher()
    isolation = fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED if is_committed else fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED
    values: list[bytes] = []
    offset = 0
    while True:
        head, (batches,) = fetcher.fetch({tp: offset}, isolation_level=isolation)
        assert not head.results[0].HasField("error"), head.results[0].error
        if not batches:
            fetcher.half_close()
            return values
        aborted = [(entry.producer_id, entry.first_offset) for entry in head.results[0].aborted]
        for batch in batches:
            header = batch.header
            is_void = is_committed and any(pid == header.producer_id and first <= header.base_offset for pid, first in aborted)
            if not header.is_control and not is_void:
                values += batch.to_arrow(max_uncompressed_bytes=2**24).column("value").to_pylist()
            offset = header.next_offset
