"""The name that a user probably meant, for errors about an unknown one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_NEAR = 0.75  # how alike two names must be, from 0 to 1
_STEM = 4  # letters that may stand for a longer name


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "", otherwise: str | None = None) -> str:
    """A hint that names the nearest of `known`; if none is near, `otherwise`, by default a list of all of them. `prefix` stands
    before each in the hint."""
    known = list(known)
    nearest = max(known, key=lambda one: _likeness(name, one), default="")
    if _likeness(name, nearest) >= _NEAR:
        return f"did you mean '{prefix}{nearest}'?"
    return f"choose from {', '.join(prefix + one for one in known)}" if otherwise is None else otherwise


def _likeness(name: str, other: str) -> float:
    """Words that both have, such as `timeout` and `ms`, make no two names alike: the rest does."""
    name, other = name.lower(), other.lower()
    if (len(name) >= _STEM and other.startswith(name)) or sorted(name) == sorted(other):  # letters changed places
        return 1.0
    words, others = _words(name), _words(other)
    rest, other_rest = [word for word in words if word not in others], [word for word in others if word not in words]
    if not (rest and other_rest):  # one name is part of the other
        rest, other_rest = words, others
    return SequenceMatcher(None, "".join(rest), "".join(other_rest)).ratio()


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name)
