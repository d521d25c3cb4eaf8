"""Texts that came over the wire, made fit for people: for a terminal, a log, an exception."""

from __future__ import annotations

import re

TEXT_MAX_CHARACTERS = 1_000
# Control characters (they move the cursor, colour, rename the window), those that turn the direction of writing or end a line,
# and halves of surrogate pairs, which no terminal can be sent.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain_text(text: str, max_characters: int = TEXT_MAX_CHARACTERS) -> str:
    """`text` on one line: what is not for reading stands as an escape, and a long text is cut, with "..." at its end."""
    plain = _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text[: max_characters + 1])
    return plain if len(plain) <= max_characters else plain[: max_characters - 3] + "..."
