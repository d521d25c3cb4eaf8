"""Loads the auth file and the certificates that the settings name, the latter in the forms that gRPC and the metrics endpoint take.

Everything is read and checked at the start and at each reload. gRPC notices a bad certificate only when the first client connects,
and reports little; here the start fails with a clear message.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, NamedTuple

import grpc

from brokerd.config.broker import BrokerConfig, check_listening
from brokerd.config.small_files import read_small_file
from brokerd.errors import ConfigError
from brokerd.server.security.auth_file import AuthFile, load_auth_file


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
        # With no password given, OpenSSL would prompt on the terminal for that of an encrypted key.
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
