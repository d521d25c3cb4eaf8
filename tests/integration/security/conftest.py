"""A broker with the principals of tests/support/identities.py, and raw clients that send a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.client import broker_client
from brokerd.producer.core import producer_core
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE
from tests.support.raw_client import RawClient

ClientAs = Callable[[str | None], RawClient]


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds a token to every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """See gRPC."""
        return continuation(details_with(details, self._metadata), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, request_iterator: Any) -> Any:
        """See gRPC."""
        return continuation(details_with(details, self._metadata), request_iterator)


def with_token(address: str, token: str | None) -> RawClient:
    """A client that sends a token; None = none."""
    client = RawClient(address)
    if token is not None:
        client.channel = grpc.intercept_channel(client.channel, _Bearer(token))
    return client


def details_with(details: Any, metadata: tuple[tuple[str, str], ...]) -> Any:
    """The details of a call, with other metadata."""
    changed = grpc.ClientCallDetails()
    changed.method, changed.timeout, changed.metadata, changed.credentials = (
        details.method,
        details.timeout,
        metadata,
        details.credentials,
    )
    return changed


@pytest.fixture
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes clients that were never accepted give up soon: these tests do not check how long a refusal is retried."""
    for module in (broker_client, producer_core):
        assert module.REFUSALS_MS == 3_000
        monkeypatch.setattr(module, "REFUSALS_MS", 50)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A broker that requires tokens."""
    directory: Path = tmp_path_factory.mktemp("guarded")
    auth_file = directory / "auth.toml"
    auth_file.write_text(AUTH_FILE)
    with running_daemon(directory / "data", files=MemoryFiles(), auth_file=str(auth_file)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client_as(guarded: RunningDaemon) -> Iterator[ClientAs]:
    """Clients by token; None = without one."""
    clients: dict[str | None, RawClient] = {}

    def client(token: str | None) -> RawClient:
        if token not in clients:
            clients[token] = with_token(guarded.address, token)
        return clients[token]

    yield client
    for one in clients.values():
        one.channel.close()
