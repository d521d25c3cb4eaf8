"""Canaries: tokens and keys pass through every failing path, and then must not appear in any output."""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from brokerd import Producer
from brokerd.cli import main
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ConsumerConfig, ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.datasource.options import parse_source_options
from brokerd.errors import BrokerdError, ConfigError
from brokerd.sink.options import parse_sink_options
from tests.support.certificates import Authority
from tests.support.daemon import DaemonProcess, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import TOKENS, UNKNOWN_TOKEN
from tests.support.wait import DEADLINE_S

CANARIES = (*TOKENS.values(), UNKNOWN_TOKEN)

pytestmark = pytest.mark.usefixtures("quick_refusals")


def check_silent(*texts: str) -> None:
    for text in texts:
        assert not any(canary in text for canary in CANARIES)
        assert "BEGIN PRIVATE KEY" not in text


@pytest.mark.parametrize("kind", [ClientConfig, ProducerConfig, ConsumerConfig])
def test_a_configuration_shows_no_token(kind: type[ClientConfig]) -> None:
    config = from_mapping(kind, {"auth.token": UNKNOWN_TOKEN})
    check_silent(repr(config), str(config), f"{config}")
    assert config.auth_token == UNKNOWN_TOKEN
    assert pickle.loads(pickle.dumps(config)) == config, "a Spark task gets it whole"


def test_options_of_spark_show_no_token_and_are_accepted_bare() -> None:
    given = {"bootstrap.servers": "b:1", "security.protocol": "SSL", "ssl.ca.file": "ca.pem", "auth.token": UNKNOWN_TOKEN}
    sink = parse_sink_options({**given, "topic": "t"})
    source = parse_source_options({**given, "subscribe": "t"}, is_streaming=False)
    check_silent(repr(sink), repr(source))
    assert sink.producer.auth_token == source.consumer.auth_token == UNKNOWN_TOKEN


def test_what_a_process_says_holds_no_secret(tmp_path: Path, auth_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for log_format in ("text", "json"):
        settings = {"auth.file": auth_file, "log.level": "debug", "log.format": log_format, "metrics.port": 0}
        with DaemonProcess(tmp_path / log_format, settings=settings) as daemon:
            given = {"bootstrap.servers": daemon.address, "default.api.timeout.ms": 60_000}
            for token in CANARIES:
                client = BlockingClient(from_mapping(ClientConfig, {**given, "auth.token": token}))
                try:
                    check_silent(str(client.metadata(None)))
                except BrokerdError as error:
                    check_silent(*traceback.format_exception(error), repr(error))
                finally:
                    client.close()
                assert main(["topics", "list", "-b", daemon.address, "-X", f"auth.token={token}"]) in (0, 1)
            daemon.terminate()
        said = daemon.stderr_path.read_text()
        assert "brokerd.audit" in said
        assert "refused: the token is not known" in said
        check_silent(said)
        for line in said.splitlines():
            assert (line.startswith("{") and line.endswith("}")) == (log_format == "json"), line
    captured = capfd.readouterr()
    assert "the token is not known to this broker" in captured.err
    check_silent(captured.out, captured.err)


def test_a_producer_that_is_refused_says_why_without_its_token(
    tmp_path: Path, auth_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running:
        producer = Producer({"bootstrap.servers": running.address, "auth.token": UNKNOWN_TOKEN, "max.block.ms": 60_000})
        with pytest.raises(BrokerdError, match="the token is not known") as caught:
            producer.send("events-1", value=b"v").result(DEADLINE_S)
        check_silent(*traceback.format_exception(caught.value), repr(producer), caplog.text)
        producer.close()


def refused_start(**settings: Any) -> str:
    """The error of a broker that refuses to start with these settings."""
    with pytest.raises(ConfigError) as caught, running_daemon(Path("unused"), files=MemoryFiles(), **settings):
        raise AssertionError("it started")
    return caught.value.message


def test_files_that_cannot_be_used_are_named_and_not_quoted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one", "127.0.0.1"), authority.issue("other", "127.0.0.1")
    swapped = refused_start(ssl_certificate_file=one.key_file, ssl_key_file=one.certificate_file)
    mixed = refused_start(ssl_certificate_file=one.certificate_file, ssl_key_file=other.key_file)
    missing = refused_start(ssl_certificate_file=one.certificate_file, ssl_key_file=str(tmp_path / "missing"))
    assert "must be PEM, belong together" in swapped
    assert "must be PEM, belong together" in mixed
    assert missing.startswith("cannot read ssl.key.file")
    tokens_in_plain = tmp_path / "plain.toml"
    tokens_in_plain.write_text(f'[principals.a]\ntokens = ["{UNKNOWN_TOKEN}"]\n')
    plain = refused_start(auth_file=str(tokens_in_plain))
    assert "use what 'brokerd hash-token' prints" in plain
    check_silent(swapped, mixed, missing, plain)


def test_a_broker_does_not_start_where_strangers_could_reach_it() -> None:
    assert "allow.unauthenticated = true" in refused_start(host="0.0.0.0")


def test_the_command_config_file_carries_the_token(tmp_path: Path, auth_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command_config = tmp_path / "client.properties"
    token_file = tmp_path / "boss.token"
    token_file.write_text(TOKENS["boss"])
    command_config.write_text(f"# who I am\nauth.token.file = {token_file}\n")
    with running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running:
        to_broker = ["-b", running.address, "--command-config", str(command_config)]
        assert main(["topics", "create", "events-1", *to_broker]) == 0
        assert main(["topics", "list", *to_broker]) == 0
        command_config.write_text("auth.token\n")
        assert main(["topics", "list", *to_broker]) == 2
        command_config.write_text(f"auth.tokn = {UNKNOWN_TOKEN}\n")
        assert main(["topics", "list", *to_broker]) == 2
    captured = capfd.readouterr()
    assert "events-1" in captured.out
    assert "line 1: not of the form NAME=VALUE" in captured.err
    assert "did you mean 'auth.token'?" in captured.err
    check_silent(captured.out, captured.err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list", "-X", f"auth.token:{UNKNOWN_TOKEN}"],
        ["topics", "list", "-X", UNKNOWN_TOKEN],
        *[["topics", "list", "-X", name, UNKNOWN_TOKEN] for name in ("auth.token", "auth.token=", "auth.token:", "auth.tokn")],
        ["topics", "list", "-Xauth.token", UNKNOWN_TOKEN],
        ["hash-token", UNKNOWN_TOKEN],
    ],
)
def test_a_mistyped_command_line_shows_no_token(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    check_silent(*capfd.readouterr())


def test_hash_token_takes_what_is_random_and_writes_what_is_new(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.token"
    assert main(["hash-token", "--generate", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["hash-token", "--generate", str(path)]) == 1, "it never overwrites"
    with open(path) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["hash-token"]) == 0
    captured = capfd.readouterr()
    out = captured.out.split()
    assert out[0] == out[1]
    assert captured.err == f"brokerd: the file {path} exists and is not overwritten: choose another name, or remove it\n"
    assert path.read_text().strip() not in out[0]
