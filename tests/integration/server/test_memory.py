"""Requests that begin and never end: the daemon's memory stays bounded, and honest clients are served again.

Method: a daemon process with a low max.memory.bytes; raw HTTP/2 clients that send all of a large request but its last byte.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest

from benchmarks.raw_http2 import RawHttp2
from brokerd.config.broker import BrokerConfig
from brokerd.wire.methods import FETCH, PRODUCE, UNARY
from tests.support.child import resident_bytes
from tests.support.daemon import DaemonProcess
from tests.support.victim import Victim, outcome
from tests.support.wait import wait_until

LIMIT_BYTES = 250_000_000
# The bytes that arrive between two checks depend on the machine. The bound is far above them, and far below an unbounded flood.
BOUND_BYTES = 800_000_000
REQUEST_BYTES = BrokerConfig().socket_request_max_bytes
LARGE, TOO_LARGE = bytes(REQUEST_BYTES - 100), bytes(REQUEST_BYTES)  # without their last bytes


def begin(port: int, path: str, message: bytes, *, streams: int = 1) -> RawHttp2:
    """A client with `streams` open requests. When pumped, it sends `message` on each of them, but never the last byte."""
    client = RawHttp2(port)
    for _ in range(streams):
        client.send_message(client.call(path), message, announced_bytes=len(message) + 1)
    return client


@pytest.mark.parametrize(
    ("path", "clients", "streams"), [(PRODUCE, 80, 1), (FETCH, 80, 1), (UNARY["Metadata"].path, 80, 1), (PRODUCE, 1, 80)]
)
def test_unfinished_requests_take_bounded_memory(tmp_path: Path, path: str, clients: int, streams: int) -> None:
    with DaemonProcess(tmp_path / "data", settings={"max.memory.bytes": LIMIT_BYTES}) as daemon, ExitStack() as stack:
        victim = Victim(daemon)
        victim.works()
        hostile = [stack.enter_context(closing(begin(daemon.port, path, LARGE, streams=streams))) for _ in range(clients)]

        def is_done() -> bool:
            sending = [one for one in hostile if one.is_sending and not one.is_closed]
            for one in sending:
                one.pump()
            return not sending

        wait_until(is_done, what="all have sent what they may")
        assert any(one.is_closed for one in hostile)
        assert resident_bytes(victim.daemon.pid, most=True) < BOUND_BYTES < clients * streams * REQUEST_BYTES * 2 // 3
        wait_until(lambda: "memory is short" in victim.log_text())
        stack.close()
        wait_until(lambda: resident_bytes(victim.daemon.pid) < LIMIT_BYTES, what="memory is not short any more")
        wait_until(
            lambda: outcome(lambda: victim.unary("GetServerInfo", b""), "") is grpc.StatusCode.OK,
            what="its connection was closed with all others, and it connects again",
        )
        victim.works()
        victim.channel.close()
        assert daemon.terminate() == 0


def test_a_request_that_announces_too_much_is_refused_before_it_comes(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon, ExitStack() as stack:
        victim = Victim(daemon)
        victim.works()
        before_bytes = resident_bytes(victim.daemon.pid, most=True)
        hostile = [stack.enter_context(closing(begin(daemon.port, PRODUCE, TOO_LARGE))) for _ in range(20)]
        for one in hostile:
            for _ in range(10):
                one.pump()
        stack.close()
        assert max(one.sent_bytes for one in hostile) < 2_000_000
        victim.works()
        assert resident_bytes(victim.daemon.pid, most=True) - before_bytes < 100_000_000 < 20 * REQUEST_BYTES // 2
        victim.channel.close()
