"""Listeners beyond loopback require authentication, and TLS if clients send tokens, unless a setting waives it."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.client import is_loopback
from brokerd.errors import ConfigError

TLS: dict[str, Any] = {"ssl_certificate_file": "c.pem", "ssl_key_file": "k.pem"}
MUTUAL: dict[str, Any] = {**TLS, "ssl_client_ca_file": "ca.pem", "ssl_client_auth": "required"}
EVERYWHERE = "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_is_open(host: str) -> None:
    assert is_loopback(host)
    check_broker(BrokerConfig(host=host, metrics_host=host, metrics_port=0))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "192.0.2.1", "broker.example", "localhost.example", "", "fe80::1"])
def test_what_others_reach_needs_authentication(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"set auth\.file .* or ssl\.client\.auth = required .* allow\.unauthenticated = true"):
        check_broker(BrokerConfig(host=host))
    with pytest.raises(ConfigError, match=r"^host = "):
        check_broker(BrokerConfig(host=host, **TLS))
    with pytest.raises(ConfigError, match=r"^metrics\.host = "):
        check_broker(BrokerConfig(metrics_host=host, metrics_port=0))
    check_broker(BrokerConfig(metrics_host=host))  # metrics are off
    check_broker(BrokerConfig(host=host, allow_unauthenticated=True))
    check_broker(BrokerConfig(host=host, **MUTUAL))
    check_broker(BrokerConfig(host=host, auth_file="a.toml", **TLS))


@pytest.mark.parametrize("host", ["broker.example:9192", "127.0.0.1:9192", "[::1]:9192", "http://broker.example", "etcd://h:1"])
def test_a_host_has_no_port(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^advertised\.host must be .* without a port, not '.*': the port is advertised\.port$"):
        check_broker(BrokerConfig(advertised_host=host))
    with pytest.raises(ConfigError, match=r"^host must be .*: the port is port$"):
        check_broker(BrokerConfig(host=host))
    with pytest.raises(ConfigError, match=r"^metrics\.host must be .*: the port is metrics\.port$"):
        check_broker(BrokerConfig(metrics_host=host))


@pytest.mark.parametrize("host", ["", "broker", "broker_1.example.", "2001:db8::7", "[2001:db8::7]", "fe80::1%eth0", "10.1.2.3"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    check_broker(BrokerConfig(host=host, advertised_host=host, allow_unauthenticated=True))


def test_tokens_do_not_cross_a_network_in_plaintext_unless_told_so() -> None:
    with pytest.raises(ConfigError, match=r"set ssl\.certificate\.file and ssl\.key\.file; or, .* allow\.plaintext\.tokens = true"):
        check_broker(BrokerConfig(host=EVERYWHERE, auth_file="a.toml"))
    with pytest.raises(ConfigError, match="plaintext"):
        check_broker(BrokerConfig(host=EVERYWHERE, auth_file="a.toml", allow_unauthenticated=True))
    check_broker(BrokerConfig(host=EVERYWHERE, auth_file="a.toml", allow_plaintext_tokens=True))
    check_broker(BrokerConfig(auth_file="a.toml"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ssl_certificate_file": "c.pem"}, "ssl.certificate.file is set and ssl.key.file is not"),
        ({"ssl_key_file": "k.pem"}, "ssl.key.file is set and ssl.certificate.file is not"),
        ({"ssl_client_auth": "required", "ssl_client_ca_file": "ca.pem"}, "ssl.client.auth = required needs TLS"),
        ({**TLS, "ssl_client_auth": "required"}, "ssl.client.auth = required needs ssl.client.ca.file"),
        ({**TLS, "ssl_client_ca_file": "ca.pem"}, "ssl.client.ca.file is set, but ssl.client.auth is none"),
    ],
)
def test_halves_of_tls_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_broker(BrokerConfig(**given))
    assert expected in caught.value.message
