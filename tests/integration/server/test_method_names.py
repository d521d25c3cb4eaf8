"""A call to a method whose name is not UTF-8 would end grpc.aio's server. Here it is handled as an unknown method."""

from __future__ import annotations

import asyncio
import codecs
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.server.service import accept_undecodable_names
from brokerd.wire.methods import SERVICE, UNARY
from tests.fuzz.inputs import PREFACE, frame, headers_block
from tests.support.child import child, first_line
from tests.support.daemon import DaemonProcess
from tests.support.raw_client import RawClient
from tests.support.victim import Victim
from tests.support.wait import DEADLINE_S

_UNIMPLEMENTED = b"grpc-status\x0212"


def call(port: int, path: bytes) -> bytes:
    """The broker's response to a call of this path."""
    block = headers_block("/" + "x" * (len(path) - 1)).replace(b"/" + b"x" * (len(path) - 1), path)
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        connection.sendall(PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, block) + frame(0, 1, 1, bytes(5)))
        told = b""
        while _UNIMPLEMENTED not in told:
            data = connection.recv(65_536)
            if not data:
                break
            told += data
        return told


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A broker that must still stop cleanly after all tests."""
    with DaemonProcess(tmp_path_factory.mktemp("names") / "data") as daemon:
        victim = Victim(daemon)
        victim.works()
        yield victim
        victim.channel.close()
        assert daemon.terminate() == 0


@pytest.mark.parametrize("path", [b"/\xff", b"/" + SERVICE.encode() + b"/Prod\xbcce", b"\xf0\x28\x8c\x28" * 5, b"/\xed\xa0\x80"])
def test_a_name_that_is_not_utf8_is_a_method_that_does_not_exist(victim: Victim, path: bytes) -> None:
    for _ in range(3):
        assert _UNIMPLEMENTED in call(victim.daemon.port, path)
    victim.works()
    with RawClient(victim.daemon.address) as another:
        assert another.metadata("honest").topics[0].name == "honest"
    assert "Traceback" not in victim.log_text()


def test_headers_that_are_wrong_leave_nothing_in_the_log(victim: Victim) -> None:
    before = victim.log_text()
    good = headers_block(UNARY["GetServerInfo"].path)
    for wrong in (
        good.replace(b"content-type", b"con\x92ent-type"),
        good.replace(b"trailers", b"tr\xffilers"),
        good[:-1] + b"\xff",
    ):
        with socket.create_connection(("127.0.0.1", victim.daemon.port), timeout=DEADLINE_S) as connection:
            connection.sendall(PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, wrong) + frame(0, 1, 1, bytes(5)))
            victim.works()
    assert victim.log_text() == before


def test_everybody_else_decodes_as_strictly_as_before() -> None:
    accept_undecodable_names()
    accept_undecodable_names()

    async def main() -> None:
        with pytest.raises(UnicodeDecodeError):
            b"\xff".decode()

    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode()
    with pytest.raises(UnicodeEncodeError):
        "\ud800".encode()
    asyncio.run(main())

    async def _server_main_loop() -> None:
        with pytest.raises(UnicodeDecodeError):
            b"\xff".decode()

    _server_main_loop.__qualname__ = "AioServer._server_main_loop"
    asyncio.run(_server_main_loop())
    assert codecs.lookup_error("strict") is not codecs.strict_errors


def test_the_process_ends_with_an_error_when_grpc_stops_serving(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        import brokerd.server.daemon as daemon
        daemon.accept_undecodable_names = lambda: None
        from brokerd.cli import main
        sys.exit(main())
    """)
    command = [sys.executable, "-c", code, "start", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    with child(command) as process:
        call(int(first_line(process).rpartition(":")[2]), b"/\xff")
        _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "brokerd: gRPC ended its server" in told
