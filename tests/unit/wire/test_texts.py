"""Goal: any text from a broker is printed as one line of limited length that cannot control a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.wire.texts import TEXT_MAX_CHARACTERS, in_plain_words, plain_text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("topic 'größe' → 3: \\n", "topic 'größe' → 3: \\n"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edcb", "abc\\u202edcb"),
        ("half \ud800", "half \\ud800"),
        ("", ""),
    ],
)
def test_what_is_not_for_reading_is_escaped(text: str, plain: str) -> None:
    assert plain_text(text) == plain


@given(st.text(), st.integers(10, 40))
def test_any_text_is_printable_and_bounded(text: str, limit: int) -> None:
    plain = plain_text(text, limit)
    assert len(plain) <= limit
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in plain)
    plain.encode()


def test_a_long_text_is_cut_and_says_so() -> None:
    assert plain_text("x" * TEXT_MAX_CHARACTERS) == "x" * TEXT_MAX_CHARACTERS
    assert plain_text("x" * 10_000_000) == "x" * (TEXT_MAX_CHARACTERS - 3) + "..."


@pytest.mark.parametrize(
    ("details", "plain"),
    [
        ("Cancelling all calls", "the connection was lost"),
        ("Internal error from Core", "the connection was lost"),
        ("", "the connection was lost"),
        ("Deadline Exceeded", "no response in time"),
        ("etcdserver: no leader", "etcdserver: no leader"),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:h:1: Failed to connect to remote host: refused",
            "refused",
        ),
    ],
)
def test_what_grpc_says_of_a_failure_becomes_plain_words(details: str, plain: str) -> None:
    assert in_plain_words(details) == plain
