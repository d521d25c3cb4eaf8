"""Fixtures for all integration tests: a broker, the command line, and a connection that can be cut."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.support.daemon import DaemonProcess, RunningDaemon, running_daemon
from tests.support.identities import AUTH_FILE
from tests.support.proxy import Proxy

# gRPC's C core logs connections that end, the test's own included. The command line silences it; tests drop these lines.
_OF_GRPC_CORE = re.compile(r"^[EFIW]\d{4} .*\.cc:\d+\] .*\n", re.MULTILINE)


class Terminal:
    """Runs commands in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd = capfd
        self._monkeypatch = monkeypatch

    def use(self, address: str) -> None:
        """Makes commands talk to the broker at `address`."""
        self._monkeypatch.setenv("BROKERD_BOOTSTRAP_SERVER", address)

    def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(list(arguments))
        out, err = self._capfd.readouterr()
        return code, out, _OF_GRPC_CORE.sub("", err)


@pytest.fixture
def terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of this test."""
    return Terminal(capfd, monkeypatch)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A broker for the tests of a module."""
    with running_daemon(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
def terminal_at_daemon(terminal: Terminal, daemon: RunningDaemon) -> Terminal:
    """The terminal, with commands that talk to `daemon`."""
    terminal.use(daemon.address)
    return terminal


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    """An auth file that a test may change."""
    path = tmp_path / "auth.toml"
    path.write_text(AUTH_FILE)
    return path


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy whose `target` the test sets."""
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def proxied(tmp_path: Path, proxy: Proxy) -> Iterator[DaemonProcess]:
    """A broker in its own process, with a topic `t` of three partitions; it advertises the proxy."""
    with DaemonProcess(tmp_path / "data", settings={"advertised.port": proxy.port}) as daemon:
        proxy.target = ("127.0.0.1", daemon.port)
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("t", 3)
        yield daemon
