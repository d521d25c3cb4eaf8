"""Holes: offsets of a log that an operator has accepted as lost, or taken out. Each partition has one file of holes.

Reads of a hole fail like reads of any damage, but appends continue. A whole batch that cannot be decoded may be taken out: readers
skip the batch, but it stays in its segment, and its producer's sequences still count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from brokerd.errors import DataDirectoryError
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, read_json, write_json
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import Files
from brokerd.storage.names import HOLES

HOLES_KIND = DocumentKind("holes", 1)


class Hole(NamedTuple):
    """Offsets in [`first_offset`, `until_offset`) that an operator has accepted as lost, or taken out."""

    first_offset: int
    until_offset: int
    is_taken_out: bool = False

    def as_range(self) -> DamagedRange:
        """The hole as an accepted damaged range."""
        reason = "taken out" if self.is_taken_out else "a hole"
        return DamagedRange(self.first_offset, self.until_offset, reason, is_accepted=True, is_taken_out=self.is_taken_out)


def is_covered(holes: Iterable[Hole], first_offset: int, until_offset: int) -> bool:
    """True if the holes cover all of [`first_offset`, `until_offset`)."""
    for hole in sorted(holes):
        if hole.first_offset <= first_offset < hole.until_offset:
            first_offset = hole.until_offset
    return first_offset >= until_offset


def holes_end(holes: Iterable[Hole]) -> int:
    """End of the last hole; 0 if there is none. The offsets of a hole were assigned, so the log never ends below it."""
    return max((hole.until_offset for hole in holes), default=0)


def joined(holes: Iterable[Hole]) -> list[Hole]:
    """The same offsets in as few holes as possible: those accepted as lost, then those taken out, by offset."""
    result: list[Hole] = []
    for hole in sorted(holes, key=lambda hole: (hole.is_taken_out, hole)):
        last = result[-1] if result else None
        if last is not None and last.is_taken_out == hole.is_taken_out and hole.first_offset <= last.until_offset:
            result[-1] = last._replace(until_offset=max(last.until_offset, hole.until_offset))
        else:
            result.append(hole)
    return result


def read_holes(files: Files, directory: str, seed: int) -> list[Hole]:
    """The holes of a partition. None if the file is missing, damaged or of another log: the damage then stops the log again.
    Raises OSError, DataDirectoryError.
    """
    try:
        value = read_json(files, f"{directory}/{HOLES}", HOLES_KIND)
    except (FileNotFoundError, DocumentError):
        return []
    if value.get("seed") != seed:
        return []
    try:
        accepted = [Hole(int(first), int(until)) for first, until in value["holes"]]
        return accepted + [Hole(int(first), int(until), True) for first, until in value.get("taken_out", [])]
    except (KeyError, TypeError, ValueError):
        text = f"{directory}/{HOLES} is whole, but holds no holes: put it back from a copy, or remove it"
        raise DataDirectoryError(text) from None


def write_holes(files: Files, directory: str, seed: int, holes: Iterable[Hole]) -> None:
    """Replaces the file, durably on return. Raises OSError."""
    in_order = joined(holes)
    value = {
        "seed": seed,
        "holes": [[hole.first_offset, hole.until_offset] for hole in in_order if not hole.is_taken_out],
        "taken_out": [[hole.first_offset, hole.until_offset] for hole in in_order if hole.is_taken_out],
    }
    write_json(files, f"{directory}/{HOLES}", HOLES_KIND, value)
