"""Hostile clients on the port: other protocols, oversized requests, names that are paths. Random bytes and fields: tests/fuzz.

Goal: the daemon survives, returns no internal error, writes nothing outside its directory, and does not grow. Method: one daemon
process takes every kind of abuse; after each, an honest client still writes and reads. BROKERD_TEST_SCALE multiplies the random
cases.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.wire.methods import FETCH, PRODUCE, SERVICE, UNARY
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2, transaction_pb2
from tests.support.child import resident_bytes
from tests.support.daemon import DaemonProcess
from tests.support.hostile_messages import HOSTILE_NAMES
from tests.support.scale import TEST_SCALE
from tests.support.victim import (
    CALL_TIMEOUT_S,
    FAULTS_OF_THE_CLIENT,
    SETTINGS,
    Victim,
    files_outside,
    status_of,
)

GROWTH_MAX_BYTES = 200_000_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory above the data directory; no file may appear in it."""
    home = tmp_path_factory.mktemp("home")
    (home / "level").mkdir()
    return home


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[Victim]:
    with DaemonProcess(home / "level" / "data", settings=SETTINGS) as process:
        victim = Victim(process)
        victim.works()
        yield victim
        victim.close()
        assert process.terminate() == 0


@pytest.fixture
def victim(daemon: Victim, home: Path) -> Iterator[Victim]:
    """The daemon before one kind of abuse; afterwards it must be equally healthy."""
    before_bytes, before_files = resident_bytes(daemon.daemon.pid), files_outside(home)
    log_size = len(daemon.log_text())
    yield daemon
    daemon.works()
    assert resident_bytes(daemon.daemon.pid) - before_bytes < GROWTH_MAX_BYTES
    assert files_outside(home) == before_files
    told = daemon.log_text()[log_size:]
    assert "Traceback" not in told, told[-4_000:]
    assert "internal error" not in told, told[-4_000:]
    assert len(told) < 200_000, "the log was flooded"


def open_socket(victim: Victim) -> socket.socket:
    return socket.create_connection(("127.0.0.1", victim.daemon.port), timeout=CALL_TIMEOUT_S)


def drain(connection: socket.socket) -> None:
    """Reads until the broker closes the connection or is silent for a moment."""
    connection.settimeout(0.05)
    with contextlib.suppress(OSError):
        while connection.recv(65_536):
            pass


def test_other_protocols_on_the_port(victim: Victim) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    openings = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /brokerd.wire.v1.Broker/Produce HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 10_000,
        b"\x00\x00\x00\x12\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01xadmin",  # Kafka's ApiVersions
        b"SSH-2.0-OpenSSH_9.0\r\n",
        preface,
        preface + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",  # a frame of 16 MiB that never comes
        preface + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x40\x00\x01\x04\x00\x00\x00\x01" + b"\x82" * 16_384,
        bytes(100_000),
        b"\xff" * 100_000,
        b"",
    ]
    for data in openings:
        with open_socket(victim) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
            drain(connection)


def test_a_tls_client_on_the_plain_port(victim: Victim) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for _ in range(5):
        with open_socket(victim) as connection, pytest.raises(OSError):
            context.wrap_socket(connection, server_hostname="localhost")


def test_many_connections_that_say_nothing(victim: Victim) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(open_socket(victim))
        victim.works()


def test_names_that_are_paths_create_nothing(victim: Victim) -> None:
    for name in HOSTILE_NAMES:
        if name == "-rf":
            continue  # an odd but valid name: directories are named by id
        request = topics_pb2.CreateTopicsRequest(topics=[{"name": name, "partitions": 1}])
        answer = topics_pb2.CreateTopicsResponse.FromString(victim.unary("CreateTopics", request.SerializeToString()))
        assert [result.error.code for result in answer.results] == [6], name
        assert len(answer.results[0].error.message) < 1_000
        for method, other in (
            ("Metadata", metadata_pb2.MetadataRequest(topics=[name])),
            ("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=[name])),
            ("DescribeTopics", topics_pb2.DescribeTopicsRequest(names=[name])),
        ):
            told = UNARY[method].response.FromString(victim.unary(method, other.SerializeToString()))
            assert any(entry.error.code for entry in told.ListFields()[-1][1]), (method, name)


AMPLIFIERS = {
    "CreateTopics": b"\x0a\x00",
    "Metadata": b"\x0a\x00",
    "DescribeTopics": b"\x0a\x00",
    "DeleteRecords": b"\x0a\x00",
    "ListOffsets": b"\x12\x00",
    "EndTransaction": b"\x32\x00",
    PRODUCE: b"\x3a\x00",
    FETCH: b"\x42\x00",
}


@pytest.mark.parametrize("count", [900_000, 8_000_000])
@pytest.mark.parametrize("name", AMPLIFIERS)
def test_a_message_of_millions_of_empty_fields_is_not_unfolded(victim: Victim, name: str, count: int) -> None:
    data = AMPLIFIERS[name] * count
    before_bytes = resident_bytes(victim.daemon.pid, most=True)
    if name in UNARY:
        with pytest.raises(grpc.RpcError) as caught:
            victim.unary(name, data)
        assert caught.value.code() in FAULTS_OF_THE_CLIENT
    else:
        assert status_of(victim, name, [data]) is grpc.StatusCode.INVALID_ARGUMENT
    assert resident_bytes(victim.daemon.pid, most=True) - before_bytes < GROWTH_MAX_BYTES


def test_a_message_beyond_the_largest_is_refused_with_the_limit(victim: Victim) -> None:
    channel: Any = grpc.insecure_channel(victim.daemon.address, options=[("grpc.max_send_message_length", -1)])
    with channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(PRODUCE)(iter([bytes(45_000_000)]), timeout=CALL_TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(BrokerConfig().socket_request_max_bytes) in (caught.value.details() or "")


def test_a_compression_bomb_of_grpc_is_refused(victim: Victim) -> None:
    channel: Any = grpc.insecure_channel(
        victim.daemon.address, options=[("grpc.max_send_message_length", -1)], compression=grpc.Compression.Gzip
    )
    before_bytes = resident_bytes(victim.daemon.pid, most=True)
    with channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(PRODUCE)(iter([bytes(100_000_000)]), timeout=CALL_TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert resident_bytes(victim.daemon.pid, most=True) - before_bytes < 20_000_000


def test_methods_that_do_not_exist(victim: Victim) -> None:
    for path in ("/x/y", f"/{SERVICE}/Nothing", f"/{SERVICE}/../Produce", "/grpc.health.v1.Health/Nothing"):
        with pytest.raises(grpc.RpcError) as caught:
            victim.channel.unary_unary(path)(b"x", timeout=CALL_TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_abuse_over_and_over_leaves_nothing_behind(victim: Victim) -> None:
    rng = random.Random(55)
    unknown = offsets_pb2.ListOffsetsRequest(partitions=[{"topic_id": bytes(16), "spec": 1}]).SerializeToString()
    producer = transaction_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1).SerializeToString()
    sizes = []
    for _ in range(4):
        for _ in range(100 * TEST_SCALE):
            status_of(victim, PRODUCE, [rng.randbytes(200)])
            status_of(victim, FETCH, [rng.randbytes(200)])
            victim.unary("ListOffsets", unknown)
            victim.unary("InitProducerId", producer)
        sizes.append(resident_bytes(victim.daemon.pid))
    assert sizes[-1] - sizes[0] < 10_000_000, sizes
