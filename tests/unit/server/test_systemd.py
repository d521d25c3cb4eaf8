"""sd_notify: what is sent to which socket; a missing listener is no failure."""

from __future__ import annotations

import socket
from pathlib import Path

from brokerd.cli.start import READY, notify
from tests.support.wait import DEADLINE_S


def test_readiness_reaches_the_socket_that_systemd_names(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(DEADLINE_S)
        notify(READY, {"NOTIFY_SOCKET": str(path)})
        assert listener.recv(100) == b"READY=1"


def test_an_abstract_socket_is_one_too() -> None:
    name = f"brokerd-test-{id(object())}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.settimeout(DEADLINE_S)
        notify(READY, {"NOTIFY_SOCKET": "@" + name})
        assert listener.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(tmp_path: Path) -> None:
    notify(READY, {})
    notify(READY, {"NOTIFY_SOCKET": ""})
    notify(READY, {"NOTIFY_SOCKET": "vsock:2:1"})
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "gone")})
