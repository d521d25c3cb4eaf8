"""TLS between this project's client and broker: trusted peers work, all others are refused with advice."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.clock import Clock
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import AuthenticationError, BrokerdError, BrokerUnreachableError, ConfigError
from brokerd.wire.v1.topics_pb2 import NewTopic
from tests.support.certificates import Authority, Issued, self_signed
from tests.support.clock import HastyClock
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE, TOKENS, UNKNOWN_TOKEN
from tests.support.wait import DEADLINE_S

pytestmark = pytest.mark.usefixtures("quick_refusals")


class Papers:
    """Certificates of one test run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.other_authority = Authority(directory, "other authority")
        self.broker = self.authority.issue("broker", "localhost", "127.0.0.1")
        self.client = self.authority.issue("client", "reader.example")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


def tls_daemon(tmp_path: Path, certificate: Issued, **settings: Any) -> Any:
    return running_daemon(
        tmp_path / "data",
        files=MemoryFiles(),
        ssl_certificate_file=certificate.certificate_file,
        ssl_key_file=certificate.key_file,
        **settings,
    )


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory, papers: Papers) -> Iterator[RunningDaemon]:
    """A broker with TLS and required tokens."""
    directory = tmp_path_factory.mktemp("tls")
    (directory / "auth.toml").write_text(AUTH_FILE)
    with tls_daemon(directory, papers.broker, auth_file=str(directory / "auth.toml")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, papers: Papers) -> Iterator[RunningDaemon]:
    """A broker that requires client certificates, and maps them to principals."""
    directory = tmp_path_factory.mktemp("mutual")
    (directory / "auth.toml").write_text(AUTH_FILE)
    with tls_daemon(
        directory,
        papers.broker,
        ssl_client_auth="required",
        ssl_client_ca_file=papers.authority.ca_file,
        auth_file=str(directory / "auth.toml"),
    ) as daemon:
        yield daemon


def client_settings(address: str, papers: Papers, **settings: Any) -> dict[str, object]:
    given: dict[str, object] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.file": papers.authority.ca_file,
    }
    return given | {name.replace("_", "."): value for name, value in settings.items()}


def topics_seen(given: dict[str, object], clock: Clock | None = None) -> set[str]:
    """Topics that a client with these settings sees."""
    client = BlockingClient(from_mapping(ClientConfig, given), clock)
    try:
        return set(client.metadata(None).topics)
    finally:
        client.close()


def refusal(given: dict[str, object], clock: Clock | None = None) -> BrokerdError:
    """The error that a client with these settings gets."""
    with pytest.raises(BrokerdError) as caught:
        topics_seen(given, clock)
    return caught.value


def refusal_in_the_end(given: dict[str, object]) -> BrokerdError:
    """Like `refusal`, for errors that could be transient: the client retries until its time-out."""
    return refusal({**given, "retry.backoff.ms": 1, "retry.backoff.max.ms": 2}, HastyClock())


def test_a_record_goes_in_over_tls_and_a_token(tls: RunningDaemon, papers: Papers) -> None:
    boss = client_settings(tls.address, papers, auth_token=TOKENS["boss"])
    client = BlockingClient(from_mapping(ClientConfig, boss))
    client.create_topics([NewTopic(name="events-1", partitions=1)])
    client.close()
    producer_settings = {**client_settings(tls.address, papers), "auth.token": TOKENS["writer"]}
    with Producer(producer_settings) as producer:
        assert producer.send("events-1", value=b"v").result(DEADLINE_S).offset == 0
    assert topics_seen({**boss, "auth.token": TOKENS["reader"]}) == {"events-1"}
    assert topics_seen({**boss, "auth.token": TOKENS["outsider"]}) == set()


def test_the_token_may_stand_in_a_file(tls: RunningDaemon, papers: Papers, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKENS["outsider"] + "\n")
    assert topics_seen(client_settings(tls.address, papers, auth_token_file=str(path))) == set()
    path.write_text("")
    error = refusal(client_settings(tls.address, papers, auth_token_file=str(path)))
    assert isinstance(error, ConfigError)
    assert "holds no token" in error.message


def test_a_producer_outlives_a_moment_without_its_token(tls: RunningDaemon, papers: Papers, tmp_path: Path) -> None:
    """A token's file is often replaced by being written anew, and is empty meanwhile."""
    boss = BlockingClient(from_mapping(ClientConfig, client_settings(tls.address, papers, auth_token=TOKENS["boss"])))
    boss.create_topics([NewTopic(name=name, partitions=1) for name in ("events-2", "events-3", "events-4")])
    boss.close()
    path = tmp_path / "token"
    path.write_text(TOKENS["writer"])
    with Producer(client_settings(tls.address, papers, auth_token_file=str(path))) as producer:
        assert producer.send("events-2", value=b"v").result(DEADLINE_S).offset == 0
        path.write_text("")
        assert producer.send("events-3", value=b"v").result(DEADLINE_S).offset == 0
        path.unlink()
        assert producer.send("events-4", value=b"v").result(DEADLINE_S).offset == 0


def test_a_wrong_token_is_refused_at_once_and_not_repeated_back(tls: RunningDaemon, papers: Papers) -> None:
    error = refusal(client_settings(tls.address, papers, auth_token=UNKNOWN_TOKEN))
    assert isinstance(error, AuthenticationError)
    assert "the token is not known to this broker" in error.message
    assert UNKNOWN_TOKEN not in repr(error)
    error = refusal(client_settings(tls.address, papers))
    assert "set auth.token or auth.token.file" in error.message


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("expired", "has a certificate that has expired"),
        ("wrong name", "has a certificate for other names"),
        ("self-signed", "has a certificate that this client does not trust (self signed certificate): set ssl.ca.file"),
        ("of another authority", "has a certificate that this client does not trust"),
        ("plaintext", "does not speak TLS"),
    ],
)
def test_a_broker_that_cannot_be_trusted_is_refused_at_once(tmp_path: Path, papers: Papers, kind: str, expected: str) -> None:
    certificates = {
        "expired": lambda: papers.authority.issue("expired", "127.0.0.1", is_expired=True),
        "wrong name": lambda: papers.authority.issue("wrong", "elsewhere.example"),
        "self-signed": lambda: self_signed(papers.directory, "alone", "127.0.0.1"),
        "of another authority": lambda: papers.other_authority.issue("foreign", "127.0.0.1"),
    }
    if kind == "plaintext":
        context = running_daemon(tmp_path / "data", files=MemoryFiles())
    else:
        context = tls_daemon(tmp_path, certificates[kind]())
    with context as daemon:
        error = refusal(client_settings(daemon.address, papers))
    assert isinstance(error, AuthenticationError)
    assert error.message.startswith(f"{daemon.address} ")
    assert expected in error.message


def test_a_plaintext_client_gets_nothing_from_a_tls_port_and_no_token_is_sent(tls: RunningDaemon, papers: Papers) -> None:
    given = client_settings(tls.address, papers, auth_token=TOKENS["boss"])
    error = refusal_in_the_end({**given, "security.protocol": "PLAINTEXT", "ssl.ca.file": ""})
    assert isinstance(error, BrokerUnreachableError)
    assert "max.connections, or it requires TLS (then set security.protocol=SSL)" in error.message


def test_a_client_certificate_is_its_principal(mutual: RunningDaemon, papers: Papers) -> None:
    papers_of_client = {"ssl_certificate_file": papers.client.certificate_file, "ssl_key_file": papers.client.key_file}
    assert topics_seen(client_settings(mutual.address, papers, **papers_of_client)) == set()
    stranger = papers.authority.issue("stranger", "stranger.example")
    error = refusal(
        client_settings(mutual.address, papers, ssl_certificate_file=stranger.certificate_file, ssl_key_file=stranger.key_file)
    )
    assert isinstance(error, AuthenticationError)
    assert "the client certificate belongs to no principal" in error.message


@pytest.mark.parametrize("kind", ["missing", "of another authority", "expired"])
def test_a_client_without_a_good_certificate_is_refused(mutual: RunningDaemon, papers: Papers, kind: str) -> None:
    given = client_settings(mutual.address, papers, auth_token=TOKENS["boss"])
    if kind != "missing":
        issued = (
            papers.other_authority.issue("foreign-client", "reader.example")
            if kind == "of another authority"
            else papers.authority.issue("expired-client", "reader.example", is_expired=True)
        )
        given |= {"ssl.certificate.file": issued.certificate_file, "ssl.key.file": issued.key_file}
    error = refusal_in_the_end(given)
    assert isinstance(error, BrokerUnreachableError)
    expected = (
        "if the broker asks for a client certificate" if kind == "missing" else "the broker's ssl.client.ca.file must have signed"
    )
    assert expected in error.message


def hello(address: str, version: ssl.TLSVersion) -> str | None:
    """The version that a handshake of at most `version` negotiates. Raises SSLError or ConnectionError if it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = version
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection, context.wrap_socket(connection) as wrapped:
        return wrapped.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_old_versions_of_tls_are_refused(tls: RunningDaemon) -> None:
    assert hello(tls.address, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        hello(tls.address, ssl.TLSVersion.TLSv1_1)
