"""A fake broker with one topic, for tests of readers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker, fake_broker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Has topic "events": two partitions with ten records each."""
    with fake_broker() as broker:
        for partition in broker.create("events", 2):
            fill(partition, [10])
        yield broker
