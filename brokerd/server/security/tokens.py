"""Bearer tokens and their hashes, as the auth file holds them: "sha256:" and 64 hex digits.

Why a single SHA-256 and not a slow, salted hash: tokens are not passwords chosen by people. `check_token` accepts only long random
ones, and 128 bits cannot be guessed, however fast the hash. scrypt would only let unauthenticated callers cause work, about 50 ms
of processor time per wrong token. The hash serves one purpose: a leaked copy of the file (in a backup, or pasted into a ticket) is
useless.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

from brokerd.errors import ConfigError

TOKEN_CHARACTERS_MIN = 32
TOKEN_CHARACTERS_MAX = 512
_DISTINCT_CHARACTERS_MIN = 12
_RANDOM_BYTES = 32
_PREFIX = "sha256:"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
# The characters that RFC 6750 allows in a bearer token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


def generate_token() -> str:
    """A new token: 256 random bits."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def check_token(token: str) -> None:
    """Raises ConfigError, without the token, if it does not look random: a hash cannot stop guessing."""
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise ConfigError(
            f"the token has {len(token)} characters, but must have {TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX}: "
            "generate one with 'brokerd hash-token --generate'"
        )
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            "the token contains a character other than letters, digits and . _ ~ + / = -: it cannot be sent in a header"
        )
    if len(set(token)) < _DISTINCT_CHARACTERS_MIN:
        raise ConfigError("the token is too regular to be random: generate one with 'brokerd hash-token --generate'")


def hash_token(token: str) -> str:
    """The hash of a token, as the auth file holds it."""
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def is_token_hash(text: str) -> bool:
    """True if `text` has the form that `hash_token` returns."""
    return _HASH.fullmatch(text) is not None


def find_hash(presented: str, hashes: Iterable[tuple[str, str]]) -> str | None:
    """The owner of the hash of `presented`, given pairs of (hash, owner), or None.

    Compares all hashes, each in constant time, so that the duration does not reveal how close a guess was.
    """
    presented_hash = hash_token(presented)
    found = None
    for known_hash, owner in hashes:
        if hmac.compare_digest(presented_hash, known_hash):
            found = owner
    return found
