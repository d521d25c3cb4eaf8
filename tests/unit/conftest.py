"""Fixtures that the unit tests of clients, sink and source share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_broker import FakeBroker, fake_broker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker in memory behind a real port."""
    with fake_broker() as broker:
        yield broker
