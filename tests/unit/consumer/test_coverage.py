"""Goal: partitions that are added to a topic and left unread are reported once, with what to do. Method: a broker in memory, and a
clock that the test moves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd import Consumer
from brokerd.consumer.resolution import LOOK_MS
from brokerd.errors import GroupAuthorizationFailedError
from tests.support.clock import ManualClock
from tests.support.consumers import T0, T1, fill, read, settings
from tests.support.fake_broker import FakeBroker
from tests.support.wait import wait_until

Reads = Callable[[Consumer], object]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("topic 't' has partitions")]


def look(consumer: Consumer, clock: ManualClock) -> None:
    """Runs one check for unread partitions to its end."""
    clock.advance(LOOK_MS)
    consumer.poll(0)
    wait_until(lambda: consumer._looking is not None and consumer._looking.has_ended)


def test_partitions_that_were_added_are_told_once(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    fill(broker.create("t", 2)[0], [1])
    with Consumer(settings(broker), clock=clock) as consumer:
        consumer.assign([T0])
        read(consumer, 1)
        look(consumer, clock)
        assert told(caplog) == [], "without a group, it may be another process that reads partition 1"
        broker.add_partitions("t", 3)
        for _ in range(2):
            look(consumer, clock)
        (message,) = told(caplog)
        assert "were added, and this consumer does not read (2): assign() them" in message


def test_partitions_without_an_offset_of_the_group_are_told_once(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    fill(broker.create("t", 2)[0], [1])
    with Consumer(settings(broker, group_id="g", enable_auto_commit=False), clock=clock) as consumer:
        consumer.assign([T0])
        read(consumer, 1)
        consumer.commit({T1: 0})  # as another process of the group does
        look(consumer, clock)
        assert told(caplog) == []
        broker.add_partitions("t", 4)
        for _ in range(2):
            look(consumer, clock)
        assert [message.partition("(")[2].partition(")")[0] for message in told(caplog)] == ["2, 3"]
        assert "no consumer in group 'g' has read" in told(caplog)[0]
        broker.add_partitions("t", 30)
        look(consumer, clock)
        assert "(4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...)" in told(caplog)[1]


def polled(consumer: Consumer) -> None:
    assert len(consumer.poll(5)) == 1


def iterated(consumer: Consumer) -> None:
    next(iter(consumer))


def processed(consumer: Consumer) -> None:
    with pytest.raises(ZeroDivisionError):
        consumer.process(lambda _: 1 / 0)


@pytest.mark.parametrize("reads", [polled, iterated, processed])
def test_a_consumer_that_always_has_records_looks_too(broker: FakeBroker, caplog: pytest.LogCaptureFixture, reads: Reads) -> None:
    clock = ManualClock()
    fill(broker.create("t", 1)[0], [1] * 20)
    with Consumer(settings(broker, max_poll_records=1), clock=clock) as consumer:
        consumer.assign([T0])
        polled(consumer)
        for _ in range(2):
            clock.advance(LOOK_MS)
            reads(consumer)
            wait_until(lambda: consumer._looking is not None and consumer._looking.has_ended)
            broker.add_partitions("t", 2)
        assert len(told(caplog)) == 1


def test_a_look_that_fails_is_repeated(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    fill(broker.create("t", 1)[0], [1])
    with Consumer(settings(broker, group_id="g"), clock=clock) as consumer:
        consumer.assign([T0])
        read(consumer, 1)
        broker.add_partitions("t", 2)
        broker.errors["FetchGroupOffsets"] = [GroupAuthorizationFailedError("not yours")]
        look(consumer, clock)
        assert told(caplog) == []
        look(consumer, clock)
        assert len(told(caplog)) == 1
