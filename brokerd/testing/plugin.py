"""The pytest fixtures, registered by the entry point pytest11.

This module imports nothing of brokerd until a test requests a broker.

    brokerd_broker     a broker for one test
    brokerd_topic      a topic on it
    brokerd_cluster    three brokers and their coordination store for one test
    brokerd_settings   these brokers' settings: a mapping to override in a conftest.py or a test module
    brokerd_client     the settings of the test's client, to override for a broker with TLS or authentication
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from brokerd.testing.broker import Broker, Topic
    from brokerd.testing.cluster import Cluster


@pytest.fixture
def brokerd_settings() -> Mapping[str, object]:
    """The settings of `brokerd_broker`, and of each node of `brokerd_cluster`, by Kafka's names. Override it:
    `return {"num.partitions": 4}`."""
    return {}


@pytest.fixture
def brokerd_client() -> Mapping[str, object]:
    """The settings of the client that appends and reads for the test. Override it: `return {"auth.token": "..."}`."""
    return {}


@pytest.fixture
def brokerd_broker(
    request: pytest.FixtureRequest, brokerd_settings: Mapping[str, object], brokerd_client: Mapping[str, object]
) -> Iterator[Broker]:
    """A broker in a temporary directory, on a free port, for this test alone."""
    from brokerd.testing.broker import Broker

    with _unmet_faults_told_once(request), Broker(brokerd_settings, client=brokerd_client) as broker:
        yield broker


@pytest.fixture
def brokerd_cluster(
    request: pytest.FixtureRequest, brokerd_settings: Mapping[str, object], brokerd_client: Mapping[str, object]
) -> Iterator[Cluster]:
    """Three brokers and their coordination store, for this test alone. `brokerd_settings` are those of every broker."""
    from brokerd.testing.cluster import Cluster

    with _unmet_faults_told_once(request), Cluster(3, brokerd_settings, client=brokerd_client) as cluster:
        yield cluster


@contextmanager
def _unmet_faults_told_once(request: pytest.FixtureRequest) -> Iterator[None]:
    from brokerd.testing.channel import UnmetFaultError

    failed_before = request.session.testsfailed
    try:
        yield
    except UnmetFaultError:
        if request.session.testsfailed == failed_before:  # a test that failed earlier explains the unmet fault
            raise


@pytest.fixture
def brokerd_topic(brokerd_broker: Broker) -> Topic:
    """An empty topic named `topic` on `brokerd_broker`, with the broker's num.partitions (1)."""
    return brokerd_broker.create_topic("topic")
