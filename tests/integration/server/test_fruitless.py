"""A connection over which hundreds of calls come to nothing is ended, however they do; others stay, and a few end nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h2.exceptions
import pytest

from benchmarks.raw_http2 import RawHttp2
from brokerd.server.limits import fruitless
from brokerd.server.limits.fruitless import BURST, MORE_BYTES
from brokerd.wire.methods import FETCH, PRODUCE, SERVICE, UNARY
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE, TOKENS
from tests.support.wait import DEADLINE_S, wait_until

HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
BOSS = TOKENS["boss"]
PER_STEP = 40


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A broker that wants tokens."""
    directory: Path = tmp_path_factory.mktemp("fruitless")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fruitless, "MUTED_MS", 100)
        yield from _daemon(directory)


def _daemon(directory: Path) -> Iterator[RunningDaemon]:
    (directory / "auth.toml").write_text(AUTH_FILE)
    with running_daemon(directory / "data", files=MemoryFiles(), auth_file=str(directory / "auth.toml")) as running:
        yield running


def calls(path: str, message: bytes | None = None) -> Callable[[RawHttp2], None]:
    """Calls that the broker ends."""

    def step(raw: RawHttp2) -> None:
        stream = raw.call(path)
        if message is not None:
            raw.send_message(stream, message, end=True)

    return step


def taken_back(path: str) -> Callable[[RawHttp2], None]:
    """Calls that begin, and of which no request comes."""

    def step(raw: RawHttp2) -> None:
        stream = raw.call(path)
        raw.pump()
        raw.reset(stream)
        raw.flush()

    return step


@pytest.mark.parametrize(
    ("token", "step"),
    [
        (None, calls(f"/{SERVICE}/Nothing")),
        (BOSS, calls("/no.such.Service/Nothing")),
        (None, calls(UNARY["Metadata"].path)),
        ("wrong", calls(PRODUCE)),
        (None, calls(REFLECTION)),
        (BOSS, calls(UNARY["Metadata"].path, b"\xff")),
        (BOSS, calls(FETCH, b"\xff")),
        (BOSS, taken_back(UNARY["Metadata"].path)),
        (BOSS, taken_back(PRODUCE)),
        (None, taken_back(f"{HEALTH}/Watch")),
        (None, calls(f"{HEALTH}/Check", b"\xff")),
    ],
    ids=[
        "method",
        "service",
        "stranger",
        "wrong token",
        "reflection",
        "malformed",
        "malformed stream",
        "taken back",
        "taken back stream",
        "taken back health",
        "malformed health",
    ],
)
def test_a_flood_of_calls_that_come_to_nothing_ends_its_connection(
    daemon: RunningDaemon, token: str | None, step: Callable[[RawHttp2], None]
) -> None:
    other = RawHttp2(daemon.daemon.port, token=BOSS)
    flood = RawHttp2(daemon.daemon.port, token=token)

    def goes_on() -> bool:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # as many as may be open at once
            for _ in range(PER_STEP):
                step(flood)
        flood.pump(0.01)
        return not flood.is_closed

    with contextlib.closing(other), contextlib.closing(flood):
        wait_until(lambda: not goes_on(), what="the connection to be closed")
        for _ in range(3):
            stream = other.call(UNARY["GetServerInfo"].path)
            other.send_message(stream, b"", end=True)
            assert other.status_of(stream, DEADLINE_S) == "0"


def test_some_calls_that_come_to_nothing_end_nothing(daemon: RunningDaemon) -> None:
    with contextlib.closing(RawHttp2(daemon.daemon.port, token=BOSS)) as raw:
        for _ in range(2 * BURST):  # twice as many as are borne at once, but as many others
            assert raw.status_of(raw.call(f"/{SERVICE}/Nothing"), DEADLINE_S) == "12"
            stream = raw.call(UNARY["GetServerInfo"].path)
            raw.send_message(stream, b"", end=True)
            assert raw.status_of(stream, DEADLINE_S) == "0"
        assert not raw.is_closed


@pytest.mark.parametrize(
    ("path", "message"),
    [(UNARY["Metadata"].path, b"\xff" * 2**20), (PRODUCE, b"\xff" * 2**20), (f"{HEALTH}/Check", bytes(2**20))],
    ids=["unary", "stream", "health"],
)
def test_a_few_large_requests_that_come_to_nothing_end_their_connection(daemon: RunningDaemon, path: str, message: bytes) -> None:
    with contextlib.closing(RawHttp2(daemon.daemon.port, token=BOSS)) as raw:
        for _ in range(1 + BURST * MORE_BYTES // len(message)):
            stream = raw.call(path)
            raw.send_message(stream, message, end=True)
            raw.status_of(stream, DEADLINE_S)
        raw.pump_until_all_ended(20)
        assert raw.is_closed
