"""The commit messages of tasks (plain data, which Spark pickles), and the driver's commit or abort: one EndTransaction for the
members of all tasks. Only a commit makes their rows visible.

Spark does not retry a commit, so requests without a response are retried here. EndTransaction is idempotent: a commit whose
request was lost is carried out, and one whose response was lost is not carried out twice.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from brokerd.client.leases import lease_client
from brokerd.errors import BrokerdError, ReplayMismatchError
from brokerd.producer.core.membership import MemberReport, Totals, TransactionEnd
from brokerd.sink.options import SinkOptions
from brokerd.sink.transaction_ids import TransactionIds


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """One task's part of a transaction. `totals`: of all rows that the task read, sent or not. `member` is None if it had no rows,
    or sent none because the version is already committed (`is_skipped`)."""

    ids: TransactionIds
    totals: Totals
    member: MemberReport | None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """The outcome of one task's write."""

    part: TransactionPart | None = None  # None = at least once: nothing to commit


logger = logging.getLogger(__name__)

# The broker forgets the id of a batch write an hour after its commit, and would then answer a retry that nothing was committed.
JOB_COMMIT_TIMEOUT_MAX_MS = 1_800_000
_ABORT_TIMEOUT_MS = 5_000  # the job or task has failed already; members that are not aborted expire, or end with the next commit


def parts_of(messages: Iterable[WriterCommitMessage | None]) -> list[TransactionPart]:
    """The tasks' parts; an at-least-once write has none. In an abort, failed tasks have no message."""
    return [message.part for message in messages if isinstance(message, SinkCommitMessage) and message.part is not None]


def commit_parts(options: SinkOptions, parts: Sequence[TransactionPart]) -> None:
    """Commits the tasks' rows. Commits the version even if there are none.

    Raises TxnAbortedError (run the write again), ReplayMismatchError unless failOnReplayMismatch=false, ProducerFencedError,
    TxnConflictError, and BrokerUnreachableError or a retriable error if the outcome is unknown.
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
    """Aborts the known members of a failed write or task. Never raises an Exception: it would hide the error that Spark reports."""
    if not any(part.member for part in parts):
        return
    with contextlib.suppress(Exception):
        try:
            with lease_client(options.producer) as client:
                client.end_transaction(_end(parts, is_commit=False), timeout_ms=_ABORT_TIMEOUT_MS)
        except BrokerdError as error:
            name = parts[0].ids.transactional_id
            logger.warning("the rows of %s, if they are not committed, stay undecided until it expires: %s", name, error)


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
        members=members,
        partitions={tp for member in members for tp in member.partitions},
        totals=totals if is_commit else Totals(),
        any_skipped=any(part.is_skipped for part in parts),
        is_one_write=parts[0].ids.is_one_write,
    )
