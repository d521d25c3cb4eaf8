"""Parses the .proto files' text for tests: declarations with their lines and comments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PROTO_DIRECTORY = Path(__file__).resolve().parents[2] / "proto" / "brokerd" / "wire" / "v1"
_DECLARATION = re.compile(
    r"^\s*(?:(?P<kind>message|enum|service)\s+(?P<block>\w+)\s*\{"
    r"|rpc\s+(?P<rpc>\w+)\("
    r"|(?:(?:repeated|optional)\s+)?(?:[\w.]+|map<[^>]+>)\s+(?P<field>\w+)\s*=\s*\d+"
    r"|(?P<value>[A-Z][A-Z0-9_]*)\s*=\s*-?\d+)"
)


class Declaration(NamedTuple):
    """A line that declares something."""

    file: str
    line: int
    owner: str  # enclosing blocks, joined by dots
    name: str
    comment: str  # the comment lines directly above, joined


def declarations(file: str) -> list[Declaration]:
    """Every message, enum, service, rpc, field and enum value of one file."""
    found = []
    owners: list[str] = []
    comment: list[str] = []
    for number, line in enumerate((PROTO_DIRECTORY / file).read_text().splitlines(), 1):
        text = line.strip()
        if text.startswith("//"):
            comment.append(text[2:].strip())
            continue
        match = None if text.startswith(("syntax", "package", "import", "option", "reserved")) else _DECLARATION.match(line)
        if match:
            name = next(match[group] for group in ("block", "rpc", "field", "value") if match[group])
            found.append(Declaration(file, number, ".".join(filter(None, owners)), name, " ".join(comment)))
            if match["kind"] and "}" not in text:
                owners.append(name)
        elif text.startswith("oneof "):
            owners.append("")  # its fields belong to the enclosing message
        if text.startswith("}"):
            owners.pop()
        comment = []
    return found


def proto_files() -> list[str]:
    """Names of the .proto files."""
    return sorted(path.name for path in PROTO_DIRECTORY.glob("*.proto"))


def enum_comments(file: str, enum: str) -> dict[str, str]:
    """The comment of each value of an enum."""
    return {found.name: found.comment for found in declarations(file) if found.owner == enum}
