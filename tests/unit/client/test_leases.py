"""Goal: leased objects are created once per process and settings, closed only while unused, and never used across a fork."""

from __future__ import annotations

import contextlib
import threading

import pytest

from brokerd.client.leases import IDLE_MAX_MS, LeaseCache, lease_client
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.errors import ConfigError
from tests.support.clock import ManualClock


class Lent:
    """A leased object that only notes that it was closed."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


HERE = ClientConfig(bootstrap_servers="127.0.0.1:1")
THERE = ClientConfig(bootstrap_servers="127.0.0.1:2")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shared(clock: ManualClock) -> LeaseCache[ClientConfig, Lent]:
    return LeaseCache(clock, Lent, Lent.close, is_shared=True)


@pytest.fixture
def single(clock: ManualClock) -> LeaseCache[ClientConfig, Lent]:
    return LeaseCache(clock, Lent, Lent.close, is_shared=False)


def test_same_settings_share_and_others_do_not(shared: LeaseCache[ClientConfig, Lent]) -> None:
    with shared.lease(HERE) as first, shared.lease(HERE) as second, shared.lease(THERE) as third:
        assert first is second
        assert first is not third
    with shared.lease(HERE) as again:
        assert again is first


def test_what_is_lent_to_one_at_a_time_is_lent_again(single: LeaseCache[ClientConfig, Lent]) -> None:
    with single.lease(HERE) as first, single.lease(HERE) as second:
        assert first is not second
    with single.lease(HERE) as third, single.lease(HERE) as fourth, single.lease(HERE) as fifth:
        assert {third, fourth} == {first, second}
        assert fifth not in (first, second)


@pytest.mark.parametrize("kind", ["shared", "single"])
def test_idle_one_is_closed_at_the_next_lease_but_never_while_leased(
    kind: str, clock: ManualClock, request: pytest.FixtureRequest
) -> None:
    cache: LeaseCache[ClientConfig, Lent] = request.getfixturevalue(kind)
    with cache.lease(HERE) as used:
        with cache.lease(THERE) as idle:
            pass
        clock.advance(IDLE_MAX_MS - 1)
        with cache.lease(THERE) as young:
            assert young is idle
        clock.advance(IDLE_MAX_MS)
        with cache.lease(THERE) as fresh:
            assert fresh is not idle
            assert idle.is_closed
            assert not used.is_closed


def test_idle_one_is_closed_though_the_next_cannot_be_made(clock: ManualClock) -> None:
    def make(config: ClientConfig) -> Lent:
        if config is THERE:
            raise ConfigError("its settings are wrong")
        return Lent(config)

    cache = LeaseCache(clock, make, Lent.close, is_shared=False)
    with cache.lease(HERE) as idle:
        pass
    clock.advance(IDLE_MAX_MS)
    with pytest.raises(ConfigError), cache.lease(THERE):
        pass
    assert idle.is_closed


def test_error_gives_up_what_one_had_for_himself(single: LeaseCache[ClientConfig, Lent]) -> None:
    with pytest.raises(RuntimeError, match="the task's own"), single.lease(HERE) as failing:
        raise RuntimeError("the task's own")
    assert failing.is_closed
    with single.lease(HERE) as another:
        assert another is not failing


def test_error_of_one_leaves_what_others_share(shared: LeaseCache[ClientConfig, Lent]) -> None:
    with pytest.raises(RuntimeError, match="the task's own"), shared.lease(HERE) as lent:
        raise RuntimeError("the task's own")
    with shared.lease(HERE) as again:
        assert again is lent
        assert not lent.is_closed


def test_child_forgets_what_its_parent_has_and_closes_nothing_of_it(single: LeaseCache[ClientConfig, Lent]) -> None:
    with single.lease(HERE) as idle:
        pass
    with contextlib.suppress(RuntimeError), single.lease(THERE) as leased:  # a child leaves its parent's block with an error
        single.forget()
        with single.lease(HERE) as own:
            assert own is not idle
        single.close()
        assert own.is_closed
        raise RuntimeError
    assert not idle.is_closed
    assert not leased.is_closed


def test_child_is_not_held_up_by_a_lock_that_a_thread_of_its_parent_held(shared: LeaseCache[ClientConfig, Lent]) -> None:
    held: threading.Lock = shared._lock
    with held:
        shared.forget()
        with shared.lease(HERE):
            pass


def test_close_closes_what_nobody_has(shared: LeaseCache[ClientConfig, Lent]) -> None:
    with shared.lease(HERE) as idle:
        pass
    with shared.lease(THERE) as leased:
        shared.close()
        assert idle.is_closed
        assert not leased.is_closed
    shared.close()
    assert leased.is_closed


def test_clients_differ_by_what_clients_need_alone() -> None:
    reader = ConsumerConfig(bootstrap_servers="127.0.0.1:1", fetch_max_wait_ms=7)
    with lease_client(HERE) as first, lease_client(reader) as second, lease_client(THERE) as third:
        assert first is second
        assert first is not third
