"""Transactions over the wire: what readers see before, at and after each decision, and the answers of the table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from brokerd.datadir.topic_store import TRANSACTION_STATE
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2, transaction_pb2
from tests.support.raw_client import RawClient
from tests.support.raw_transactions import Txn, last_stable_offset, read
from tests.support.records import key_values, new_batch

UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID


def code_of(response: Any) -> ErrorCode:
    """The error's code; NONE if there is none."""
    return ErrorCode(response.error.code) if response.HasField("error") else ErrorCode.NONE


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
    assert [last_stable_offset(client, tp) for tp in tps] == [0, 0, 0]
    txn.commit()
    assert [read(client, tp) for tp in tps] == [[b"row 0"], [b"row 1"], [b"row 2"]]
    assert [last_stable_offset(client, tp) for tp in tps] == [2, 2, 2]


def test_what_is_aborted_never_becomes_visible(client: RawClient) -> None:
    (tp,) = client.create_topic()
    client.producer().produce(tp, plain_batch(tp, b"before"))
    txn = Txn(client)
    txn.member().write(tp, b"void")
    txn.abort()
    client.producer().produce(tp, plain_batch(tp, b"after"))
    assert read(client, tp) == [b"before", b"after"]
    assert last_stable_offset(client, tp) == 4
    assert txn.members[0].send(tp, b"too late") is ErrorCode.INVALID_TXN_STATE
    assert txn.members[0].heartbeat() is ErrorCode.INVALID_TXN_STATE


def test_the_losers_of_a_commit_end_with_it(client: RawClient) -> None:
    (tp,) = client.create_topic()
    txn = Txn(client)
    winner, twin = txn.member(), txn.member()
    winner.write(tp, b"won")
    twin.write(tp, b"lost")
    txn.commit([winner])
    assert read(client, tp) == [b"won"]
    assert twin.send(tp, b"more") is ErrorCode.INVALID_TXN_STATE


def test_the_answers_about_a_committed_version(client: RawClient) -> None:
    (tp,) = client.create_topic()
    txn = Txn(client, version=4)
    txn.member().write(tp, b"row")
    txn.commit()
    txn.commit()  # the answer may have been lost
    again = Txn(client, version=4, execution_id="another", run_id="another run")
    told = again.init()
    assert code_of(told) is ErrorCode.ALREADY_COMMITTED
    assert (told.last_version, told.last_execution_id, told.last_run_id) == (4, "execution-1", "run-1")
    assert code_of(again.end(rows=1)) is ErrorCode.NONE
    assert code_of(again.end(rows=2)) is ErrorCode.REPLAY_MISMATCH
    older = Txn(client, version=3)
    assert code_of(older.init()) is ErrorCode.PRODUCER_FENCED
    assert code_of(older.end()) is ErrorCode.PRODUCER_FENCED
    twin = Txn(client, version=4, execution_id="second write of the batch")
    assert code_of(twin.init()) is ErrorCode.TXN_CONFLICT
    assert code_of(txn.end(decision=transaction_pb2.TRANSACTION_DECISION_ABORT)) is ErrorCode.ALREADY_COMMITTED
    assert txn.end().last_version == 4
    assert read(client, tp) == [b"row"]


def test_a_member_asked_for_twice_is_one(client: RawClient) -> None:
    txn = Txn(client)
    first, again = txn.init(b"m" * 16), txn.init(b"m" * 16)
    assert first.producer_id == again.producer_id
    assert txn.init().producer_id != first.producer_id


@pytest.mark.parametrize("settings", [{"auto_create_topics_enable": True}], indirect=True)
def test_the_coordinators_log_does_not_exist_for_clients(client: RawClient) -> None:
    Txn(client).member()
    name, tp = TRANSACTION_STATE.name, TopicIdPartition(TRANSACTION_STATE.id, 0)
    assert not client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True)).topics
    assert code_of(client.metadata(name).topics[0]) is ErrorCode.INVALID_TOPIC  # it cannot be created either
    assert code_of(client.call("Metadata", metadata_pb2.MetadataRequest(topic_ids=[tp.topic_id])).topics[0]) is UNKNOWN_ID
    assert not client.call("DescribeTopics", topics_pb2.DescribeTopicsRequest()).topics
    assert code_of(client.describe(name)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for request in (topics_pb2.DeleteTopicsRequest(names=[name]), topics_pb2.DeleteTopicsRequest(topic_ids=[tp.topic_id])):
        assert code_of(client.call("DeleteTopics", request).results[0]) in (UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    grow = topics_pb2.CreatePartitionsRequest(name=name, total_count=2)
    assert code_of(client.call("CreatePartitions", grow).result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    alter = topics_pb2.AlterTopicConfigsRequest(name=name, set={"retention.ms": "1"})
    assert code_of(client.call("AlterTopicConfigs", alter).result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deletion = topics_pb2.PartitionDeleteRecords(topic_id=tp.topic_id, partition=0, before_offset=-1)
    assert code_of(client.call("DeleteRecords", topics_pb2.DeleteRecordsRequest(partitions=[deletion])).results[0]) is UNKNOWN_ID
    earliest = offsets_pb2.PartitionListOffsets(topic_id=tp.topic_id, partition=0, spec=offsets_pb2.OFFSET_SPEC_EARLIEST)
    assert code_of(client.call("ListOffsets", offsets_pb2.ListOffsetsRequest(partitions=[earliest])).results[0]) is UNKNOWN_ID
    assert code_of(client.producer().produce(tp, plain_batch(tp, b"forged"))) is UNKNOWN_ID
    assert code_of(client.fetcher().fetch({tp: 0})[0].results[0]) is UNKNOWN_ID
