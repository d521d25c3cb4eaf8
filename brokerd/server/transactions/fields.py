"""Checks of fields that the requests about transactions share. Each raises MalformedError starting with the field's name."""

from __future__ import annotations

from typing import Protocol

from brokerd.server.failures import malformed
from brokerd.server.fields import ID_MAX_CHARACTERS, check_not_negative

MEMBER_ID_BYTES = 16


class NamesExecution(Protocol):
    """A request about an execution."""

    transactional_id: str
    txn_version: int
    execution_id: str


def check_execution(request: NamesExecution) -> None:
    """Checks which execution it is."""
    check_id("transactional_id", request.transactional_id)
    check_not_negative("txn_version", request.txn_version)
    check_id("execution_id", request.execution_id)


def check_id(field: str, text: str) -> None:
    """Checks an id that clients choose: 1 to 249 characters that can be printed."""
    if not text:
        raise malformed(field, "must not be empty")
    check_text(field, text)


def check_text(field: str, text: str) -> None:
    """Checks that a text is short and can be printed."""
    if len(text) > ID_MAX_CHARACTERS:
        raise malformed(field, f"has {len(text)} characters, at most {ID_MAX_CHARACTERS} are allowed")
    if not text.isprintable():
        raise malformed(field, f"is {text!a}, but must not have control characters")


def check_member_id(member_id: bytes) -> None:
    """Checks that a member's id has 16 bytes."""
    if len(member_id) != MEMBER_ID_BYTES:
        raise malformed("member_id", f"has {len(member_id)} bytes, but must have {MEMBER_ID_BYTES}")
