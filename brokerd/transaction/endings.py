"""How members ended that have data without a marker, though they are neither open nor in a prepared commit. Pure.

A partition that has lost nothing has lost no marker: there, such data is void. Where the marker may be lost, its absence proves
nothing. The transaction log tells how a member ended as long as it holds that, of the last commit of an id in any case; or an
operator has decided; else nobody knows, and nothing is ended.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from brokerd.transaction.model import CommitPrepared, LogEntry, MembersAborted

_NO_VERSION = -1


class Outcome(enum.Enum):
    """The end of a member, as far as it is known."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Ending(NamedTuple):
    """How a member ended. The id and version are those of its commit, where they are known."""

    outcome: Outcome
    transactional_id: str = ""
    version: int = _NO_VERSION


def endings(
    producer_ids: Collection[int], lost: Collection[int], entries: Iterable[LogEntry], decided: Mapping[int, Outcome]
) -> dict[int, Ending]:
    """How these members ended. `lost`: those of them whose marker may be lost. `entries`: all that the transaction log holds.
    `decided`: the decisions of an operator.
    """
    found = _recorded(frozenset(producer_ids), entries)
    for producer_id in producer_ids:
        if producer_id not in found:
            presumed = Outcome.UNKNOWN if producer_id in lost else Outcome.ABORTED
            found[producer_id] = Ending(decided.get(producer_id, presumed))
    return found


def _recorded(producer_ids: Collection[int], entries: Iterable[LogEntry]) -> dict[int, Ending]:
    found: dict[int, Ending] = {}
    for entry in entries if producer_ids else ():
        event = entry.event
        if isinstance(event, CommitPrepared):
            ending = Ending(Outcome.COMMITTED, entry.transactional_id, event.execution.version)
            found.update((producer_id, ending) for producer_id in event.committed_ids if producer_id in producer_ids)
        if isinstance(event, CommitPrepared | MembersAborted):
            ended = event.aborted_ids if isinstance(event, CommitPrepared) else event.producer_ids
            found.update((producer_id, Ending(Outcome.ABORTED)) for producer_id in ended if producer_id in producer_ids)
    return found
