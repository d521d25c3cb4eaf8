"""Bearer tokens and their hashes, as the auth file holds them: "sha256:" and 64 hex digits.

Why one SHA-256 and no slow, salted hash: tokens here are not passwords that people think up. `check_token` lets only long
random ones through, and nobody guesses 128 bits, fast hash or slow. What scrypt would add is work that any stranger could
make the broker do, some 50 ms of its one core for every wrong token. The hash keeps one thing: whoever reads the file (a
backup, a ticket with the configuration pasted in) cannot use what stands there.
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
# What RFC 6750 allows in a bearer token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


def generate_token() -> str:
    """A new token: 256 random bits."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def check_token(token: str) -> None:
    """Raises ConfigError, without the token, if it is none that random bits made: guessing is all that a hash cannot stop."""
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise ConfigError(
            f"the token has {len(token)} characters, it must have {TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX}: "
            "let 'brokerd hash-token --generate' make one"
        )
    if not _TOKEN.fullmatch(token):
        raise ConfigError("the token holds a character other than letters, digits and . _ ~ + / = -: it cannot travel in a header")
    if len(set(token)) < _DISTINCT_CHARACTERS_MIN:
        raise ConfigError("the token is too regular to be random: let 'brokerd hash-token --generate' make one")


def hash_token(token: str) -> str:
    """What the auth file holds of a token."""
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def is_token_hash(text: str) -> bool:
    """True if `text` is of the form that `hash_token` makes."""
    return _HASH.fullmatch(text) is not None


def find_hash(presented: str, hashes: Iterable[tuple[str, str]]) -> str | None:
    """The owner of the hash that `presented` has, out of (hash, owner), or None.

    All are compared, each in constant time: how long it takes says nothing about how near a guess was.
    """
    presented_hash = hash_token(presented)
    found = None
    for known_hash, owner in hashes:
        if hmac.compare_digest(presented_hash, known_hash):
            found = owner
    return found
