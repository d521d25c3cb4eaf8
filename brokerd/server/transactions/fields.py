"""Checks of fields that the requests about transactions share. Each raises MalformedError starting with the field's name."""

from __future__ import annotations

from typing import Protocol

from brokerd.server.failures import malformed
from brokerd.server.requests import check_id, check_not_negative

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


def check_member_id(member_id: bytes) -> None:
    """Checks that a member's id has 16 bytes."""
    if len(member_id) != MEMBER_ID_BYTES:
        raise malformed("member_id", f"has {len(member_id)} bytes, but must have {MEMBER_ID_BYTES}")
