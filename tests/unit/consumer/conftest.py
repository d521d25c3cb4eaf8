"""The consumer that most tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd import Consumer
from tests.support.consumers import settings
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[Consumer]:
    """Begins at the first record."""
    with Consumer(settings(broker)) as consumer:
        yield consumer
