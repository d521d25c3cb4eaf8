"""Goal: a consumer that is dropped without `close` ends its thread, which would otherwise read ahead forever, and warns."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest

from brokerd import Consumer
from brokerd.errors import ConfigError
from brokerd.process import OWN_THREADS
from tests.support.consumers import LONG_MS, T0, filled, read, settings
from tests.support.fake_broker import FakeBroker
from tests.support.wait import DEADLINE_S


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(OWN_THREADS)}


def test_a_consumer_that_is_dropped_ends_its_thread_and_warns(broker: FakeBroker) -> None:
    filled(broker, [3])
    before = own_threads()
    consumer = Consumer(settings(broker, group_id="g", auto_commit_interval_ms=LONG_MS))
    consumer.assign([T0])
    assert len(read(consumer, 3)) == 3
    (thread,) = own_threads() - before
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del consumer
        gc.collect()
    (warning,) = (str(one.message) for one in warned if one.category is ResourceWarning)
    assert warning.startswith("unclosed <brokerd.consumer.consumer.Consumer object")
    assert "use it in a `with` block, or close() it" in warning
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert broker.commits == [], "nobody has said that the records are processed"


def test_a_consumer_that_is_closed_or_was_never_made_is_dropped_in_silence(broker: FakeBroker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        consumer = Consumer(settings(broker))
        consumer.close()
        with pytest.raises(ConfigError):
            Consumer(settings(broker, no_such_setting=1))
        del consumer
        gc.collect()
