"""The sink's options: case-insensitive names, with or without `kafka.`, and a one-sentence error for each wrong option."""

from __future__ import annotations

import pickle

import pytest

from brokerd.errors import ConfigError
from brokerd.sink.options import Delivery, parse_sink_options

SERVERS = {"bootstrap.servers": "127.0.0.1:9192"}


def test_defaults_are_the_producers_but_for_linger() -> None:
    options = parse_sink_options(SERVERS)
    config = options.producer
    assert (options.topic, options.include_headers) == (None, True)
    assert (config.acks, config.linger_ms, config.enable_idempotence) == ("all", 100, True)


def test_spark_lower_cases_names_and_all_are_found() -> None:
    options = parse_sink_options({**SERVERS, "includeheaders": "FALSE", "linger.ms": "7", "topic": "events"})
    assert not options.include_headers
    assert options.topic == "events"
    assert options.producer.linger_ms == 7


def test_a_setting_given_twice_with_one_value_is_accepted_and_with_two_refused() -> None:
    parse_sink_options({**SERVERS, "kafka.bootstrap.servers": SERVERS["bootstrap.servers"]})
    with pytest.raises(ConfigError, match=r"'bootstrap\.servers' and 'kafka\.bootstrap\.servers' are both given"):
        parse_sink_options({**SERVERS, "kafka.bootstrap.servers": "other:1"})


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("linger.mss", "1", r"unknown option 'linger\.mss' \(option of the brokerd sink\): did you mean 'linger\.ms'\?"),
        ("includeheaders", "yes", r"includeHeaders must be true or false, not 'yes'"),
        ("topic", "a b", r"topic 'a b' is not a topic's name"),
        ("linger.ms", "soon", r"linger\.ms must be a whole number, not 'soon'"),
        ("acks", "2", r"acks must be one of all, -1, 1, 0, not '2'"),
        ("batch.size", "99999999", r"batch\.size \(99999999\) must not exceed max\.request\.size"),
    ],
)
def test_wrong_option_is_refused_in_one_sentence(option: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_sink_options({**SERVERS, option: value})
    assert "\n" not in str(caught.value)


def test_missing_servers_are_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match=r"option 'bootstrap\.servers' is missing"):
        parse_sink_options({"topic": "events"})


def test_options_pickle_because_writers_travel_to_executors() -> None:
    options = parse_sink_options({**SERVERS, "topic": "events"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_transactions_are_chosen_by_options() -> None:
    given = {"txnAppId": "loader", "txnVersion": "12", "txnLabel": "a"}
    options = parse_sink_options({**SERVERS, **given, "transaction.timeout.ms": "5000"})
    assert options.transaction == ("loader", 12, "a")
    assert options.producer.transaction_timeout_ms == 5_000
    assert options.producer.transactional_id == ""  # each task's producer is a member instead
    assert parse_sink_options(SERVERS).delivery is Delivery.EXACTLY_ONCE


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"delivery": "twice"}, "delivery must be exactly_once or at_least_once, not 'twice'"),
        ({"delivery": "at_least_once", "txnLabel": "a"}, "option 'txnLabel' is of transactions"),
        ({"delivery": "at_least_once", "transactional.id": "a"}, "option 'transactional.id' is refused by the sink"),
        ({"kafka.transactional.id": "a"}, "option 'transactional.id' is refused by the sink: two queries that share one"),
        ({"acks": "1", "enable.idempotence": "false"}, "delivery=exactly_once needs acks=all, not acks=1"),
        ({"kafka.retries": "0"}, "delivery=exactly_once needs retries above 0, not retries=0"),
        ({"txnAppId": "a"}, "option 'txnVersion' is missing"),
        ({"txnVersion": "1"}, "option 'txnAppId' is missing"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion must be a whole number between 0 and"),
        ({"txnAppId": "a/b", "txnVersion": "1"}, "txnAppId 'a/b' must not hold '/'"),
        ({"txnLabel": "a\nb"}, "txnLabel must have 1 to 200 printable characters"),
    ],
)
def test_options_of_transactions_that_cannot_hold_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_sink_options({**SERVERS, **given})
