"""The audit trail of a broker: refusals on calls and streams, changes of topics and records, reloads, unauthenticated clients."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest

from brokerd.wire.v1 import metadata_pb2, topics_pb2, transaction_pb2
from tests.integration.security.conftest import with_token
from tests.support.daemon import running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import TOKENS, UNKNOWN_TOKEN
from tests.support.raw_client import values_batch
from tests.support.raw_transactions import Txn


def test_who_was_refused_what_and_who_changed_what(tmp_path: Path, auth_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
        with_token(running.address, TOKENS["writer"]) as writer,
        with_token(running.address, TOKENS["outsider"]) as outsider,
        with_token(running.address, UNKNOWN_TOKEN) as stranger,
    ):
        (tp,) = boss.create_topic("events-1")
        assert boss.producer().produce(tp, values_batch(tp)).base_offset == 0
        boss.call(
            "AlterTopicConfigs",
            topics_pb2.AlterTopicConfigsRequest(name="events-1", set={"retention.ms": "5"}, unset=["segment.ms"]),
        )
        boss.call("AlterTopicConfigs", topics_pb2.AlterTopicConfigsRequest(name="events-1", set={"retention.ms": "six"}))
        boss.call("CreatePartitions", topics_pb2.CreatePartitionsRequest(name="events-1", total_count=9, validate_only=True))
        boss.call("CreatePartitions", topics_pb2.CreatePartitionsRequest(name="events-1", total_count=2))
        for _ in range(2):  # the second call has nothing left to delete
            boss.delete_records(tp, 1)
        writer.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["events-1"]))
        producer = outsider.producer()
        producer.epoch_of = lambda _tp: 1  # makes no request of its own
        producer.produce(tp, values_batch(tp))
        with pytest.raises(grpc.RpcError):
            stranger.call("GetServerInfo", metadata_pb2.GetServerInfoRequest())
        outsider.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True))
        running.run(running.daemon.reload())
        boss.delete_topic("events-1")
    lines = [record.getMessage() for record in caplog.records if record.name == "brokerd.audit"]
    assert [line.partition(" (from")[0].partition(": rights are")[0] for line in lines] == [
        "boss created topic 'events-1'",
        "boss altered topic 'events-1': retention.ms=5",
        "boss altered topic 'events-1': segment.ms unset",
        "boss gave topic 'events-1' 2 partitions",
        "boss deleted records of events-1-0 below offset 1",
        "writer refused: principal 'writer' may not administer topic 'events-1'",
        "outsider refused: principal 'outsider' may not see topic 'events-1'",
        "ipv4:127.0.0.1 refused: the token is not known to this broker: check auth.token, or auth.token.file",
        "read again: 4 principals, 0 streams ended",
        "boss deleted topic 'events-1'",
    ]
    assert all("(from ipv4:127.0.0.1:" in line for line in lines if line.startswith("boss"))


def test_who_tried_to_use_a_transactional_id_of_others(tmp_path: Path, auth_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["writer"]) as writer,
        with_token(running.address, TOKENS["outsider"]) as outsider,
    ):
        own, theirs = Txn(writer, name="etl"), Txn(outsider, name="etl")
        own.member()
        theirs.init()
        theirs.end(own.members, decision=transaction_pb2.TRANSACTION_DECISION_ABORT)
        beat = transaction_pb2.HeartbeatRequest(
            transactional_id="etl", execution_id=own.execution_id, member_id=own.members[0].member_id
        )
        outsider.call("Heartbeat", beat)
        outsider.call("AbortTransaction", transaction_pb2.AbortTransactionRequest(transactional_id="etl"))
        outsider.call("AbortTransaction", transaction_pb2.AbortTransactionRequest(transactional_id="nobodys"))
        writer.call("ForgetTransactionalId", transaction_pb2.ForgetTransactionalIdRequest(transactional_id="etl"))
    assert [record.getMessage().partition(" (from")[0].partition(": use ")[0] for record in caplog.records] == [
        *["outsider refused: transactional id 'etl' belongs to another principal"] * 3,
        "outsider refused: principal 'outsider' may not see transactional id 'etl'",
        "writer refused: to have transactional id 'etl' forgotten needs ADMIN on every topic: ask an operator",
    ]


def test_a_topic_that_is_created_by_naming_it_has_its_line(
    tmp_path: Path, auth_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file), auto_create_topics_enable=True) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
        with_token(running.address, TOKENS["writer"]) as writer,
    ):
        for client in (writer, boss, boss):
            client.call("Metadata", metadata_pb2.MetadataRequest(topics=["events-1", "events-2"]))
    lines = [record.getMessage().partition(" (from")[0].partition(": ")[0] for record in caplog.records]
    assert [line for line in lines if line.startswith(("boss", "writer"))] == [
        "writer refused",
        "writer refused",
        "boss created topic 'events-1'",
        "boss created topic 'events-2'",
    ]
