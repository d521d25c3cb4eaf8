"""Goal: no method reads a message before its sender is authenticated, and no mixture of requests reveals hidden topics.

Method: raw HTTP/2 calls that send headers and no message, so that the response cannot depend on the message.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.raw_http2 import RawHttp2
from brokerd.wire.methods import STREAMS, UNARY, UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import metadata_pb2
from tests.integration.security.conftest import ClientAs, with_token
from tests.integration.security.test_tls import Papers, tls_daemon
from tests.support.child import resident_bytes
from tests.support.daemon import DaemonProcess, RunningDaemon
from tests.support.identities import TOKENS, UNKNOWN_TOKEN
from tests.support.wait import DEADLINE_S

SERVICE_METHODS = [f"/brokerd.wire.v1.Broker/{name}" for name in (*UNARY, *STREAMS)]
UNAUTHENTICATED = str(grpc.StatusCode.UNAUTHENTICATED.value[0])


@pytest.mark.parametrize("token", [None, UNKNOWN_TOKEN])
@pytest.mark.parametrize("path", SERVICE_METHODS)
def test_a_stranger_is_refused_before_his_message_comes(guarded: RunningDaemon, path: str, token: str | None) -> None:
    with closing(RawHttp2(guarded.daemon.port, token=token)) as stranger:
        stream = stranger.call(path)
        assert stranger.status_of(stream, DEADLINE_S) == UNAUTHENTICATED


def test_requests_of_strangers_take_no_memory(tmp_path: Path, auth_file: Path) -> None:
    with DaemonProcess(tmp_path / "data", settings={"auth.file": auth_file}) as daemon, ExitStack() as stack:
        with closing(with_token(daemon.address, TOKENS["boss"]).channel) as channel:
            metadata: Any = channel.unary_unary(UNARY["Metadata"].path)
            metadata(b"", timeout=DEADLINE_S)
            before_bytes = resident_bytes(daemon.pid, most=True)
            for _ in range(10):
                stranger = stack.enter_context(closing(RawHttp2(daemon.port)))
                for name in UNARY:
                    stream = stranger.call(UNARY[name].path)
                    stranger.send_message(stream, b"\x0a\x00" * (UNARY_REQUEST_MAX_BYTES // 2))
                stranger.pump_until_all_ended(DEADLINE_S)
            metadata(b"", timeout=DEADLINE_S)
        assert resident_bytes(daemon.pid, most=True) - before_bytes < 60_000_000
        stack.close()
        assert daemon.terminate() == 0


def test_a_certificate_without_a_principal_may_call_nothing(tmp_path: Path, auth_file: Path) -> None:
    papers = Papers(tmp_path)
    stranger = papers.authority.issue("stranger", "stranger.example")
    with tls_daemon(
        tmp_path,
        papers.broker,
        auth_file=str(auth_file),
        ssl_client_ca_file=papers.authority.ca_file,
        ssl_client_auth="required",
    ) as running:
        outcomes = []
        for paper in (papers.client, stranger):
            credentials = grpc.ssl_channel_credentials(
                Path(papers.authority.ca_file).read_bytes(),
                Path(paper.key_file).read_bytes(),
                Path(paper.certificate_file).read_bytes(),
            )
            with grpc.secure_channel(f"localhost:{running.daemon.port}", credentials) as channel:
                outcomes.append(code_of(channel.unary_unary(UNARY["Metadata"].path)))
        assert outcomes == [grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED]


def code_of(method: Any) -> grpc.StatusCode:
    try:
        method(b"", timeout=DEADLINE_S)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_hidden_topics_are_in_no_mixture_of_all_and_some(client_as: ClientAs) -> None:
    boss, outsider = client_as(TOKENS["boss"]), client_as(TOKENS["outsider"])
    (tp,) = boss.create_topic("mixture")
    for asked in (
        {"topics": ["none"]},
        {"topics": ["mixture"]},
        {"topic_ids": [tp.topic_id]},
        {"topics": ["none", "elsewhere"], "topic_ids": [b"n" * 16]},
    ):
        code, _ = outsider.status("Metadata", metadata_pb2.MetadataRequest(all_topics=True, **asked))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    listed = outsider.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True)).topics
    assert "mixture" not in [topic.name for topic in listed]


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("InitProducerId", {"producer_id": 0, "producer_epoch": -5}, "producer_epoch"),
        ("ListOffsets", {"partitions": [{"topic_id": b"n" * 16, "spec": 99}]}, "partitions.spec"),
        ("DeleteRecords", {"partitions": [{"topic_id": b"short"}]}, "partitions.topic_id"),
        ("AlterTopicConfigs", {"name": "none", "set": {"a": "1"}, "unset": ["a"]}, "unset"),
        ("AlterPartitionReassignments", {"partitions": [{"name": "none", "replicas": [1, 2, 1]}]}, "partitions.replicas"),
        ("AlterPartitionReassignments", {"partitions": [{"name": "none", "partition": -1}]}, "partitions.partition"),
        ("DrainNode", {"node_id": -1}, "node_id"),
        ("ElectUncleanLeader", {"name": "none", "partition": -1}, "partition"),
    ],
)
def test_what_is_malformed_is_so_whoever_asks_for_whatever(
    client_as: ClientAs, name: str, fields: dict[str, Any], field: str
) -> None:
    """The whole request is validated before any right is looked up, so the response does not reveal what exists."""
    for who in ("boss", "outsider"):
        code, details = client_as(TOKENS[who]).status(name, UNARY[name].request(**fields))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(f"{field}: ")
