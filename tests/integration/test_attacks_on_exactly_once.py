"""The program that attacks exactly once reports its observations, and nothing if a fault did not happen. Its real runs take minutes
and are started by hand; here its drivers are doubles."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from benchmarks.exactly_once import __main__ as program
from benchmarks.exactly_once.attacks import ATTACKS
from benchmarks.exactly_once.processes import DriverDiedError
from benchmarks.exactly_once.relay import Relay
from benchmarks.exactly_once.systems import System


def test_a_lost_answer_was_asked_for_and_never_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Relay() as relay:
        relay.target = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", relay.port)) as client, listener.accept()[0] as server:
            server.sendall(b"hello")
            assert client.recv(5) == b"hello"
            relay.lose_answers()
            client.sendall(b"commit")
            assert server.recv(6) == b"commit"
            server.sendall(b"done")
            with socket.create_connection(("127.0.0.1", relay.port)) as other, listener.accept()[0] as server_of_other:
                server_of_other.sendall(b"hello")
                assert other.recv(5) == b"hello"
            relay.cut()
            assert client.recv(4) == b""


class Nothing(System):
    """A system without processes and without losses."""

    name = "nothing"
    python = "python"
    version = "Nothing 1"

    def missing(self) -> list[str]:
        return []

    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        return {"format": "nothing", "options": {}, "columns": ["key", "value"]}

    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        return []


class DoubleDriver:
    """Takes all steps and writes nothing; dies if it is to be killed while it writes."""

    spark = "4.3.0"

    def __init__(self, system: System, log: Path, master: str = "") -> None:
        """The arguments are not used."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Does nothing."""

    def step(self, do: str, **arguments: Any) -> dict[str, Any]:
        if (arguments.get("accident") or {}).get("kind") == "driver-killed":
            raise DriverDiedError
        return {"rows": []} if do == "read" else {}


@contextmanager
def no_cluster(system: System) -> Iterator[str]:
    yield "spark://nowhere"


def test_an_accident_that_did_not_happen_is_no_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "SYSTEMS", {"nothing": Nothing})
    monkeypatch.setattr(program, "DriverProcess", DoubleDriver)
    monkeypatch.setattr(program, "cluster", no_cluster)
    monkeypatch.setattr("benchmarks.exactly_once.pipeline._LATE_S", 0)
    accidents = ["task-retried", "killed-while-writing", "killed-in-commit", "two-topics", "twin"]
    flags = [flag for name in accidents for flag in ("--attack", name)]
    assert program.main(["--against", "nothing", *flags]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("nothing: ")] == [
        "nothing: task-retried: not run: no task failed: ",
        "nothing: killed-while-writing: not run: the JVM was not killed: it died by itself",
        "nothing: killed-in-commit: not run: the JVM was not killed: ",
        "nothing: two-topics: not run: the JVM was not killed: it died by itself",
        "nothing: twin: not run: no two attempts wrote at once: None",
    ]


def test_rows_that_are_not_there_after_a_good_end_are_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "SYSTEMS", {"nothing": Nothing})
    monkeypatch.setattr(program, "DriverProcess", DoubleDriver)
    assert program.main(["--against", "nothing", "--attack", "backwards"]) == 0
    text = next(each.text for each in ATTACKS if each.name == "backwards")
    assert f"| {text} | **1000 silently skipped** |" in capsys.readouterr().out
