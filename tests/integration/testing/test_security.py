"""Goal: a test can use a broker with TLS and authentication through the client settings that the broker returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.errors import AuthenticationError, ConfigError, TopicAuthorizationFailedError
from brokerd.testing import Broker
from tests.support.certificates import Authority
from tests.support.identities import AUTH_FILE, TOKENS


def test_the_tests_own_calls_show_a_token_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("broker", "127.0.0.1")
    (tmp_path / "auth.toml").write_text(AUTH_FILE)
    (tmp_path / "boss.token").write_text(TOKENS["boss"])
    monkeypatch.chdir(tmp_path)
    settings = {"auth.file": "auth.toml", "ssl.certificate.file": issued.certificate_file, "ssl.key.file": issued.key_file}
    client = {"security.protocol": "SSL", "ssl.ca.file": authority.ca_file, "auth.token.file": "boss.token"}
    with Broker(settings, client=client) as broker:
        topic = broker.create_topic("t")
        topic.append(["v"])
        assert [row.value for row in topic.rows()] == [b"v"]


def test_a_broker_with_authentication_refuses_a_test_without_a_token(tmp_path: Path) -> None:
    (tmp_path / "auth.toml").write_text(AUTH_FILE)
    auth_file = tmp_path / "auth.toml"
    with Broker(auth_file=auth_file) as broker, pytest.raises(AuthenticationError):
        broker.create_topic("t")
    reader = {"auth.token": TOKENS["reader"]}
    with Broker(auth_file=auth_file, client=reader) as broker, pytest.raises(TopicAuthorizationFailedError):
        broker.create_topic("events-1")


def test_wrong_settings_of_the_client_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'auth.tokn' \(setting of a testing Broker's client\): did you mean"):
        Broker(client={"auth.tokn": "x"})
    with pytest.raises(ConfigError, match=r"bootstrap.servers is no setting of a testing Broker's client"):
        Broker(client={"bootstrap.servers": "127.0.0.1:1"})
