"""Certificates and the auth file are reloaded without a restart: new calls and handshakes use them, and a broken file changes
nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import ssl
import threading
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import Counter

from benchmarks.raw_http2 import RawHttp2
from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.broker import BrokerConfig
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import AuthenticationError, BrokerdError, ConfigError, ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.server import daemon
from brokerd.server.security.credentials import Credentials, load_credentials
from brokerd.server.security.tokens import hash_token
from brokerd.wire.methods import PRODUCE
from tests.integration.security.conftest import with_token
from tests.support.certificates import Authority, Issued
from tests.support.clock import HastyClock
from tests.support.daemon import DaemonProcess, RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.identities import AUTH_FILE, TOKENS
from tests.support.raw_client import LONG_MS, RawClient, values_batch
from tests.support.wait import DEADLINE_S, wait_until

LATE_TOKEN = "late-Zx8cVb2nMq7wEr4tYu1iOp0aSd6fGh3j"  # unknown until it is in the file
LATE = f'\n[principals.late]\ntokens = ["{hash_token(LATE_TOKEN)}"]\nwrite = ["events-*"]\n'
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def error_of(client_stream: object, tp: TopicIdPartition) -> int:
    """The error code that a produce stream returns for one batch."""
    return int(client_stream.produce(tp, values_batch(tp)).error.code)  # type: ignore[attr-defined]


def test_principals_come_go_and_change_without_a_restart(tmp_path: Path, auth_file: Path) -> None:
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
        with_token(running.address, TOKENS["writer"]) as writer,
        with_token(running.address, LATE_TOKEN) as late,
    ):
        (tp,) = boss.create_topic("events-1")
        (clicks,) = boss.create_topic("clicks")
        stream, of_boss = writer.producer(), boss.producer()
        assert error_of(stream, tp) == 0
        assert error_of(of_boss, clicks) == 0
        assert late.status()[0] is grpc.StatusCode.UNAUTHENTICATED

        auth_file.write_text(AUTH_FILE.replace('write = ["events-*"]', 'write = ["clicks"]') + LATE)
        running.run(running.daemon.reload())
        assert late.status()[0] is grpc.StatusCode.OK
        assert error_of(late.producer(), tp) == 0
        assert error_of(stream, tp) != 0, "a right that is gone is gone for streams that are open"
        assert error_of(stream, clicks) == 0
        assert error_of(of_boss, clicks) == 0

        auth_file.write_text(AUTH_FILE.partition("[principals.writer]")[0] + LATE)
        running.run(running.daemon.reload())
        assert writer.status()[0] is grpc.StatusCode.UNAUTHENTICATED
        assert stream.status()[0] is grpc.StatusCode.UNAUTHENTICATED, "nor does one write on that is not in the file any more"

        auth_file.write_text("[principals.late]\ntokens = 1")
        with pytest.raises(ConfigError, match="late"):
            running.run(running.daemon.reload())
        assert late.status()[0] is grpc.StatusCode.OK


def test_streams_of_revoked_credentials_end_and_the_others_go_on(tmp_path: Path, auth_file: Path) -> None:
    """One token is removed, another now belongs to a different principal."""
    second_token = "second-" + TOKENS["writer"]
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
        with_token(running.address, TOKENS["writer"]) as first,
        with_token(running.address, second_token) as second,
        with_token(running.address, TOKENS["reader"]) as reader,
    ):
        (tp,) = boss.create_topic("events-1")
        stays, revoked, parked = first.producer(), second.producer(), reader.fetcher()
        assert error_of(stays, tp) == error_of(revoked, tp) == 0
        parked.post({tp: 2}, max_wait_ms=LONG_MS)
        wait_until(lambda: len(running.daemon.broker.fetch_purgatory) == 1)

        heir = f'\n[principals.heir]\ntokens = ["{hash_token(TOKENS["reader"])}"]\nread = ["events-*"]\n'
        kept = AUTH_FILE.replace(f', "{hash_token(second_token)}"', "").replace(
            hash_token(TOKENS["reader"]), hash_token(LATE_TOKEN)
        )
        auth_file.write_text(kept + heir)
        running.run(running.daemon.reload())
        code, details = revoked.status()
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "the token is not known" in details
        code, details = parked.status()
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "principal 'reader'" in details
        wait_until(lambda: running.daemon.open_stream_count == 1)
        assert len(running.daemon.broker.fetch_purgatory) == 0
        assert error_of(stays, tp) == 0
        assert boss.latest(tp) == 3


def test_what_a_revoked_token_sends_on_is_not_written(tmp_path: Path, auth_file: Path) -> None:
    """Responses in progress are sent; a request that arrives meanwhile is refused."""
    files = MemoryFiles()
    second_token = "second-" + TOKENS["writer"]
    with (
        running_daemon(tmp_path / "data", files=files, auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
        with_token(running.address, second_token) as writer,
    ):
        (tp,) = boss.create_topic("events-1")
        stream = writer.producer()
        with Gate(files, "fdatasync", path=tp.directory_name) as gate:
            stream.post([(tp, values_batch(tp))])
            gate.wait_until_reached()
            auth_file.write_text(AUTH_FILE.replace(hash_token(second_token), hash_token(LATE_TOKEN)))
            reloading = asyncio.run_coroutine_threadsafe(running.daemon.reload(), running.loop)
            wait_until(lambda: writer.status()[0] is grpc.StatusCode.UNAUTHENTICATED)
            stream.post([(tp, values_batch(tp))])
            assert writer.status()[0] is grpc.StatusCode.UNAUTHENTICATED, "and the request has come by now"
        reloading.result(DEADLINE_S)
        assert not stream.answer().results[0].HasField("error")
        assert stream.status()[0] is grpc.StatusCode.UNAUTHENTICATED
        wait_until(lambda: running.daemon.open_stream_count == 0)
    with running_daemon(tmp_path / "data", files=files) as running, RawClient(running.address) as client:
        assert client.latest(tp) == 1


def test_a_revoked_stream_that_is_not_read_ends_with_its_connection(
    tmp_path: Path, auth_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream's status would wait behind a response that the client does not read, without limit."""
    second_token = "second-" + TOKENS["writer"]
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
        contextlib.closing(RawHttp2(running.daemon.port, token=second_token, window=0)) as unread,
    ):
        (tp,) = boss.create_topic("events-1")
        another = boss.producer()
        unread.send_message(unread.call(PRODUCE), another.request([(tp, values_batch(tp))]))
        another.half_close()  # otherwise it is counted as well, until its deadline
        wait_until(lambda: running.daemon.broker.response_budget.used > 0, what="a response that is written")
        auth_file.write_text(AUTH_FILE.replace(hash_token(second_token), hash_token(LATE_TOKEN)))
        running.run(running.daemon.reload())
        wait_until(lambda: running.daemon.open_stream_count == 0)
        assert "does not read its responses" in caplog.text
        assert boss.latest(tp) == 1


class Installed:
    """The files that a broker is configured with, and their replacements."""

    def __init__(self, directory: Path, issued: Issued) -> None:
        self.now = Issued(str(directory / "now.pem"), str(directory / "now.key"))
        self.put(issued)

    def put(self, issued: Issued) -> None:
        """Installs other certificates."""
        shutil.copy(issued.certificate_file, self.now.certificate_file)
        shutil.copy(issued.key_file, self.now.key_file)


def trusts(running: RunningDaemon, ca_file: str, client: Issued | None = None) -> bool:
    """True if a new client that trusts this authority is served."""
    given = {"bootstrap.servers": running.address, "security.protocol": "SSL", "ssl.ca.file": ca_file}
    if client is not None:
        given |= {"ssl.certificate.file": client.certificate_file, "ssl.key.file": client.key_file}
    # TLS gives no reason for a refused client certificate, so the client retries until its time-out.
    settings = from_mapping(ClientConfig, {**given, "retry.backoff.ms": 1, "retry.backoff.max.ms": 2})
    with BlockingClient(settings, HastyClock()) as blocking:
        try:
            blocking.server_info()
        except AuthenticationError:
            return False
        except BrokerdError:
            assert client is not None, "only a client's certificate may be refused without a word"
            return False
    return True


def metrics_trust(running: RunningDaemon, ca_file: str) -> bool:
    """True if the metrics endpoint serves a client that trusts this authority."""
    context = ssl.create_default_context(cafile=ca_file)
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{running.daemon.metrics_port}/metrics", context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_new_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    old, new = Authority(tmp_path), Authority(tmp_path, "new authority")
    installed = Installed(tmp_path, old.issue("broker", "127.0.0.1"))
    files: dict[str, Any] = {"ssl_certificate_file": installed.now.certificate_file, "ssl_key_file": installed.now.key_file}
    with running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=0, **files) as running:
        credentials = grpc.ssl_channel_credentials(Path(old.ca_file).read_bytes())
        with RawClient(running.address) as client:
            client.channel = grpc.secure_channel(running.address, credentials)
            assert client.status()[0] is grpc.StatusCode.OK
            assert trusts(running, old.ca_file)
            assert not trusts(running, new.ca_file)

            Path(installed.now.key_file).write_text("no key")
            with pytest.raises(ConfigError, match=r"ssl\.key\.file"):
                running.run(running.daemon.reload())
            assert trusts(running, old.ca_file)

            installed.put(new.issue("broker2", "127.0.0.1"))
            assert trusts(running, old.ca_file), "not before it is told"
            running.run(running.daemon.reload())
            assert trusts(running, new.ca_file)
            assert not trusts(running, old.ca_file)
            assert metrics_trust(running, new.ca_file)
            assert not metrics_trust(running, old.ca_file)
            assert client.status()[0] is grpc.StatusCode.OK, "a connection that is open stays"


def test_another_authority_for_clients_is_asked_of_new_connections(tmp_path: Path) -> None:
    authority, new = Authority(tmp_path), Authority(tmp_path, "new authority")
    broker = authority.issue("broker", "127.0.0.1")
    before, after = authority.issue("before", "before.example"), new.issue("after", "after.example")
    ca_file = tmp_path / "clients.pem"
    shutil.copy(authority.ca_file, ca_file)
    with running_daemon(
        tmp_path / "data",
        files=MemoryFiles(),
        ssl_certificate_file=broker.certificate_file,
        ssl_key_file=broker.key_file,
        ssl_client_auth="required",
        ssl_client_ca_file=str(ca_file),
    ) as running:
        assert trusts(running, authority.ca_file, before)
        assert not trusts(running, authority.ca_file, after)
        shutil.copy(new.ca_file, ca_file)
        running.run(running.daemon.reload())
        assert trusts(running, authority.ca_file, after)
        assert not trusts(running, authority.ca_file, before)


def test_of_two_at_once_the_later_one_counts(tmp_path: Path, auth_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_read, may_go_on = threading.Event(), threading.Event()

    def load_slowly(config: BrokerConfig) -> Credentials:
        """Makes the first load slow to return."""
        is_first = not has_read.is_set()
        credentials = load_credentials(config)
        has_read.set()
        assert not is_first or may_go_on.wait(DEADLINE_S)
        return credentials

    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, LATE_TOKEN) as late,
    ):
        monkeypatch.setattr(daemon, "load_credentials", load_slowly)
        first = asyncio.run_coroutine_threadsafe(running.daemon.reload(), running.loop)
        assert has_read.wait(DEADLINE_S)
        auth_file.write_text(AUTH_FILE + LATE)
        second = asyncio.run_coroutine_threadsafe(running.daemon.reload(), running.loop)
        with contextlib.suppress(TimeoutError):
            second.result(0.5)  # time to overtake, if it could
        may_go_on.set()
        first.result(DEADLINE_S)
        second.result(DEADLINE_S)
        assert late.status()[0] is grpc.StatusCode.OK


def test_sighup_has_the_process_read_again(tmp_path: Path, auth_file: Path) -> None:
    with (
        DaemonProcess(tmp_path / "data", settings={"auth.file": auth_file}) as daemon,
        with_token(daemon.address, LATE_TOKEN) as late,
    ):

        def tell(text: str) -> None:
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: text in daemon.stderr_path.read_text())

        assert late.status()[0] is grpc.StatusCode.UNAUTHENTICATED
        auth_file.write_text("[principals")
        tell("reload failed, certificates and auth file are unchanged: auth.file")
        auth_file.write_text(AUTH_FILE + LATE)
        tell("reloaded: no certificates, auth file with 5 principals")
        assert late.status()[0] is grpc.StatusCode.OK

        stream = late.producer()
        with with_token(daemon.address, TOKENS["boss"]) as boss:
            (tp,) = boss.create_topic("events-1")
        assert error_of(stream, tp) == 0
        auth_file.write_text(AUTH_FILE)
        tell("auth file with 4 principals; 1 stream of revoked credentials ended")
        assert stream.status()[0] is grpc.StatusCode.UNAUTHENTICATED
        assert daemon.terminate() == 0


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_producer_without_any_right_writes_once_it_has_one(tmp_path: Path, auth_file: Path, *, is_idempotent: bool) -> None:
    """It learns of the right when it requests its id, or on the stream on which it has sent records."""
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
    ):
        boss.create_topic("events-1")
        settings = {"bootstrap.servers": running.address, "auth.token": TOKENS["reader"], "enable.idempotence": is_idempotent}
        with Producer(settings) as producer:
            with pytest.raises(AuthenticationError, match="principal 'reader'"):
                producer.send("events-1", b"x").result(DEADLINE_S)
            auth_file.write_text(AUTH_FILE.replace("[principals.reader]", '[principals.reader]\nwrite = ["events-*"]'))
            running.run(running.daemon.reload())
            assert producer.send("events-1", b"y").result(DEADLINE_S).offset == 0


def test_a_producer_whose_token_is_gone_for_a_moment_loses_nothing(tmp_path: Path, auth_file: Path) -> None:
    """As when tokens are changed. Its stream is ended with a refusal, and so is each new stream until the token is back."""
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
    ):
        boss.create_topic("events-1")
        with Producer({"bootstrap.servers": running.address, "auth.token": TOKENS["writer"]}) as producer:
            assert producer.send("events-1", b"x").result(DEADLINE_S).offset == 0
            auth_file.write_text(AUTH_FILE.replace(hash_token(TOKENS["writer"]), hash_token("another-" + TOKENS["writer"])))
            running.run(running.daemon.reload())
            refused = running.daemon.broker.counters.authentication_failures
            sent = producer.send("events-1", b"y")
            wait_until(lambda: value_of(refused) > 0 or sent.done())
            auth_file.write_text(AUTH_FILE)
            running.run(running.daemon.reload())
            assert sent.result(DEADLINE_S).offset == 1


def value_of(counter: Counter) -> float:
    """The counter's value."""
    return next(sample.value for family in counter.collect() for sample in family.samples if sample.name.endswith("_total"))
