"""Client settings: rules between settings, as in Kafka's clients, and the types and formats of values."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.config.client import parse_bootstrap_servers, producer_config
from brokerd.config.settings import INT32_MAX
from brokerd.errors import ConfigError


def test_an_unset_delivery_timeout_rises_to_what_one_request_may_take() -> None:
    assert producer_config({}).delivery_timeout_ms == 120_000
    config = producer_config({"request.timeout.ms": 180_000, "linger.ms": 7})
    assert config.delivery_timeout_ms == 180_007
    assert producer_config({"request.timeout.ms": INT32_MAX, "linger.ms": 7}).delivery_timeout_ms == INT32_MAX
    assert producer_config({"acks": "1", "request.timeout.ms": 180_000}).delivery_timeout_ms == 180_005


def test_a_delivery_timeout_that_was_given_is_not_changed() -> None:
    given = {"delivery.timeout.ms": 120_000, "request.timeout.ms": 180_000}
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms \(120000\) must be at least linger\.ms \+ request\.timeout\.ms"):
        producer_config(given)
    given = {"delivery.timeout.ms": INT32_MAX, "request.timeout.ms": INT32_MAX}
    assert producer_config(given).delivery_timeout_ms == INT32_MAX


def test_half_of_a_surrogate_pair_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^client\.id must be text that UTF-8 can encode, not '\\udc80'$"):
        producer_config({"client.id": "\udc80"})
    with pytest.raises(ConfigError, match=r"^auth\.token must be text that UTF-8 can encode$"):
        producer_config({"auth.token": "\udc80"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"transactional.id": None}, "transactional.id must be text, not None: leave it out"),
        ({"auth.token": b"secret"}, "auth.token must be text, not of type bytes"),
        ({"bootstrap.servers": ["a:1", "b:1"]}, "bootstrap.servers must be text, not of type list"),
    ],
)
def test_a_value_that_is_no_text_does_not_become_text(given: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        producer_config(given)
    assert str(caught.value) == expected


def test_a_number_and_a_path_may_stand_for_their_text() -> None:
    config = producer_config({"acks": 1, "ssl.ca.file": Path("/etc/ca.pem")})
    assert (config.acks, config.ssl_ca_file) == ("1", "/etc/ca.pem")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9192", ("localhost:9192",)),
        (" a:1 , b:2,", ("a:1", "b:2")),
        ("[::1]:9192", ("[::1]:9192",)),
    ],
)
def test_bootstrap_servers(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_bootstrap_servers(text) == addresses


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "localhost",
        "localhost:",
        ":9192",
        "localhost:http",
        "a:0",
        "a:65536",
        "::1:9192",
        "http://a:1",
        "a:0000080",
        "a:080",
    ],
)
def test_bootstrap_servers_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_bootstrap_servers(text)
