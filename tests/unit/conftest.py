"""Fixtures shared by unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_broker import FakeBroker, fake_broker
from tests.support.files import MemoryFiles


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker in memory behind a real port."""
    with fake_broker() as broker:
        yield broker


@pytest.fixture
def files() -> MemoryFiles:
    """An empty data directory in memory."""
    return MemoryFiles()
