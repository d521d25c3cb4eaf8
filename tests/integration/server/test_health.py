"""Goal: a probe learns whether the broker serves, whatever the number of clients, and whoever sends the probe."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.raw_http2 import RawHttp2
from brokerd.wire.methods import SERVICE
from brokerd.wire.v1 import metadata_pb2
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.raw_client import RawClient
from tests.support.wait import DEADLINE_S, wait_until

_SCRAPES = 16
_ALL = 64  # connections


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def is_serving_over_grpc(client: RawClient) -> bool:
    health: Any = health_pb2_grpc.HealthStub(client.channel)
    try:
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return False
        raise
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("settings", [{"max_connections": 1, "metrics_port": 0}], indirect=True)
def test_a_full_broker_is_not_taken_for_a_dead_one(running: RunningDaemon, client: RawClient) -> None:
    assert is_serving_over_grpc(client)
    with RawClient(running.address) as probe:
        assert not is_serving_over_grpc(probe), "over gRPC a probe is a connection like others"
    assert get(running.daemon.metrics_port, "/health") == (200, "serving\n")
    assert client.call("GetServerInfo", metadata_pb2.GetServerInfoRequest()).node_id >= 0


@pytest.mark.parametrize("settings", [{"metrics_port": 0}], indirect=True)
def test_a_broker_that_stops_is_not_healthy(running: RunningDaemon) -> None:
    port = running.daemon.metrics_port
    assert get(port, "/health") == (200, "serving\n")
    running.daemon.broker.begin_stop()
    assert get(port, "/health") == (503, "not serving\n")


@pytest.mark.parametrize("settings", [{"metrics_port": 0}], indirect=True)
def test_connections_that_say_nothing_keep_no_probe_out(running: RunningDaemon) -> None:
    port = running.daemon.metrics_port
    with contextlib.ExitStack() as silent:
        for _ in range(_SCRAPES):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        wait_until(lambda: get(port, "/metrics")[0] == 503, what="more connections than scrapes may have")
        assert get(port, "/health") == (200, "serving\n")
    wait_until(lambda: get(port, "/metrics")[0] == 200, what="room for a scrape")


@pytest.mark.parametrize("settings", [{"metrics_port": 0}], indirect=True)
def test_however_many_say_nothing_a_probe_is_answered(running: RunningDaemon) -> None:
    port = running.daemon.metrics_port
    with contextlib.ExitStack() as silent:
        for _ in range(_ALL + 1):
            last = silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert get(port, "/health") == (200, "serving\n")
        last.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert last.recv(12) == b"HTTP/1.1 200", "the oldest are ended, and nobody else"


def test_a_stranger_may_ask_for_health_and_for_nothing_else(tmp_path: Path, auth_file: Path) -> None:
    with running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=0, auth_file=str(auth_file)) as running:
        assert get(running.daemon.metrics_port, "/health") == (200, "serving\n")
        assert get(running.daemon.metrics_port, "/metrics")[0] == 401
        assert get(running.daemon.metrics_port, "/health/x")[0] == 401


def test_a_watch_that_is_not_read_silences_no_other(running: RunningDaemon, client: RawClient) -> None:
    asked = health_pb2.HealthCheckRequest(service=SERVICE)
    with contextlib.closing(RawHttp2(running.daemon.port, window=0)) as unread:
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        unread.send_message(unread.call("/grpc.health.v1.Health/Watch"), asked.SerializeToString())
        assert unread.ping(DEADLINE_S)
        assert is_serving_over_grpc(client), "by now the first watch is being answered"
        watch = health.Watch(asked, timeout=DEADLINE_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        unknown = health.Watch(health_pb2.HealthCheckRequest(service="other"), timeout=DEADLINE_S)
        assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        running.stop()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_service_that_there_is_not_has_no_health(client: RawClient) -> None:
    health: Any = health_pb2_grpc.HealthStub(client.channel)
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
