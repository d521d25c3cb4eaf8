"""Finds the principal that makes a call, by its bearer token or the client certificate of its connection. Knows no gRPC object.

A token that is sent must be valid: an invalid one never falls back to the certificate or to no principal at all. Errors tell a
caller no more than it needs to know, and never quote any part of its credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from brokerd.errors import BrokerdError
from brokerd.server.security.auth_file import Identities, Principal
from brokerd.server.security.certificate_names import names_in_pem
from brokerd.server.security.tokens import TOKEN_CHARACTERS_MAX, find_hash
from brokerd.server.security.topic_rights import UNLIMITED
from brokerd.sharing.room import Caller

AUTHORIZATION = "authorization"
_BEARER = "bearer "
CERTIFICATE = "x509_pem_cert"  # as gRPC calls it
_TRUSTED = Principal("certificate", UNLIMITED)
ANYBODY = Principal("anybody", UNLIMITED)


def caller_of(principal: str, peer: str) -> Caller:
    """The caller as it shares with others: as its principal; where everybody is the same one, as its connection."""
    return Caller(peer if principal in (ANYBODY.name, _TRUSTED.name) else principal, peer)


class UnauthenticatedError(BrokerdError):
    """The caller has not shown who it is; becomes the status UNAUTHENTICATED."""


class ForbiddenError(BrokerdError):
    """The caller is known and may not make this call at all; becomes the status PERMISSION_DENIED."""


class Authenticator:
    """Authenticates callers by one broker's settings. `identities` None: no auth file."""

    def __init__(self, identities: Identities | None, *, needs_certificate: bool) -> None:
        self.identities = identities  # all principals and their credentials; None = no auth file
        self.is_open = identities is None and not needs_certificate  # everybody may do everything

    def replace(self, identities: Identities | None) -> None:
        """Takes over the newly read auth file. Only a restart adds or removes the file itself."""
        assert (identities is None) == (self.identities is None)
        self.identities = identities

    def principal(
        self, metadata: Iterable[tuple[str, str | bytes]], peer: Mapping[str, Iterable[bytes]] | None = None
    ) -> Principal:
        """The principal that calls. `peer` has the properties that TLS established. Raises UnauthenticatedError."""
        if self.is_open:
            return ANYBODY
        if self.identities is None:
            return _TRUSTED  # the handshake has checked that an authority of ssl.client.ca.file signed its certificate
        headers = [value for name, value in metadata if name.lower() == AUTHORIZATION]
        if headers:
            return self.by_token(headers)
        names = _certificate_names(peer or {})
        found = {self.identities.certificate_names[name] for name in names if name in self.identities.certificate_names}
        if len(found) == 1:
            return self.identities.principals[found.pop()]
        if peer and any(True for _ in peer.get(CERTIFICATE, ())):
            raise UnauthenticatedError(
                "the client certificate belongs to no principal, or to several: have one of its names listed under one "
                "principal's certificates in the broker's auth.file, or set auth.token"
            )
        raise UnauthenticatedError("this broker wants to know who calls: set auth.token or auth.token.file")

    def by_token(self, headers: Sequence[str | bytes]) -> Principal:
        """The principal that owns the token in `headers`, the call's authorization headers. Raises UnauthenticatedError."""
        header = headers[0]
        if len(headers) != 1 or not isinstance(header, str) or not header.lower().startswith(_BEARER):
            raise UnauthenticatedError("the authorization must be one header of the form 'Bearer TOKEN'")
        token = header[len(_BEARER) :].strip()
        owner = None
        if self.identities is not None and len(token) <= TOKEN_CHARACTERS_MAX:
            owner = find_hash(token, self.identities.token_hashes)
        if owner is None:
            raise UnauthenticatedError("the token is not known to this broker: check auth.token, or auth.token.file")
        assert self.identities is not None
        return self.identities.principals[owner]


def _certificate_names(peer: Mapping[str, Iterable[bytes]]) -> set[str]:
    return {name for certificate in peer.get(CERTIFICATE, ()) for name in names_in_pem(certificate)}
