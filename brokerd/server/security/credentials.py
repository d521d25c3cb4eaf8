"""The broker's certificates: read and checked once, in the forms that gRPC and the metrics endpoint take.

gRPC finds a bad file only when the first client knocks, and then says little; here a start fails with a sentence.
"""

from __future__ import annotations

import ssl

import grpc

from brokerd.config.listeners import Listener
from brokerd.errors import ConfigError


def server_credentials(listener: Listener) -> grpc.ServerCredentials:
    """What gRPC needs to speak TLS, version 1.2 or newer. Raises ConfigError naming the setting and the file."""
    tls_context(listener)
    pair = (_read("ssl.key.file", listener.key_file), _read("ssl.certificate.file", listener.certificate_file))
    if listener.client_auth == "required":
        authorities = _read("ssl.client.ca.file", listener.client_ca_file)
        return grpc.ssl_server_credentials([pair], root_certificates=authorities, require_client_auth=True)
    return grpc.ssl_server_credentials([pair])


def tls_context(listener: Listener) -> ssl.SSLContext:
    """The same for what is not gRPC. Raises ConfigError naming the setting and the file."""
    for name, path in (
        ("ssl.certificate.file", listener.certificate_file),
        ("ssl.key.file", listener.key_file),
        ("ssl.client.ca.file", listener.client_ca_file),
    ):
        if path:
            _read(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password of its own, OpenSSL would ask the terminal for the one of an encrypted key.
        context.load_cert_chain(listener.certificate_file, listener.key_file, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl.certificate.file {listener.certificate_file} and ssl.key.file {listener.key_file} can not be used: "
            f"{_reason(error)}; they must be PEM, belong together, and the key must have no passphrase"
        ) from None
    if listener.client_auth == "required":
        try:
            context.load_verify_locations(listener.client_ca_file)
        except ssl.SSLError as error:
            raise ConfigError(
                f"ssl.client.ca.file {listener.client_ca_file} holds no certificate that can be used: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"can not read {name} {path}: {error.strerror}") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").replace("_", " ").lower()
