"""Suggests the nearest valid name for an unknown one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_NEAR = 0.75  # least likeness of two names, from 0 to 1
_STEM = 4  # shortest prefix that matches a longer name
_LISTED_MAX = 10  # most names in a sentence, if they are listed elsewhere


def did_you_mean(
    name: str, known: Iterable[str], *, prefix: str = "", otherwise: str | None = None, listed: str | None = None
) -> str:
    """A hint with the nearest of `known`; if none is near, `otherwise`, by default a list of them all, or `listed` in place of a
    long list. `prefix` is put before each name."""
    known = list(known)
    nearest = max(known, key=lambda one: _likeness(name, one), default="")
    if _likeness(name, nearest) >= _NEAR:
        return f"did you mean '{prefix}{nearest}'?"
    if otherwise is not None:
        return otherwise
    if listed is not None and len(known) > _LISTED_MAX:
        return listed
    return f"choose from {', '.join(prefix + one for one in known)}"


def _likeness(name: str, other: str) -> float:
    """Similarity from 0 to 1 of two names, not counting words that both contain, such as `timeout` and `ms`."""
    name, other = name.lower(), other.lower()
    if (len(name) >= _STEM and other.startswith(name)) or sorted(name) == sorted(other):  # transposed letters
        return 1.0
    words, others = _words(name), _words(other)
    rest, other_rest = [word for word in words if word not in others], [word for word in others if word not in words]
    if not (rest and other_rest):  # one name is part of the other
        rest, other_rest = words, others
    return SequenceMatcher(None, "".join(rest), "".join(other_rest)).ratio()


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name)
