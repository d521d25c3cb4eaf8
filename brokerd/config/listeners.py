"""Checks who may reach a broker: rules between the settings for listening, TLS and authentication. Pure: opens no file or socket.

The principle: whatever is reachable from another machine is authenticated, and a token does not cross a network in plaintext,
unless the operator explicitly allowed it. Every refusal names the setting to give.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from brokerd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listener:
    """The settings involved, by name; `metrics_host` is None if metrics are off."""

    host: str
    metrics_host: str | None = None
    certificate_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth: str = "none"
    auth_file: str = ""
    allow_unauthenticated: bool = False
    allow_plaintext_tokens: bool = False

    @property
    def is_tls(self) -> bool:
        """True if only TLS is accepted."""
        return bool(self.certificate_file)

    @property
    def is_authenticated(self) -> bool:
        """True if every caller is authenticated: as a principal of the auth file, or by a client certificate."""
        return bool(self.auth_file) or self.client_auth == "required"


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`. A name other than localhost counts as reachable: what it resolves to may
    change."""
    host = host.strip().strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listeners(listener: Listener) -> None:
    """Raises ConfigError with the remedy."""
    _check_tls(listener)
    hosts = [("host", listener.host)]
    if listener.metrics_host is not None:
        hosts.append(("metrics.host", listener.metrics_host))
    for name, host in hosts:
        if is_loopback(host):
            continue
        if not listener.is_authenticated and not listener.allow_unauthenticated:
            raise ConfigError(
                f"{name} = {host} can be reached from other machines, without authentication: set auth.file (tokens) or "
                "ssl.client.auth = required (certificates); or listen on 127.0.0.1; or, if anyone who reaches the port may "
                "read, write and delete everything, set allow.unauthenticated = true"
            )
        if listener.auth_file and not listener.is_tls and not listener.allow_plaintext_tokens:
            raise ConfigError(
                f"{name} = {host} can be reached from other machines, and tokens would cross the network in plaintext: set "
                "ssl.certificate.file and ssl.key.file; or, if a proxy or a mesh encrypts, set allow.plaintext.tokens = true"
            )


def _check_tls(listener: Listener) -> None:
    if bool(listener.certificate_file) != bool(listener.key_file):
        given, missing = ("ssl.certificate.file", "ssl.key.file")
        if listener.key_file:
            given, missing = missing, given
        raise ConfigError(f"{given} is set and {missing} is not: TLS needs both")
    if listener.client_auth == "required":
        if not listener.certificate_file:
            raise ConfigError("ssl.client.auth = required needs TLS: set ssl.certificate.file and ssl.key.file")
        if not listener.client_ca_file:
            raise ConfigError(
                "ssl.client.auth = required needs ssl.client.ca.file, the authorities that sign clients' certificates"
            )
    elif listener.client_ca_file:
        raise ConfigError("ssl.client.ca.file is set, but ssl.client.auth is none: set it to required, or leave the file out")
