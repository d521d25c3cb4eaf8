"""Goal: a call is retried only if that can help, waits grow up to a limit, and the last error says where and how long it tried."""

from __future__ import annotations

import logging

import pytest

from brokerd.client.broker_client import REFUSALS_MS, CallRetries, is_repeatable, named
from brokerd.errors import (
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    InvalidTopicError,
    NotLeaderError,
    NotReadyError,
    ResourceExhaustedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

MIDDLE = 0.5  # no jitter


def retries(timeout_ms: int = 1_000) -> CallRetries:
    return CallRetries(timeout_ms=timeout_ms, backoff_initial_ms=100, backoff_max_ms=400, now_ms=5_000)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BrokerUnreachableError("x"), True),
        (NotReadyError("x"), True),
        (NotLeaderError("x"), True),
        (UnknownTopicOrPartitionError("x"), False),
        (UnknownTopicIdError("x"), False),
        (InvalidTopicError("x"), False),
        (BrokerUnreachableError("x", is_final=True), False),
        (ConfigError("x"), False),
    ],
)
def test_is_repeatable(error: BrokerdError, expected: bool) -> None:
    assert is_repeatable(error) is expected


def test_failed_waits_longer_each_time_until_no_time_is_left() -> None:
    tries = retries()
    lost = BrokerUnreachableError("gone")
    assert [tries.failed(lost, now_ms=now_ms, random=MIDDLE) for now_ms in (5_000, 5_200, 5_500)] == [100, 200, 400]
    assert tries.failed(lost, now_ms=5_599, random=MIDDLE) == 400
    assert tries.failed(lost, now_ms=5_600, random=MIDDLE) is None


def test_what_is_left_is_what_failed_goes_by() -> None:
    tries = retries(60_000)
    assert tries.left_ms(BrokerUnreachableError("gone"), now_ms=6_000) == 59_000
    assert tries.left_ms(AuthenticationError("no"), now_ms=6_000) == REFUSALS_MS - 1_000
    assert tries.left_ms(AuthenticationError("no"), now_ms=60_000) == 0


def test_failed_obeys_the_broker_where_it_asks_for_a_longer_wait() -> None:
    assert retries().failed(ResourceExhaustedError("full", retry_after_ms=750), now_ms=5_000, random=MIDDLE) == 750


def test_failed_gives_up_at_once_on_what_is_not_repeatable() -> None:
    assert retries().failed(InvalidTopicError("bad"), now_ms=5_000, random=MIDDLE) is None


def test_succeeded_gives_the_whole_time_again() -> None:
    tries = retries()
    tries.failed(BrokerUnreachableError("gone"), now_ms=5_000, random=MIDDLE)
    tries.succeeded(now_ms=9_000)
    assert tries.failed(BrokerUnreachableError("gone"), now_ms=9_000, random=MIDDLE) == 100


def test_attempt_timeout_is_the_smaller_of_request_and_what_is_left() -> None:
    tries = retries()
    assert tries.attempt_timeout_ms(300, now_ms=5_000) == 300
    assert tries.attempt_timeout_ms(300, now_ms=5_900) == 100
    assert tries.attempt_timeout_ms(300, now_ms=9_999) == 1


def test_final_error_of_a_lost_broker_names_address_and_time() -> None:
    tries, last = retries(), BrokerUnreachableError("Connection refused (111)", address="10.0.0.1:9192")
    for error in (BrokerUnreachableError("silent", address="10.0.0.2:9192"), NotLeaderError("no"), last, last):
        tries.failed(error, now_ms=5_000, random=MIDDLE)
    final = tries.final_error(last, now_ms=6_500)
    assert str(final) == (
        "no broker responded at 10.0.0.2:9192, 10.0.0.1:9192 in 1.5 s: Connection refused (111); start the broker, or correct the "
        "address"
    )
    assert retries().final_error(final, now_ms=9_000) is final
    assert str(retries().final_error(BrokerUnreachableError("x"), now_ms=6_000)) == "no broker responded in 1.0 s: x"


def test_a_change_of_leader_is_worth_a_warning_only_if_it_takes_long() -> None:
    def levels(*errors: tuple[BrokerdError, int]) -> list[int]:
        tries, found = retries(60_000), []
        for error, now_ms in errors:
            tries.failed(error, now_ms=now_ms, random=MIDDLE)
            found.append(tries.level_of(error, now_ms=now_ms))
        return found

    moved, lost = NotLeaderError("elsewhere"), BrokerUnreachableError("gone")
    assert levels(*[(lost, 5_000)] * 4) == [0, logging.WARNING, 0, 0]
    assert levels(*[(moved, 5_000)] * 3, *[(moved, 15_000)] * 2) == [0, logging.INFO, 0, logging.WARNING, 0]
    assert levels((moved, 5_000), (moved, 5_100), (lost, 5_200)) == [0, logging.INFO, logging.WARNING]


def test_a_lost_node_is_named_once() -> None:
    assert named(BrokerUnreachableError("Connection refused", address="h:1")) == "Connection refused (at h:1)"
    assert named(BrokerUnreachableError("h:1 is silent", address="h:1")) == "h:1 is silent"
    assert named(NotLeaderError("elsewhere")) == "elsewhere"


def test_final_error_of_a_wire_error_keeps_its_fields() -> None:
    tries = retries()
    tries.failed(NotReadyError("starting"), now_ms=5_000, random=MIDDLE)
    error = tries.final_error(NotReadyError("starting", retry_after_ms=7), now_ms=6_000)
    assert isinstance(error, NotReadyError)
    assert error.retry_after_ms == 7
    assert str(error) == "starting (tried 1 times in 1.0 s)"
