"""Loads the configured auth file and certificates, the latter in the forms that gRPC and the metrics endpoint take.

Everything is read and checked at the start and at each reload. gRPC notices a bad certificate only when the first client connects,
and reports little; here the start fails with a clear message. The auth file has principals, their credentials and their rights:

    [principals.etl]
    tokens = ["sha256:..."]              # of 'brokerd hash-token'; two at a time make a rotation
    certificates = ["etl.example.com"]   # names in a client certificate (common or alternative), with ssl.client.auth = required
    read = ["clicks"]
    write = ["events-*"]
    admin = []
    groups = ["etl-*"]                   # consumer groups whose offsets it may commit, read and delete

Every error names the file and, where it concerns one, the principal; none contains a token or hash.
"""

from __future__ import annotations

import re
import ssl
import threading
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grpc

from brokerd.config.broker import BrokerConfig, check_listening
from brokerd.config.small_files import parse_toml, read_small_file
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError
from brokerd.server.security.tokens import is_token_hash
from brokerd.server.security.topic_authorizer import Principal, Right, TopicRights, owner_tag

PRINCIPALS_MAX = 1_000
CREDENTIALS_MAX = 1_000  # tokens of all principals: each call compares all of them
_NAME = re.compile(r"[a-zA-Z0-9._@-]{1,100}")
_KEYS = ("tokens", "certificates", *(right.value for right in Right), "groups")


class Credentials(NamedTuple):
    """`identities` None: no auth file; `certificates` None: plaintext."""

    identities: AuthFile | None
    certificates: Certificates | None


def load_credentials(config: BrokerConfig) -> Credentials:
    """Raises ConfigError if the settings contradict each other, or a file cannot be used."""
    check_listening(config)
    identities = load_auth_file(config.auth_file) if config.auth_file else None
    return Credentials(identities, Certificates(config) if config.ssl_certificate_file else None)


class Certificates:
    """Key, certificate and CA certificates for gRPC, which requests them at each handshake in its own thread. TLS 1.2 or newer."""

    def __init__(self, config: BrokerConfig) -> None:
        """Reads the files. Raises ConfigError naming the setting and the file."""
        certificate = read_small_file(config.ssl_certificate_file, "ssl.certificate.file")
        key = read_small_file(config.ssl_key_file, "ssl.key.file")
        authorities = read_small_file(config.ssl_client_ca_file, "ssl.client.ca.file") if config.ssl_client_ca_file else None
        self.tls = _tls_context(config)
        self._needs_client = config.ssl_client_auth == "required"
        self._current = grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authorities if self._needs_client else None
        )
        self._lock = threading.Lock()
        self._next: Any = None

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for one listening address."""
        return grpc.dynamic_ssl_server_credentials(self._current, self._take_next, require_client_authentication=self._needs_client)

    def replace(self, newer: Certificates) -> None:
        """Uses the certificates of `newer` from the next handshake on; open connections keep theirs."""
        with self._lock:
            self._next = newer._current

    def _take_next(self) -> Any:
        """The certificates to use from now on; None if unchanged, since gRPC would otherwise rebuild everything for each
        connection.
        """
        with self._lock:
            newer, self._next = self._next, None
        return newer


def _tls_context(config: BrokerConfig) -> ssl.SSLContext:
    """The same certificates for a server that is not gRPC. Raises ConfigError naming the setting and the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password, OpenSSL would prompt on the terminal if the key is encrypted.
        context.load_cert_chain(config.ssl_certificate_file, config.ssl_key_file, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl.certificate.file {config.ssl_certificate_file} and ssl.key.file {config.ssl_key_file} cannot be used: "
            f"{_reason(error)}; they must be PEM, belong together, and the key must have no passphrase"
        ) from None
    if config.ssl_client_auth == "required":
        try:
            context.load_verify_locations(config.ssl_client_ca_file)
        except ssl.SSLError as error:
            raise ConfigError(
                f"ssl.client.ca.file {config.ssl_client_ca_file} holds no certificate that can be used: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").replace("_", " ").lower()


class AuthFile(NamedTuple):
    """The content of an auth file: principals by name, by token hash, and by certificate name."""

    principals: Mapping[str, Principal]
    token_hashes: tuple[tuple[str, str], ...]  # (hash, name of the principal)
    certificate_names: Mapping[str, str]  # name in a certificate -> name of the principal


def load_auth_file(path: str) -> AuthFile:
    """Reads and checks the file. Raises ConfigError naming the file and, where it concerns one, the principal."""
    try:
        document = parse_toml(read_small_file(path, "auth.file").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"\(at .*\)", str(error)) if isinstance(error, tomllib.TOMLDecodeError) else None
        # Not the decoder's own message, which may quote a secret.
        raise ConfigError(f"auth.file {path} is not TOML{' ' + place[0] if place else ''}") from None
    try:
        return parse_identities(document)
    except ConfigError as error:
        raise ConfigError(f"auth.file {path}: {error.message}") from None


def parse_identities(document: Mapping[str, Any]) -> AuthFile:
    """The identities of a parsed file. Raises ConfigError."""
    for key in document:
        if key != "principals":
            raise ConfigError(f"unknown table '{_shown(key)}': principals stand in [principals.NAME]")
    entries = document.get("principals", {})
    if not isinstance(entries, dict) or not entries:
        raise ConfigError("it has no principals: give at least one [principals.NAME]")
    if len(entries) > PRINCIPALS_MAX:
        raise ConfigError(f"it has {len(entries)} principals, more than the {PRINCIPALS_MAX} that are allowed")
    principals: dict[str, Principal] = {}
    hashes: dict[str, str] = {}
    certificates: dict[str, str] = {}
    tags: dict[int, str] = {}
    for name, entry in entries.items():
        principals[name] = _principal(name, entry)
        _add_all(hashes, _tokens(name, entry), name, "a token")
        _add_all(certificates, _strings(name, entry, "certificates"), name, "a certificate name")
        other = tags.setdefault(owner_tag(name), name)
        if other != name:
            raise ConfigError(f"principals '{other}' and '{name}' would have their producer ids in common: rename one of them")
        if not (entry.get("tokens") or entry.get("certificates")):
            raise ConfigError(f"principal '{name}' has no credentials: give it tokens or certificates")
    if len(hashes) > CREDENTIALS_MAX:
        raise ConfigError(f"it has {len(hashes)} tokens, more than the {CREDENTIALS_MAX} that are allowed")
    return AuthFile(principals, tuple(hashes.items()), certificates)


def _principal(name: str, entry: object) -> Principal:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"'{_shown(name)}' is no name for a principal: letters, digits and . _ @ -, at most 100")
    if not isinstance(entry, dict):
        raise ConfigError(f"principal '{name}' must be a table: [principals.{name}]")
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f"principal '{name}': unknown key '{_shown(key)}': {did_you_mean(key, _KEYS)}")
    patterns = {right: _strings(name, entry, right.value) for right in Right}
    groups = _strings(name, entry, "groups")
    try:
        return Principal(name, TopicRights(patterns, groups))
    except ConfigError as error:
        raise ConfigError(f"principal '{name}': {error.message}") from None


def _tokens(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    for token_hash in _strings(name, entry, "tokens"):
        if not is_token_hash(token_hash):
            raise ConfigError(
                f"principal '{name}': an entry of tokens is not 'sha256:' and 64 hex digits: use what 'brokerd hash-token' prints"
            )
        yield token_hash


def _strings(name: str, entry: Mapping[str, Any], key: str) -> list[str]:
    values = entry.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise ConfigError(f"principal '{name}': {key} must be a list of texts")
    return values


def _add_all(owners: dict[str, str], credentials: Iterator[str] | list[str], name: str, what: str) -> None:
    for credential in credentials:
        owner = owners.setdefault(credential, name)
        if owner != name:
            raise ConfigError(f"principals '{owner}' and '{name}' have {what} in common: each needs its own")


def _shown(text: str) -> str:
    """Text from the file as errors quote it: on one line, and cut so short that it cannot contain a whole misplaced token."""
    return ascii(text[:20])[1:-1]
