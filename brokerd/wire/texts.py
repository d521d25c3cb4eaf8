"""Makes text from the wire safe to print: to a terminal, in a log, in an exception."""

from __future__ import annotations

import re

TEXT_MAX_CHARACTERS = 1_000
# Control characters (they move the cursor, change colours, rename the window), characters that change the writing direction or end
# a line, and lone surrogates, which cannot be sent to a terminal.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# gRPC's texts for a connection that has ended, without a further reason.
_ENDED_IN_GRPC = (
    "Cancelling all calls",
    "GOAWAY received",
    "Internal error from Core",
    "RST_STREAM",
    "Socket closed",
    "Stream removed",
)
_CONNECT_FAILURE = re.compile(
    r"(?:Failed to connect to remote host: |DNS resolution failed for |address lookup failed for )([^\]]*)", re.DOTALL
)
_RESOLVER_CHATTER = re.compile(r"C-ares status is not ARES_SUCCESS [^:]*: ")
_DETAILS_MAX_CHARACTERS = 300


def one_line(text: str) -> str:
    """`text` with unprintable characters written as escapes."""
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def plain_text(text: str, max_characters: int = TEXT_MAX_CHARACTERS) -> str:
    """`text` on one line: unprintable characters are escaped, and a long text is cut and ends in "..."."""
    plain = one_line(text[: max_characters + 1])
    return plain if len(plain) <= max_characters else plain[: max_characters - 3] + "..."


def without_wrapping(details: str) -> str:
    """gRPC's text about a call that failed, without "failed to connect to all addresses; last error: ..." around the reason."""
    found = _CONNECT_FAILURE.search(details)
    text = found.group(1) if found else details
    return plain_text(_RESOLVER_CHATTER.sub("", text).removeprefix("connect: ").strip(), _DETAILS_MAX_CHARACTERS)


def says_lost(details: str) -> bool:
    """True if gRPC's text says only that the connection was lost."""
    return not details or any(text in details for text in _ENDED_IN_GRPC)


def in_plain_words(details: str) -> str:
    """gRPC's text about a call that failed, for a log."""
    plain = without_wrapping(details)
    if plain.lower() == "deadline exceeded":
        return "no response in time"
    return "the connection was lost" if says_lost(plain) else plain
