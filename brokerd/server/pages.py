"""Pages of a list by name, whose length its caller decides: found in bounded pieces, of which the caller takes turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from brokerd.server.waiting.pauses import Pauses

LISTED_MAX = 1_000
_AT_ONCE = 2_000  # names
_PIECES = 100  # that so many of them take

T = TypeVar("T")


class Page(NamedTuple):
    """Names, in order; `more`: there are others after the last one."""

    names: list[str]
    more: bool


async def page_of(known: Mapping[str, T], *, prefix: str, after: str, pauses: Pauses, is_wanted: Callable[[T], bool]) -> Page:
    """The next names with a prefix. Never sorts more than a page and a piece. Those that go or come meanwhile may be left out."""
    found: list[str] = []
    names = list(known)
    for begin in range(0, len(names), _AT_ONCE):
        piece = [
            name
            for name in names[begin : begin + _AT_ONCE]
            if name > after and name.startswith(prefix) and (one := known.get(name)) is not None and is_wanted(one)
        ]
        found = sorted(found + piece)[: LISTED_MAX + 1]
        await pauses.after(_PIECES)
    return Page(found[:LISTED_MAX], len(found) > LISTED_MAX)
