"""Authenticates this client and the broker: TLS credentials, tokens, and errors for failed handshakes.

There is no fallback: with security.protocol=SSL, a connection uses TLS with a trusted certificate or fails.
"""

from __future__ import annotations

import contextlib
import logging
import ssl

import grpc
import grpc.aio

from brokerd.config.client import ClientConfig, is_loopback
from brokerd.config.small_files import read_small_file
from brokerd.errors import AuthenticationError, ConfigError
from brokerd.wire.channel import CHANNEL_ARGUMENTS

logger = logging.getLogger(__name__)

_CONNECT_FAILED = "failed to connect to all addresses"
# How gRPC up to 1.80, and later versions, report a certificate for another name.
_WRONG_NAME = ("is not in peer certificate", "Hostname Verification Check failed")


class ClientSecurity:
    """The security settings of one client, with their files read."""

    def __init__(self, config: ClientConfig) -> None:
        """Raises ConfigError if settings contradict each other or a file cannot be used."""
        self.is_tls = config.security_protocol == "SSL"
        _check(config)
        self._config = config
        self._credentials = _credentials(config) if self.is_tls else None
        self._last_metadata = None if config.auth_token_file else self._read_metadata()  # None: nothing was read from the file yet
        self._is_file_readable = True

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """A channel that connects on first use. Raises ConfigError if a token would cross a network in plaintext."""
        self.check_address(address)
        options = list(CHANNEL_ARGUMENTS)
        if self._credentials is not None:
            return grpc.aio.secure_channel(address, self._credentials, options=options)
        return grpc.aio.insecure_channel(address, options=options)

    def check_address(self, address: str) -> None:
        """Raises ConfigError if a token would cross a network in plaintext."""
        if self.is_tls:
            return
        config = self._config
        has_token = config.auth_token or config.auth_token_file
        if has_token and not config.auth_allow_plaintext and not is_loopback(address.rpartition(":")[0]):
            raise ConfigError(
                f"the token would cross the network to {address} in plaintext: set security.protocol=SSL; or, if a proxy or a "
                "mesh encrypts, auth.allow.plaintext=true"
            )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Headers of a call. The token file is read each time, so that a new token needs no new client. While it holds none, as in
        the middle of a replacement, the last token is used. Raises ConfigError if there is none."""
        if self._config.auth_token_file:
            try:
                self._last_metadata = self._read_metadata()
                self._is_file_readable = True
            except ConfigError as error:
                if self._last_metadata is None:
                    raise
                was_readable, self._is_file_readable = self._is_file_readable, False
                if was_readable:
                    with contextlib.suppress(Exception):  # a log handler may raise, which would stop a producer
                        logger.warning("%s; the last token stays in use", error)
        assert self._last_metadata is not None
        return self._last_metadata

    def _read_metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._config.auth_token or (_read_token(self._config.auth_token_file) if self._config.auth_token_file else "")
        return (("authorization", f"Bearer {token}"),) if token else ()

    def handshake_error(self, address: str, details: str) -> AuthenticationError | None:
        """The TLS problem in gRPC's text about a failed connection; None if the failure may be temporary."""
        if "WRONG_VERSION_NUMBER" in details:
            problem = (
                "does not speak TLS: give the broker ssl.certificate.file and ssl.key.file; or, if plaintext is meant, set "
                "security.protocol=PLAINTEXT"
            )
        elif "certificate has expired" in details:
            problem = (
                "has a certificate that has expired (or this machine's clock is wrong): renew the broker's ssl.certificate.file"
            )
        elif "CERTIFICATE_VERIFY_FAILED" in details:
            reason = details.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2][:60].partition(":")[0]
            problem = (
                f"has a certificate that this client does not trust ({reason}): set ssl.ca.file to the certificate of the "
                "authority that signed it"
            )
        elif any(text in details for text in _WRONG_NAME):
            problem = (
                "has a certificate for other names: use one of its names in bootstrap.servers and in the broker's "
                "advertised.host, or have this name added to the certificate"
            )
        else:
            return None
        return AuthenticationError(f"{address} {problem}")

    def hint(self, details: str) -> str:
        """A possible reason for a connection closed before the broker sent anything; "" for any other failure."""
        if _CONNECT_FAILED not in details or "Socket closed" not in details:
            return ""
        if not self.is_tls:
            return (
                "the connection was closed at once: the broker has reached its max.connections, or it requires TLS (then "
                "set security.protocol=SSL)"
            )
        if not self._config.ssl_certificate_file:
            return (
                "the connection was closed in the TLS handshake: if the broker asks for a client certificate, set "
                "ssl.certificate.file and ssl.key.file; or the broker has reached its max.connections"
            )
        return (
            "the connection was closed in the TLS handshake: an authority in the broker's ssl.client.ca.file must have signed "
            "this client's ssl.certificate.file, and it must not have expired; or the broker has reached its "
            "max.connections"
        )


def _check(config: ClientConfig) -> None:
    if config.auth_token and config.auth_token_file:
        raise ConfigError("auth.token and auth.token.file are both given: keep one")
    if config.security_protocol != "SSL":
        for name, value in (
            ("ssl.ca.file", config.ssl_ca_file),
            ("ssl.certificate.file", config.ssl_certificate_file),
            ("ssl.key.file", config.ssl_key_file),
        ):
            if value:
                raise ConfigError(
                    f"{name} is given, but security.protocol is {config.security_protocol}: set security.protocol=SSL"
                )
    elif bool(config.ssl_certificate_file) != bool(config.ssl_key_file):
        raise ConfigError("ssl.certificate.file and ssl.key.file belong together: give both, or neither")


def _credentials(config: ClientConfig) -> grpc.ChannelCredentials:
    authorities = certificate = key = None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if config.ssl_ca_file:
            authorities = read_small_file(config.ssl_ca_file, "ssl.ca.file")
            name = f"ssl.ca.file {config.ssl_ca_file}"
            context.load_verify_locations(config.ssl_ca_file)
        if config.ssl_certificate_file:
            certificate = read_small_file(config.ssl_certificate_file, "ssl.certificate.file")
            key = read_small_file(config.ssl_key_file, "ssl.key.file")
            name = f"ssl.certificate.file {config.ssl_certificate_file} with ssl.key.file {config.ssl_key_file}"
            context.load_cert_chain(config.ssl_certificate_file, config.ssl_key_file, password="")
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        raise ConfigError(f"{name} cannot be used ({reason}): it must be PEM, its key without a passphrase") from None
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def _read_token(path: str) -> str:
    try:
        token = read_small_file(path, "auth.token.file").decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"auth.token.file {path} holds no token: it must hold one line with only the token")
    return token
