"""Settings of Kafka and librdkafka that brokerd lacks: the error gives the remedy, not the most similar name."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from brokerd import Consumer, Producer
from brokerd.config import kafka_names
from brokerd.config.broker import BrokerConfig
from brokerd.config.client import ConsumerConfig, ProducerConfig
from brokerd.config.settings import from_mapping, settings_of
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.errors import ConfigError, InvalidConfigError

KNOWN = {name for config in (BrokerConfig, ProducerConfig, ConsumerConfig, TopicConfig) for name in settings_of(config)}
HINTS = {**kafka_names._HINTS, **kafka_names._FAMILIES}


def broker(given: dict[str, str]) -> BrokerConfig:
    return from_mapping(BrokerConfig, given)


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (broker, "listeners", "set host and port to listen on, "),
        (broker, "log.dirs", "here it is data.dir$"),
        (broker, "log.flush.interval.messages", "with acks=all every acknowledged record is on disk: remove it$"),
        (broker, "zookeeper.connect", "nodes agree through etcd .*: remove it$"),
        (broker, "log.segment.byte", r"did you mean 'log\.segment\.bytes'\?$"),
        (broker, "ssl.certificate.fil", r"did you mean 'ssl\.certificate\.file'\?$"),
        (broker, "ssl.cipher.suites", "TLS is gRPC's own, with PEM files: "),
        (broker, "port.number", "'brokerd config --sample' prints them all$"),
        (Producer, "nosuch", r"docs/reference/settings-clients\.md lists them all$"),
        (Consumer, "session.timeout.ms", "groups have no members, a consumer is assigned its partitions: remove it$"),
        (Consumer, "group.instance.id", "groups have no members, a consumer is assigned its partitions: remove it$"),
        (Consumer, "group.idd", r"did you mean 'group\.id'\?$"),
        (Consumer, "value.deserializer", "keys and values are bytes: "),
        (Consumer, "fetch.wait.max.ms", r"here it is fetch\.max\.wait\.ms$"),
        (Consumer, "sasl.jaas.config", "clients authenticate with a token "),
        (Consumer, "consumer.timeout.ms", r"an iteration runs until close\(\), and poll\(timeout_ms=...\)"),
        (Consumer, "statistics.interval.ms", r"Producer\.metrics\(\) returns"),
        (Producer, "Queue.Buffering.Max.Ms", r"here it is linger\.ms$"),
    ],
)
def test_what_stands_for_a_setting_of_kafka_is_named_and_not_guessed(make: Callable[..., object], name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"^unknown setting '{re.escape(name)}': {hint}"):
        make({name: "1"})


def test_a_topic_has_no_lag_of_its_own() -> None:
    name, hint = "replica.lag.time.max.ms", "it is a setting of the broker, as in Kafka, and holds for all topics$"
    with pytest.raises(InvalidConfigError, match=rf"^unknown setting '{name}' \(topic setting\): {hint}"):
        topic_config({name: "5000"}, {})


def test_what_is_advised_exists_and_what_is_foreign_does_not() -> None:
    for name, hint in HINTS.items():
        assert name not in KNOWN or "a setting of the broker" in hint
        for advised in re.findall(r"here (?:it is )?([a-z]+(?:\.[a-z.]+)+)", hint):
            assert advised in KNOWN, f"{name}: {hint}"
