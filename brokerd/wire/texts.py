"""Makes text from the wire safe to print: to a terminal, in a log, in an exception."""

from __future__ import annotations

import re

TEXT_MAX_CHARACTERS = 1_000
# Control characters (they move the cursor, change colours, rename the window), characters that change the writing direction or end
# a line, and lone surrogates, which cannot be sent to a terminal.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain_text(text: str, max_characters: int = TEXT_MAX_CHARACTERS) -> str:
    """`text` on one line: unprintable characters are escaped, and a long text is cut and ends in "..."."""
    plain = _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text[: max_characters + 1])
    return plain if len(plain) <= max_characters else plain[: max_characters - 3] + "..."
