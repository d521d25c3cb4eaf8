"""Goal: a client sees the broker's error, whichever unary call raised it: the same class, and thus the same retriability, fate and
numbers. Method: a real broker whose handlers raise each error of the table in turn.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import (
    ERROR_CLASSES,
    BrokerdError,
    ConfigError,
    DataDirectoryError,
    ErrorFields,
    Fate,
    UnknownServerError,
    WireError,
)
from brokerd.server import service
from brokerd.wire.methods import UNARY
from tests.support.connections import connection_to
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.wait import DEADLINE_S

FIELDS = tuple(ErrorFields.__annotations__)


class Planted:
    """The error that every handler raises."""

    error: BaseException = RuntimeError()

    async def handle(self, *_: Any) -> Message:
        raise self.error


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    planted = Planted()
    for name in service.METHODS:
        monkeypatch.setitem(service.METHODS, name, service.Method(planted.handle))  # without a check, since requests are empty
    return planted


@pytest.fixture
def broken(planted: Planted, tmp_path: Path) -> Iterator[RunningDaemon]:
    assert isinstance(planted.error, RuntimeError)
    with running_daemon(tmp_path / "data", files=MemoryFiles()) as daemon:
        yield daemon


def seen_by_client(address: str, planted: Planted, errors: list[BaseException]) -> list[BrokerdError]:
    """The error that a client gets from each method for each error, in order."""
    config = ClientConfig(bootstrap_servers=address)

    async def calls() -> list[BrokerdError]:
        connection = connection_to(address)
        seen = []
        try:
            for planted.error in errors:
                for method in UNARY.values():
                    with pytest.raises(BrokerdError) as raised:
                        await connection.call(method.name, method.request(), method.response, timeout_ms=int(DEADLINE_S * 1000))
                    seen.append(raised.value)
        finally:
            await connection.close()
        return seen

    with BlockingClient(config) as client:
        return client.loop_thread.run(calls())


def test_every_error_is_the_same_error_in_the_client(broken: RunningDaemon, planted: Planted) -> None:
    errors = [
        kind(
            f"an error, “{kind.__name__}”\n",
            fate=Fate.NOT_APPENDED,
            retry_after_ms=7,
            current_leader=3,
            current_leader_epoch=4,
            log_start_offset=2**40,
            expected_sequence=5,
            current_epoch=6,
            resume_offset=2**50,
        )
        for kind in ERROR_CLASSES.values()
    ]
    seen = iter(seen_by_client(broken.address, planted, list(errors)))
    for error in errors:
        for name in UNARY:
            got = next(seen)
            assert isinstance(got, WireError), (name, error, got)
            assert type(got) is type(error), (name, got)
            assert got.retriable == error.retriable
            assert [getattr(got, field) for field in FIELDS] == [getattr(error, field) for field in FIELDS], name


def test_what_is_no_answer_stays_inside_and_its_fate_is_not_known(broken: RunningDaemon, planted: Planted) -> None:
    for error in (OSError(errno.EIO, "secret"), KeyError("secret"), DataDirectoryError("secret"), ConfigError("secret")):
        for got in seen_by_client(broken.address, planted, [error]):
            assert isinstance(got, UnknownServerError)
            assert got.fate is Fate.UNKNOWN
            assert "internal error" in str(got)
            assert "secret" not in str(got)


def test_a_text_of_any_length_arrives_shortened(broken: RunningDaemon, planted: Planted) -> None:
    kind = ERROR_CLASSES[101]
    for got in seen_by_client(broken.address, planted, [kind("é" * 100_000, retry_after_ms=9)]):
        assert type(got) is kind
        assert getattr(got, "retry_after_ms", None) == 9
        assert 100 < len(str(got)) <= 1_000


def test_a_passing_disk_error_leaves_a_new_producer_alive(tmp_path: Path) -> None:
    files = MemoryFiles()
    failures_left = 2

    def fail(operation: str, path: str) -> None:
        nonlocal failures_left
        if COORDINATOR.id.hex() in path and operation != "open" and failures_left:
            failures_left -= 1
            raise OSError(errno.ENOSPC, "no space left on device")

    with running_daemon(tmp_path / "data", files=files) as daemon:
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("t")
        files.hook = fail
        with Producer({"bootstrap.servers": daemon.address, "retry.backoff.ms": 1}) as producer:
            assert producer.send("t", b"v").result(DEADLINE_S).offset == 0
    assert failures_left == 0
