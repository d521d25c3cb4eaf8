"""Transactions over the wire: what readers see before, at and after each decision, and the responses of the table."""

from __future__ import annotations

from typing import Any

import grpc
import pyarrow as pa
import pytest

from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.server.metrics.families import families
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2, transaction_pb2
from tests.support.daemon import RunningDaemon
from tests.support.raw_client import RawClient, code_of, idempotent_batch, values_batch
from tests.support.raw_transactions import Txn, read
from tests.support.records import key_values, new_batch

UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID


def plain_batch(tp: TopicIdPartition, value: bytes) -> pa.Buffer:
    """A batch outside of transactions."""
    return new_batch(key_values([value]), "none", tp)


def test_what_is_committed_becomes_visible_in_all_partitions(client: RawClient) -> None:
    tps = client.create_topic(partitions=3)
    txn = Txn(client)
    for number, tp in enumerate(tps):
        txn.member().write(tp, b"row %d" % number)
    assert [read(client, tp) for tp in tps] == [[], [], []]
    assert [read(client, tp, is_committed=False) for tp in tps] == [[b"row 0"], [b"row 1"], [b"row 2"]]
    assert [client.latest(tp, is_committed=True) for tp in tps] == [0, 0, 0]
    txn.commit()
    assert [read(client, tp) for tp in tps] == [[b"row 0"], [b"row 1"], [b"row 2"]]
    assert [client.latest(tp, is_committed=True) for tp in tps] == [2, 2, 2]


def test_what_is_aborted_never_becomes_visible(client: RawClient) -> None:
    (tp,) = client.create_topic()
    client.producer().produce(tp, plain_batch(tp, b"before"))
    txn = Txn(client)
    txn.member().write(tp, b"void")
    txn.abort()
    client.producer().produce(tp, plain_batch(tp, b"after"))
    assert read(client, tp) == [b"before", b"after"]
    assert client.latest(tp, is_committed=True) == 4
    assert txn.members[0].send(tp, b"too late") is ErrorCode.INVALID_TXN_STATE
    assert txn.members[0].heartbeat() is ErrorCode.INVALID_TXN_STATE


def test_an_ended_member_who_goes_on_outside_of_transactions_gets_another_id(client: RawClient) -> None:
    (tp,) = client.create_topic()
    txn = Txn(client)
    member = txn.member()
    member.write(tp, b"row")
    txn.commit()
    plain = client.producer().produce(tp, idempotent_batch(tp, member.producer_id, 0))
    assert code_of(plain) is ErrorCode.INVALID_TXN_STATE
    raised = transaction_pb2.InitProducerIdRequest(producer_id=member.producer_id, producer_epoch=0)
    granted = client.call("InitProducerId", raised)
    assert granted.producer_id != member.producer_id
    assert granted.producer_epoch == 0
    assert code_of(client.producer().produce(tp, idempotent_batch(tp, granted.producer_id, 0))) is ErrorCode.NONE


def test_the_answers_about_a_committed_version(client: RawClient) -> None:
    (tp,) = client.create_topic()
    txn = Txn(client, version=4)
    txn.member().write(tp, b"row")
    txn.commit()
    txn.commit()  # as if the response had been lost
    again = Txn(client, version=4, execution_id="another", run_id="another run")
    told = again.init()
    assert code_of(told) is ErrorCode.ALREADY_COMMITTED
    assert code_of(again.end(rows=1)) is ErrorCode.NONE
    assert code_of(again.end(rows=2)) is ErrorCode.REPLAY_MISMATCH
    older = Txn(client, version=3)
    assert code_of(older.init()) is ErrorCode.PRODUCER_FENCED
    assert code_of(older.end()) is ErrorCode.PRODUCER_FENCED
    twin = Txn(client, version=4, execution_id="second write of the batch")
    assert code_of(twin.init()) is ErrorCode.TXN_CONFLICT
    assert code_of(txn.end(decision=transaction_pb2.TRANSACTION_DECISION_ABORT)) is ErrorCode.ALREADY_COMMITTED
    assert code_of(txn.end()) is ErrorCode.NONE
    assert read(client, tp) == [b"row"]


@pytest.mark.parametrize("settings", [{"auto_create_topics_enable": True}], indirect=True)
def test_the_coordinators_log_does_not_exist_for_clients(client: RawClient) -> None:
    Txn(client).member()
    name, tp = COORDINATOR.name, TopicIdPartition(COORDINATOR.id, 0)
    assert not client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True)).topics
    assert code_of(client.metadata(name).topics[0]) is ErrorCode.INVALID_TOPIC  # it cannot be created either
    assert code_of(client.call("Metadata", metadata_pb2.MetadataRequest(topic_ids=[tp.topic_id])).topics[0]) is UNKNOWN_ID
    assert not client.call("DescribeTopics", topics_pb2.DescribeTopicsRequest()).topics
    assert code_of(client.describe(name)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deleted = client.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=[name]))
    assert code_of(deleted.results[0]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    grow = topics_pb2.CreatePartitionsRequest(name=name, total_count=2)
    assert code_of(client.call("CreatePartitions", grow).result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    alter = topics_pb2.AlterTopicConfigsRequest(name=name, set={"retention.ms": "1"})
    assert code_of(client.call("AlterTopicConfigs", alter).result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(client.delete_records(tp, -1)) is UNKNOWN_ID
    assert code_of(client.list_offset(tp, offsets_pb2.OFFSET_SPEC_EARLIEST)) is UNKNOWN_ID
    assert code_of(client.producer().produce(tp, plain_batch(tp, b"forged"))) is UNKNOWN_ID
    assert code_of(client.fetcher().fetch({tp: 0})[0].results[0]) is UNKNOWN_ID


def test_the_figures_of_transactions(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    for version in range(2):
        txn = Txn(client, version=version)
        txn.member().write(tp, b"row")
        txn.commit()
    Txn(client, name="other").member()
    failed = Txn(client, version=2)
    failed.member()
    failed.abort()
    found = running.run(families(running.daemon.broker, stream_count=0))
    figures = {sample.name.removeprefix("brokerd_"): sample.value for family in found for sample in family.samples}
    assert (figures["open_transaction_count"], figures["open_member_count"], figures["prepared_transaction_count"]) == (1, 1, 0)
    assert (figures["transactional_id_count"], figures["topic_count"]) == (2, 1)
    assert figures["oldest_open_transaction_age_seconds"] >= 0
    assert [figures[f"{name}_transactions_total"] for name in ("committed", "aborted", "expired")] == [2, 1, 0]


def test_operators_see_who_is_open_and_abort_it(client: RawClient) -> None:
    tps = client.create_topic(partitions=2)
    txn = Txn(client, name="stuck", version=7)
    member = txn.member()
    member.write(tps[1], b"row")
    Txn(client, name="empty").commit(rows=0)
    listed = client.call("ListTransactions", transaction_pb2.ListTransactionsRequest()).transactions
    assert [(one.transactional_id, one.state, one.last_version, one.txn_version, one.open_members) for one in listed] == [
        ("empty", transaction_pb2.TRANSACTION_STATE_EMPTY, 0, -1, 0),
        ("stuck", transaction_pb2.TRANSACTION_STATE_OPEN, -1, 7, 1),
    ]
    only = transaction_pb2.ListTransactionsRequest(state=transaction_pb2.TRANSACTION_STATE_OPEN, prefix="st", after="a")
    assert [one.transactional_id for one in client.call("ListTransactions", only).transactions] == ["stuck"]
    described = client.call("DescribeTransaction", transaction_pb2.DescribeTransactionRequest(transactional_id="stuck"))
    (one,) = described.members
    assert (one.member_id, one.producer_id, one.txn_version, one.owner) == (member.member_id, member.producer_id, 7, "test")
    assert [(held.topic, held.partition, held.first_offset) for held in one.partitions] == [("t", 1, 0)]
    (hanging,) = client.call("FindHangingTransactions", transaction_pb2.FindHangingTransactionsRequest()).transactions
    assert (hanging.transactional_id, hanging.producer_id, hanging.partition.partition) == ("stuck", member.producer_id, 1)
    waiting = transaction_pb2.FindHangingTransactionsRequest(idle_ms=3_600_000)
    assert not client.call("FindHangingTransactions", waiting).transactions
    aborted = client.call("AbortTransaction", transaction_pb2.AbortTransactionRequest(transactional_id="stuck"))
    assert aborted.aborted_members == 1
    assert client.latest(tps[1], is_committed=True) == 2
    assert read(client, tps[1]) == []
    assert code_of(txn.end()) is ErrorCode.TXN_ABORTED


def test_a_decision_in_pages(client: RawClient) -> None:
    tps = client.create_topic(partitions=3)
    txn = Txn(client)
    for tp in tps:
        txn.member().write(tp, b"row")
    for page, member in enumerate(txn.members):
        assert read(client, tps[0]) == []
        txn.commit([member], page=page, more_pages=page < 2, rows=3)
    assert [read(client, tp) for tp in tps] == [[b"row"]] * 3
    assert code_of(txn.end(page=1, rows=3)) is ErrorCode.NOT_READY


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("transactional_id", {"transactional_id": "x" * 250}),
    ("transactional_id", {"transactional_id": "a\nb"}),
    ("txn_version", {"txn_version": -1}),
    ("execution_id", {"execution_id": ""}),
    ("execution_id", {"execution_id": "\x1b[2J"}),
    ("run_id", {"run_id": "\0"}),
    ("owner", {"owner": "o" * 250}),
    ("member_id", {"member_id": b"x"}),
    ("producer_id", {"producer_id": 5}),
]


@pytest.mark.parametrize(("field", "fields"), HOSTILE)
def test_a_malformed_init_names_its_field(client: RawClient, field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Txn(client).init(**fields)
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert status.details().startswith(f"{field}: ")


HOSTILE_ENDS: list[tuple[str, dict[str, Any]]] = [
    ("decision", {"decision": 0}),
    ("decision", {"decision": 9}),
    ("members.records", {"members": [transaction_pb2.TransactionMember(records=-1)]}),
    ("members.producer_epoch", {"members": [transaction_pb2.TransactionMember(producer_epoch=2**15)]}),
    ("partitions.topic_id", {"partitions": [transaction_pb2.TransactionPartition(topic_id=b"x")]}),
    ("partitions", {"partitions": [transaction_pb2.TransactionPartition(topic_id=b"x" * 16)] * 2}),
    ("members", {"members": [transaction_pb2.TransactionMember()] * 2_001}),
    ("totals.rows", {"totals": transaction_pb2.TransactionTotals(rows=-1)}),
    ("page", {"page": -1}),
    ("EndTransactionRequest", {"members": [transaction_pb2.TransactionMember(producer_id=2**62, records=2**62)] * 120_000}),
]


@pytest.mark.parametrize(("field", "fields"), HOSTILE_ENDS)
def test_a_malformed_decision_names_its_field(client: RawClient, field: str, fields: dict[str, Any]) -> None:
    right: dict[str, Any] = {"transactional_id": "id", "execution_id": "e", "decision": 1}
    asked = transaction_pb2.EndTransactionRequest(**right | fields)
    code, details = client.status("EndTransaction", asked)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(field)


@pytest.mark.parametrize("settings", [{"max_open_members": 5, "max_transactional_ids": 2}], indirect=True)
def test_limits_of_members_and_ids_and_time_outs(client: RawClient) -> None:
    txn = Txn(client)
    codes = [code_of(txn.init()) for _ in range(5)]
    assert codes == [ErrorCode.NONE] * 4 + [ErrorCode.POLICY_VIOLATION]  # four fifths
    assert code_of(Txn(client, name="second").init()) is ErrorCode.POLICY_VIOLATION
    assert code_of(txn.init(timeout_ms=3_600_001)) is ErrorCode.INVALID_REQUEST
    txn.abort()
    commit = txn.end(rows=0)
    assert code_of(commit) is ErrorCode.NONE


def test_a_member_writes_nothing_else_and_nobody_writes_as_it(client: RawClient) -> None:
    (tp,) = client.create_topic()
    txn = Txn(client)
    member = txn.member()
    stream = client.producer()
    plain = values_batch(tp, producer_id=member.producer_id, producer_epoch=0, base_sequence=0)
    assert code_of(stream.produce(tp, plain)) is ErrorCode.INVALID_TXN_STATE
    for acks in (1, 0):
        stream.post([(tp, member.batch(tp, [b"x"]))], acks=acks)
    assert code_of(stream.answer().results[0]) is ErrorCode.INVALID_TXN_STATE
    for fields in ({"transactional_id": "another"}, {"member_id": b"a" * 16}):
        stream.post([(tp, member.batch(tp, [b"x"]))], **fields)
        assert code_of(stream.answer().results[0]) is ErrorCode.INVALID_TXN_STATE
    assert client.latest(tp) == 0
    member.write(tp, b"row")
    txn.commit()
    assert code_of(stream.produce(tp, member.batch(tp, [b"zombie"]))) is ErrorCode.INVALID_TXN_STATE
