"""The consumer of most tests. Some modules run with both the blocking and the asyncio consumer."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from brokerd import Consumer
from tests.support.consumers import settings
from tests.support.faces import both_faces, take_face
from tests.support.fake_broker import FakeBroker
from tests.support.ports import held_port


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    both_faces(metafunc, "test_consumer", "test_failures", "test_groups")


@pytest.fixture(autouse=True)
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selects the blocking or the asyncio consumer."""
    take_face(request, monkeypatch, sys.modules[__name__])


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a broker that goes and comes back: nobody else gets it meanwhile."""
    with held_port() as port:
        yield port


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[Consumer]:
    """A consumer that begins at the first record."""
    with Consumer(settings(broker)) as consumer:
        yield consumer
