"""What the producer knows of topics: asked for when needed, forgotten when idle, recognised when created anew."""

from __future__ import annotations

import random

import pytest

from brokerd.config.client import ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.ids import TopicPartition
from brokerd.producer.producer import Producer
from brokerd.producer.topics import TopicRegistry
from brokerd.producer.transport import NO_LEADER, TopicView
from tests.support.broker_double import BrokerDouble
from tests.support.clock import ManualClock

IDLE_MS = 10_000
VIEW = TopicView(b"1" * 16, (0, 0))


@pytest.fixture
def topics() -> TopicRegistry:
    config = from_mapping(ProducerConfig, {"metadata.max.idle.ms": IDLE_MS})
    registry = TopicRegistry(config, random.Random(1))
    registry.want("busy", 0)
    registry.want("idle", 0)
    assert registry.begin(0) == ("busy", "idle")
    assert registry.on_result({"busy": VIEW, "idle": VIEW}, 0) == []
    return registry


def test_an_idle_topic_is_not_asked_for_any_more(topics: TopicRegistry) -> None:
    assert topics.use("busy", IDLE_MS - 1) == VIEW
    topics.request_refresh()
    assert topics.due_ms(IDLE_MS, is_busy=True) is not None
    assert topics.begin(IDLE_MS) == ("busy",)
    assert topics.leader_of(TopicPartition("idle", 0)) == NO_LEADER
    assert topics.on_result({"busy": VIEW, "idle": VIEW}, IDLE_MS) == []
    assert topics.view("idle") is None


def test_an_idle_topic_is_asked_for_when_it_is_used_again(topics: TopicRegistry) -> None:
    assert topics.use("idle", IDLE_MS - 1) == VIEW
    assert topics.use("idle", 2 * IDLE_MS - 2) == VIEW
    assert topics.use("idle", 3 * IDLE_MS - 2) is None
    topics.want("idle", 3 * IDLE_MS)
    assert topics.due_ms(3 * IDLE_MS, is_busy=False) == 3 * IDLE_MS
    assert topics.begin(3 * IDLE_MS) == ("idle",)


def test_a_topic_created_anew_while_it_was_forgotten_is_another(topics: TopicRegistry) -> None:
    assert topics.use("idle", IDLE_MS) is None
    topics.want("idle", IDLE_MS)
    topics.begin(IDLE_MS)
    assert topics.on_result({"idle": TopicView(b"2" * 16, (0,))}, IDLE_MS) == ["idle"]


def test_nothing_in_use_asks_for_nothing(topics: TopicRegistry) -> None:
    topics.request_refresh()
    assert topics.begin(IDLE_MS) == ()
    assert topics.due_ms(IDLE_MS, is_busy=True) is None
    topics.want("busy", IDLE_MS)
    assert topics.begin(IDLE_MS) == ("busy",)


def test_a_producer_goes_on_with_a_topic_it_had_forgotten() -> None:
    broker = BrokerDouble()
    broker.create_topic("t", 1)
    clock = ManualClock()
    settings = {"linger.ms": 0, "metadata.max.idle.ms": IDLE_MS}
    with Producer(settings, transport_factory=broker.transport, clock=clock) as producer:
        assert producer.send("t", b"0").result(10).offset == 0
        clock.advance(IDLE_MS)
        assert producer.send("t", b"1").result(10).offset == 1
        clock.advance(IDLE_MS)
        broker.create_topic("t", 1)
        assert producer.send("t", b"2").result(10).offset == 0
    assert broker.values("t", 0) == [b"2"]
