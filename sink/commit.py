"""What a task tells the driver (plain data, which Spark pickles), and the driver's decision on a write: one EndTransaction for all
tasks' members. Only this makes their rows visible.

Spark calls commit outside any retry of its own: what is not answered is asked again here, and the broker gives the same question
the same answer, so a commit whose answer was lost is not made twice, and one that was lost is made.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from brokerd.client.leases import lease_client
from brokerd.errors import BrokerdError, ReplayMismatchError
from brokerd.producer.core.membership import MemberReport, Totals, TransactionEnd, TransactionMember
from brokerd.sink.options import SinkOptions
from brokerd.sink.transaction_ids import TransactionIds


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """One task's part of a transaction. `totals`: of all rows that it read, whether sent or not. `member` is None if it had no
    rows, or sent none since the version is committed already (`is_skipped`)."""

    ids: TransactionIds
    totals: Totals
    member: MemberReport | None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """One task's write. `rows_per_partition`: topic -> partition -> rows acknowledged."""

    rows_per_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    part: TransactionPart | None = None  # None = at least once: nothing is left to decide


logger = logging.getLogger(__name__)

# The broker forgets the id of a batch write an hour after its commit. Whoever asks later is told that nothing was committed.
JOB_COMMIT_TIMEOUT_MAX_MS = 1_800_000
_ABORT_TIMEOUT_MS = 5_000  # Spark has failed already: what is not aborted expires, or goes with the next commit


def parts_of(messages: Iterable[WriterCommitMessage | None]) -> list[TransactionPart]:
    """The tasks' parts; none of an at-least-once write. In an abort, failed tasks have no message."""
    return [message.part for message in messages if isinstance(message, SinkCommitMessage) and message.part is not None]


def commit_parts(options: SinkOptions, parts: Sequence[TransactionPart]) -> None:
    """Commits what the tasks wrote, also if they had no rows: their version counts as written.

    Raises TxnAbortedError (the write has to be run again), ReplayMismatchError unless failOnReplayMismatch=false,
    ProducerFencedError, TxnConflictError, and BrokerUnreachableError if it could not be decided within default.api.timeout.ms.
    """
    if not parts:
        return
    with lease_client(options.producer) as client:
        try:
            client.end_transaction(_end(parts, is_commit=True), timeout_ms=_commit_timeout_ms(options, parts[0].ids))
        except ReplayMismatchError as error:
            if options.fail_on_replay_mismatch:
                raise
            logger.warning("%s; passed over, since failOnReplayMismatch is false", error)


def abort_parts(options: SinkOptions, parts: Sequence[TransactionPart]) -> None:
    """Ends members of a write that failed, as far as they are known. Never raises: it would hide the error that Spark reports."""
    if not any(part.member for part in parts):
        return
    with contextlib.suppress(Exception):
        try:
            with lease_client(options.producer) as client:
                client.end_transaction(_end(parts, is_commit=False), timeout_ms=_ABORT_TIMEOUT_MS)
        except BrokerdError as error:
            logger.warning("the rows of %s stay undecided until it expires: %s", parts[0].ids.transactional_id, error)


def _commit_timeout_ms(options: SinkOptions, ids: TransactionIds) -> int:
    timeout_ms = options.producer.api_timeout_ms
    return min(timeout_ms, JOB_COMMIT_TIMEOUT_MAX_MS) if ids.is_one_write else timeout_ms


def _end(parts: Sequence[TransactionPart], *, is_commit: bool) -> TransactionEnd:
    members = [part.member for part in parts if part.member is not None]
    totals = Totals()
    for part in parts:
        totals = totals.plus(part.totals)
    return TransactionEnd(
        *parts[0].ids[:4],
        is_commit=is_commit,
        members=[TransactionMember(member.producer_id, member.epoch, member.records) for member in members],
        partitions={tp for member in members for tp in member.partitions},
        totals=totals if is_commit else Totals(),
        any_skipped=any(part.is_skipped for part in parts),
        is_one_write=parts[0].ids.is_one_write,
    )
