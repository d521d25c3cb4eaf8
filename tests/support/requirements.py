"""Prints requirements of pyproject.toml for the Makefile: those of an extra, or the users' at their lowest versions.

    python tests/support/requirements.py gen
    python tests/support/requirements.py --lowest

Standard library only: it runs before anything is installed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_LOWEST = re.compile(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9.]+)")
_USERS_EXTRAS = ("spark", "completion")  # the other extras are for developers, who keep them new


def of_extra(name: str, pyproject: Path = _PYPROJECT) -> list[str]:
    """The requirements of an extra."""
    extras: dict[str, list[str]] = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    return extras[name]


def lowest(pyproject: Path = _PYPROJECT) -> list[str]:
    """`name==version` for each of the users' dependencies, at the lowest allowed version. Raises ValueError for one without a lower
    bound."""
    required: list[str] = [*tomllib.loads(pyproject.read_text())["project"]["dependencies"]]
    for extra in _USERS_EXTRAS:
        required += of_extra(extra, pyproject)
    found = []
    for requirement in required:
        match = _LOWEST.match(requirement)
        if match is None:
            raise ValueError(f"'{requirement}' in pyproject.toml has no lowest version")
        found.append(f"{match.group(1)}=={match.group(2)}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest() if sys.argv[1] == "--lowest" else of_extra(sys.argv[1])) + "\n")
