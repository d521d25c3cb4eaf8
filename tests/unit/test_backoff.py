"""Goal: waits between retries grow up to a maximum, and jitter spreads the retries of many clients."""

from __future__ import annotations

import pytest

from brokerd.backoff import backoff_ms

MIDDLE = 0.5  # no jitter


def test_wait_doubles_up_to_its_maximum() -> None:
    waits = [backoff_ms(failures, first_ms=100, max_ms=1_000, random=MIDDLE) for failures in range(1, 7)]
    assert waits == [100, 200, 400, 800, 1_000, 1_000]


@pytest.mark.parametrize(("random", "wait_ms"), [(0.0, 80), (MIDDLE, 100), (0.999999, 120)])
def test_jitter_is_a_fifth_either_way(random: float, wait_ms: int) -> None:
    assert backoff_ms(1, first_ms=100, max_ms=1_000, random=random) == wait_ms


def test_maximum_below_the_first_wait_keeps_the_first_wait() -> None:
    assert backoff_ms(10, first_ms=100, max_ms=10, random=MIDDLE) == 100


def test_hundreds_of_failures_wait_no_longer_than_the_maximum() -> None:
    assert backoff_ms(10_000, first_ms=1, max_ms=1_000, random=MIDDLE) == 1_000


def test_no_wait_is_asked_for() -> None:
    assert backoff_ms(3, first_ms=0, max_ms=0, random=0.9) == 0
