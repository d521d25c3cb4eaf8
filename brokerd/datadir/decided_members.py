"""The file of an operator's decisions: whether members with lost markers committed or aborted, where the logs do not tell.

`brokerd doctor` writes it, and the next start applies it. Producer ids are never reused, so a decision already applied does no
harm.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from brokerd.errors import DataDirectoryError
from brokerd.storage.checksummed_file import DocumentError, read_json, write_json
from brokerd.storage.files import Files
from brokerd.storage.names import DECIDED_MEMBERS

DECIDED_KIND = "decided-members"
DECIDED_VERSION = 1


class DecidedMembers(NamedTuple):
    """Producer ids by decision."""

    committed: Collection[int] = ()
    aborted: Collection[int] = ()


def read_decided(files: Files) -> DecidedMembers:
    """The decisions; none if the file is missing or damaged, so that the operator must decide again. Raises OSError,
    DataDirectoryError.
    """
    try:
        value = read_json(files, DECIDED_MEMBERS, DECIDED_KIND, DECIDED_VERSION)
    except (FileNotFoundError, DocumentError):
        return DecidedMembers()
    try:
        return DecidedMembers(*(frozenset(map(int, value[field])) for field in DecidedMembers._fields))
    except (KeyError, TypeError, ValueError):
        text = f"{DECIDED_MEMBERS} is whole, but holds no decisions: put it back from a copy, or remove it"
        raise DataDirectoryError(text) from None


def write_decided(files: Files, decided: DecidedMembers) -> None:
    """Replaces the decisions, durably on return. Raises OSError."""
    value = {field: sorted(producer_ids) for field, producer_ids in decided._asdict().items()}
    write_json(files, DECIDED_MEMBERS, DECIDED_KIND, DECIDED_VERSION, value)
