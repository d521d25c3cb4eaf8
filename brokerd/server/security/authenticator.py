"""Authenticates callers: finds the principal of a call by its bearer token or its connection's client certificate.

A token that is sent must be valid: an invalid one never falls back to the certificate or to no principal. Errors tell a caller no
more than it needs, and never quote any part of its credentials.

Methods authenticate their callers before they read a message. Health is public.

Only common names and DNS names in a client certificate can identify a principal. They are parsed from the certificate itself (DER).
The text that TLS libraries return is cut at a NUL, so that `boss.example`, a NUL and `.evil.org` would become boss.example, and
does not distinguish a DNS name from a URI or an address. The certificate has been verified before; still, unexpected content yields
no name, and parsing never reads outside of the bytes.
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import BrokerdError
from brokerd.server.security.audit import Audit, host_of
from brokerd.server.security.credentials import AuthFile
from brokerd.server.security.tokens import TOKEN_CHARACTERS_MAX, find_hash
from brokerd.server.security.topic_authorizer import ANYBODY, NOTHING, TRUSTED, Principal, TopicAuthorizer
from brokerd.sharing import Caller

AUTHORIZATION = "authorization"
_BEARER = "bearer "
CERTIFICATE = "x509_pem_cert"  # as gRPC calls it
_SEQUENCE, _SET, _OID, _OCTETS = 0x30, 0x31, 0x06, 0x04
_VERSION, _EXTENSIONS, _DNS_NAME = 0xA0, 0xA3, 0x82
_TEXTS = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii", 0x14: "ascii"}  # UTF8String, PrintableString, IA5String, TeletexString
_COMMON_NAME = bytes([0x55, 0x04, 0x03])  # 2.5.4.3
_ALTERNATIVE_NAMES = bytes([0x55, 0x1D, 0x11])  # 2.5.29.17
_SUBJECT_AT = 4  # index among the fields after the version: serial number, algorithm, issuer, validity, subject
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")


class UnauthenticatedError(BrokerdError):
    """The caller has not proved its identity; becomes the status UNAUTHENTICATED."""


class CallContext(Protocol):
    """The parts of a gRPC context that identify the caller."""

    def invocation_metadata(self) -> Iterable[Any] | None:
        """The call's headers."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Properties that TLS has established for the connection, such as the client certificate."""

    def peer(self) -> str:
        """Address of the other side, as gRPC writes it."""


def peer_of(context: CallContext) -> str:
    """The peer in gRPC's notation, decoded: ipv4:192.0.2.1:4711, ipv6:[2001:db8::7]:4711. gRPC encodes brackets as in a URL."""
    return unquote(str(context.peer()))


class Authenticator:
    """Authenticates callers by one broker's settings."""

    def __init__(self, identities: AuthFile | None, *, needs_certificate: bool) -> None:
        self.identities = identities  # all principals and their credentials; None = no auth file
        self.is_open = identities is None and not needs_certificate  # any caller may do everything

    def principal(
        self, metadata: Iterable[tuple[str, str | bytes]], peer: Mapping[str, Iterable[bytes]] | None = None
    ) -> Principal:
        """The principal of a call. `peer` has the properties that TLS established. Raises UnauthenticatedError."""
        identities = self.identities
        if self.is_open:
            return ANYBODY
        if identities is None:
            return TRUSTED  # the handshake verified its certificate with ssl.client.ca.file
        headers = [value for name, value in metadata if name.lower() == AUTHORIZATION]
        if headers:
            return identities.principals[_owner_of_token(headers, identities)]
        certificates = list((peer or {}).get(CERTIFICATE, ()))
        names = {name for certificate in certificates for name in names_in_pem(certificate)}
        found = {identities.certificate_names[name] for name in names if name in identities.certificate_names}
        if len(found) == 1:
            return identities.principals[found.pop()]
        if certificates:
            raise UnauthenticatedError(
                "the client certificate belongs to no principal, or to several: have one of its names listed under one "
                "principal's certificates in the broker's auth.file, or set auth.token"
            )
        raise UnauthenticatedError("this broker requires authentication: set auth.token or auth.token.file")

    def of_call(self, context: CallContext) -> Principal:
        """The principal of a gRPC call. Raises UnauthenticatedError."""
        return ANYBODY if self.is_open else self.principal(context.invocation_metadata() or (), context.auth_context())


class Callers:
    """The callers of one broker's own methods, and what each principal may do.

    `on_stranger` is called for each call without valid credentials.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        topics: TopicStore,
        audit: Audit,
        *,
        on_stranger: Callable[[], None] = lambda: None,
    ) -> None:
        self.generation = 0  # increases when credentials may have changed: earlier callers must authenticate again
        self._authenticator = authenticator
        self._topics = topics
        self._audit = audit
        self._on_stranger = on_stranger
        self._authorizers: dict[str, TopicAuthorizer] = {}  # by principal

    def authenticate(self, context: CallContext) -> tuple[TopicAuthorizer, Caller]:
        """The authorizer of the caller's principal, and the Caller for sharing resources. Raises UnauthenticatedError."""
        peer = peer_of(context)
        try:
            principal = self._authenticator.of_call(context)
        except UnauthenticatedError as error:
            self._on_stranger()
            self._audit.refused(host_of(peer), error.message)
            raise
        authorizer = self._authorizers.get(principal.name)
        if authorizer is None:
            authorizer = TopicAuthorizer(principal, self._topics, self._audit)
            self._authorizers[principal.name] = authorizer
        return authorizer, caller_of(principal, peer)

    def revoked(self, authorizer: TopicAuthorizer, context: CallContext) -> UnauthenticatedError | None:
        """The error for a call whose credentials are no longer those of `authorizer`'s principal; None while they are."""
        try:
            principal = self._authenticator.of_call(context)
        except UnauthenticatedError as error:
            self._audit.refused(authorizer.principal, f"its stream from {peer_of(context)} ends, its credentials are revoked")
            return error
        if principal.name != authorizer.principal:
            self._audit.refused(authorizer.principal, f"its stream from {peer_of(context)} ends, its credentials are another's now")
            return UnauthenticatedError(f"these credentials no longer belong to principal '{authorizer.principal}': connect again")
        return None

    def replace(self, identities: AuthFile | None) -> None:
        """Applies the reloaded auth file, also to open streams: a principal missing there loses all rights. Adding or removing the
        file itself takes a restart."""
        assert (identities is None) == (self._authenticator.identities is None)
        self._authenticator.identities = identities
        self.generation += 1
        if identities is not None:
            for name, authorizer in self._authorizers.items():
                principal = identities.principals.get(name)
                authorizer.replace(NOTHING if principal is None else principal.rights)


def caller_of(principal: Principal, peer: str) -> Caller:
    """The caller for sharing resources: its principal or, where all callers are the same principal, its connection."""
    return Caller(peer if principal in (ANYBODY, TRUSTED) else principal.name, peer)


def _owner_of_token(headers: Sequence[str | bytes], identities: AuthFile) -> str:
    """The name of the principal that owns the token in a call's authorization headers. Raises UnauthenticatedError."""
    header = headers[0]
    if len(headers) != 1 or not isinstance(header, str) or not header.lower().startswith(_BEARER):
        raise UnauthenticatedError("the authorization must be one header of the form 'Bearer TOKEN'")
    token = header[len(_BEARER) :].strip()
    owner = find_hash(token, identities.token_hashes) if len(token) <= TOKEN_CHARACTERS_MAX else None
    if owner is None:
        raise UnauthenticatedError("the token is not known to this broker: check auth.token, or auth.token.file")
    return owner


@functools.lru_cache(maxsize=1_000)
def names_in_pem(pem: bytes) -> frozenset[str]:
    """As names_in_der; empty if `pem` is not a certificate in PEM."""
    try:
        return names_in_der(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
    except ValueError:
        return frozenset()


def names_in_der(der: bytes) -> frozenset[str]:
    """Common names of the subject, and DNS names. Names with a space or control character are left out."""
    try:
        names = set(_names(der))
    except (ValueError, IndexError, UnicodeDecodeError):
        return frozenset()
    return frozenset(name for name in names if name and not _UNPRINTABLE.search(name))


def _names(der: bytes) -> Iterator[str]:
    ((_, certificate),) = _elements(der)
    fields = list(_elements(next(_elements(certificate))[1]))
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    for _, part in _elements(fields[_SUBJECT_AT][1]):
        for _, attribute in _elements(part):
            kind, value = _elements(attribute)
            if kind == (_OID, _COMMON_NAME) and value[0] in _TEXTS:
                yield value[1].decode(_TEXTS[value[0]])
    for tag, wrapped in fields[_SUBJECT_AT + 1 :]:
        if tag == _EXTENSIONS:
            ((_, extensions),) = _elements(wrapped)
            for _, extension in _elements(extensions):
                yield from _dns_names(list(_elements(extension)))


def _dns_names(extension: list[tuple[int, bytes]]) -> Iterator[str]:
    if extension[0] != (_OID, _ALTERNATIVE_NAMES) or extension[-1][0] != _OCTETS:
        return
    ((_, names),) = _elements(extension[-1][1])
    for tag, name in _elements(names):
        if tag == _DNS_NAME:
            yield name.decode("ascii")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element in `data`. Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                raise ValueError(f"a length of {size} bytes")
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("an element is longer than what holds it")
        yield tag, data[at : at + length]
        at += length
