"""The command line as a fixture, for all integration tests."""

from __future__ import annotations

import io
import sys

import pytest

from brokerd.cli import main


class Terminal:
    """Runs commands in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd = capfd
        self._monkeypatch = monkeypatch

    def use(self, address: str) -> None:
        """Makes the broker at `address` the one that commands talk to."""
        self._monkeypatch.setenv("BROKERD_BOOTSTRAP_SERVER", address)

    def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(list(arguments))
        out, err = self._capfd.readouterr()
        return code, out, err


@pytest.fixture
def terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of this test."""
    return Terminal(capfd, monkeypatch)
