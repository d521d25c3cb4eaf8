"""A client and a cluster, for tests of calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.support.fake_broker import FakeBroker, FakeCluster, fake_cluster


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[BlockingClient]:
    """A client with a retry backoff of 1 to 2 ms."""
    config = ClientConfig(
        bootstrap_servers=f"127.0.0.1:{broker.port}", retry_backoff_ms=1, retry_backoff_max_ms=2, api_timeout_ms=10_000
    )
    with BlockingClient(config) as client:
        yield client


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster of three nodes."""
    with fake_cluster() as cluster:
        yield cluster
