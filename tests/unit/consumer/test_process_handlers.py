"""Goal: `process` refuses options out of range, and handlers that return without doing their work. Method: a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from brokerd import Consumer, ConsumerRecord
from tests.support.consumers import LONG_MS, T0, committed, filled, offsets, read, settings
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[Consumer]:
    filled(broker, [3])
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0)) as consumer:
        consumer.assign([T0])
        yield consumer


async def _coroutine(_record: ConsumerRecord) -> None: ...


def _generator(_record: ConsumerRecord) -> Iterator[None]:
    yield


async def _async_generator(_record: ConsumerRecord) -> AsyncIterator[None]:
    yield


class _CoroutineObject:
    async def __call__(self, _record: ConsumerRecord) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "match"),
    [
        (print, {"workers": 0}, "workers must be a whole number between 1"),
        (print, {"order": "keys"}, "order must be one of key, partition, none, not 'keys'"),
        (print, {"on_error": "ignore"}, "on_error must be one of raise, skip, not 'ignore'"),
        (print, {"max_in_flight": 0}, "max_in_flight must be"),
        (None, {}, "handler must be a function"),
        (_coroutine, {}, "handler must be a function"),
        (_generator, {}, "handler must be a function"),
        (_async_generator, {}, "handler must be a function"),
        (_CoroutineObject(), {}, "handler must be a function"),
        (print, {"workers": 10_001}, "workers must be a whole number between 1 and 10000, not 10001"),
    ],
)
def test_arguments_are_checked(consumer: Consumer, handler: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        consumer.process(handler, **options)
    assert offsets(read(consumer, 1)) == [0]


@pytest.mark.filterwarnings("error")  # a coroutine that was never awaited
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("body", [_coroutine, _generator, _async_generator])
def test_a_handler_that_returns_work_which_nobody_does_has_handled_nothing(
    consumer: Consumer, broker: FakeBroker, body: Callable[[ConsumerRecord], object], on_error: str
) -> None:
    """Such as a lambda around a coroutine function: it returns at once, and its record would be committed unprocessed."""
    with pytest.raises(TypeError, match=r"the handler returned an? [a-z ]+, which is never run") as caught:
        consumer.process(lambda record: body(record), workers=1, on_error=on_error, timeout_ms=LONG_MS)
    assert caught.value.__notes__ == ["while handling t-0@0"]
    assert committed(broker) in (None, 0)
    assert offsets(read(consumer, 1)) == [0]
