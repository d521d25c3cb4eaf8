"""A path in a setting is read only if it is a regular file of limited size. A pipe without a writer blocks nothing."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.client.security import ClientSecurity
from brokerd.config.broker import BrokerConfig
from brokerd.config.client import ClientConfig
from brokerd.config.load import load_broker_config
from brokerd.config.settings import from_mapping
from brokerd.config.small_files import FILE_BYTES_MAX, read_small_file
from brokerd.errors import ConfigError
from brokerd.server.security.credentials import Certificates, load_auth_file


def test_a_file_is_read_whole_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * FILE_BYTES_MAX)
    (tmp_path / "link").symlink_to("file")
    assert read_small_file(str(tmp_path / "link"), "it") == b"x" * FILE_BYTES_MAX


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


MAKERS = [(pipe, "a pipe"), (device, "a device"), (huge, "more than 4194304 bytes"), (Path.mkdir, "a directory")]


@pytest.mark.parametrize(("make", "kind"), [*MAKERS, (listening, "No such device"), (lambda path: None, "No such file")])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    path = tmp_path / "it"
    make(path)
    with pytest.raises(ConfigError) as refused:
        read_small_file(str(path), "ssl.key.file")
    assert refused.value.message.startswith(f"cannot read ssl.key.file {path}: ")
    assert kind in refused.value.message
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and os.path.realpath(fd) == str(path)]


def client_config(**settings: str) -> ClientConfig:
    return from_mapping(ClientConfig, {"bootstrap.servers": "127.0.0.1:1", **settings})


READERS: dict[str, Callable[[str], object]] = {
    "auth.file": load_auth_file,
    "the configuration file": lambda path: load_broker_config(path=path, environ={}, flags={}),
    "ssl.certificate.file": lambda path: Certificates(BrokerConfig(ssl_certificate_file=path, ssl_key_file=path)),
    "ssl.ca.file": lambda path: ClientSecurity(client_config(**{"security.protocol": "SSL", "ssl.ca.file": path})),
    "auth.token.file": lambda path: ClientSecurity(client_config(**{"auth.token.file": path})).metadata(),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize(("make", "kind"), MAKERS)
def test_every_reader_asks_for_a_file(tmp_path: Path, what: str, make: Callable[[Path], None], kind: str) -> None:
    path = tmp_path / "it"
    make(path)
    with pytest.raises(ConfigError, match=re.escape(f"cannot read {what} {path}: ") + f".*{kind}"):
        READERS[what](str(path))


def test_a_token_s_file_that_holds_none_for_a_moment_is_said_once_and_raises_nothing(tmp_path: Path) -> None:
    """Nor does a log handler: whatever else than a refusal a producer's call raises stops the producer."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            raise ValueError("of the handler")

    told: list[str] = []
    path = tmp_path / "token"
    path.write_text("secret")
    security = ClientSecurity(client_config(**{"auth.token.file": str(path)}))
    before = security.metadata()
    path.write_text("")
    handler, source = Raising(), logging.getLogger("brokerd.client")
    source.addHandler(handler)
    try:
        assert [security.metadata() for _ in range(2)] == [before] * 2
    finally:
        source.removeHandler(handler)
    assert len(told) == 1
    assert told[0].endswith("holds no token: it must hold one line with only the token; the last token stays in use")
