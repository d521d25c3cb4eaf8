"""Goal: one client per process and settings, closed only when nobody uses it, and never taken over a fork."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from brokerd.client.cache import IDLE_MAX_MS, ClientCache
from brokerd.config.client import ClientConfig, ConsumerConfig


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def wall_ns(self) -> int:
        return self.now_ms * 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> Iterator[ClientCache]:
    cache = ClientCache(clock)
    yield cache
    cache.close()


HERE = ClientConfig(bootstrap_servers="127.0.0.1:1")
THERE = ClientConfig(bootstrap_servers="127.0.0.1:2")


def test_same_settings_share_a_client_and_others_do_not(cache: ClientCache) -> None:
    reader = ConsumerConfig(bootstrap_servers="127.0.0.1:1", fetch_max_wait_ms=7)
    with cache.lease(HERE) as first, cache.lease(reader) as second, cache.lease(THERE) as third:
        assert first is second
        assert first is not third
    with cache.lease(HERE) as again:
        assert again is first


def test_idle_client_is_closed_at_the_next_lease_but_never_while_leased(cache: ClientCache, clock: ManualClock) -> None:
    with cache.lease(HERE) as used:
        with cache.lease(THERE) as idle:
            pass
        clock.now_ms += IDLE_MAX_MS
        with cache.lease(THERE) as fresh:
            assert fresh is not idle
            assert idle.loop_thread.is_closed
            assert not used.loop_thread.is_closed


def test_client_of_the_process_before_a_fork_is_not_used_and_not_closed(
    cache: ClientCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cache.lease(HERE) as before:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with cache.lease(HERE) as after:
            assert after is not before
        cache.close()
    assert not before.loop_thread.is_closed
    before.close()


def test_close_after_a_fork_leaves_the_parents_client_alone(cache: ClientCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with cache.lease(HERE) as before:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        cache.close()
    assert not before.loop_thread.is_closed
    before.close()


def test_close_closes_all(cache: ClientCache) -> None:
    with cache.lease(HERE) as client:
        pass
    cache.close()
    assert client.loop_thread.is_closed
