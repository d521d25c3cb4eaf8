"""The transaction that a task's rows belong to: its ids, derived from the sink's options and the task's local properties; the
tasks' parts of it; and the driver's commit or abort.

    write                          transactional id                              version       execution
    writeStream                    spark-<query id>-<target>     micro-batch   one execution of that batch
    foreachBatch: df.write         spark-<query id>-<target>     micro-batch   one write
    txnAppId and txnVersion        app-<txnAppId>/<target>       txnVersion    one write
    df.write                       job-<uuid of the writer>      0             the job

The target is the topic, or * if a column names the topic, followed by /<txnLabel> if there is one. Writes to different topics are
therefore different transactions, and a query may change between writeStream and foreachBatch without writing a micro-batch twice.

Spark gives a task of foreachBatch the id of its micro-batch, except through Spark Connect and in a thread that the user started:
there txnAppId and txnVersion must identify the batch. Executions are compared for equality only, since drivers' clocks differ.

A write inside foreachBatch has a run, which is one execution of its micro-batch. The broker treats a second write of the same run
as another write, and a write of another run as a replay. The run must not depend on anything that user code can set, such as the
job group, `spark.app.id` or `spark.app.startTime`. It is the job tag that Spark makes of a random session id and the number of the
root execution; all writes inside foreachBatch share it, even in a thread that inherits Spark's local properties. A micro-batch of
writeStream has one write, and no run.

A commit or abort is one EndTransaction for the members of all tasks. Only a commit makes their rows visible. Spark does not retry a
commit, so requests without a response are retried here. EndTransaction is idempotent, so it does not matter whether the request or
its response was lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from brokerd.client.leases import lease_client
from brokerd.errors import BrokerdError, ConfigError, ReplayMismatchError
from brokerd.ids import TRANSACTIONAL_ID_MAX_LENGTH
from brokerd.producer.core.membership import MemberReport, Totals, TransactionEnd
from brokerd.sink.options import SinkOptions, TransactionOptions

logger = logging.getLogger(__name__)

# Local properties of Spark tasks.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_EXECUTION_ID = "spark.sql.execution.query.id"  # of one query plan; shared by its tasks, retries and speculative attempts
_ROOT_EXECUTION = "spark.sql.execution.root.id"  # counts from 0 in each JVM
_JOB_TAGS = "spark.job.tags"
_ROOT_TAG = re.compile(r"spark-session-[0-9a-f-]{36}-execution-root-id-([0-9]+)")
_DESCRIPTION = "spark.job.description"  # of a streaming query: its name, if any, then its id; display text

_EVERY_TOPIC = "*"
_HASH_LENGTH = 32
_QUERY_NAME_MAX_LENGTH = 100

_NO_RUN = (
    "the task has no job tag ...-execution-root-id-..., which names its execution of the micro-batch, so a second write could not "
    "be distinguished from a repetition of the first: sc.clearJobTags() inside foreachBatch removes that tag; use "
    "sc.removeJobTag(tag) for tags of your own, or set option delivery=at_least_once"
)
Property = Callable[[str], str | None]


class TransactionIds(NamedTuple):
    """One execution of one version of one transactional id."""

    transactional_id: str
    txn_version: int
    execution_id: str
    run_id: str
    owner: str  # display text
    is_one_write: bool = False  # the id is for this write alone; the broker forgets it an hour after the commit


def streaming_ids(options: TransactionOptions, get: Property, *, topic: str | None) -> TransactionIds:
    """The ids for a task of writeStream. Raises ConfigError."""
    query_id, batch_id, execution_id = (get(name) for name in (_QUERY_ID, _BATCH_ID, _EXECUTION_ID))
    if not query_id or not batch_id or not execution_id:
        raise ConfigError(
            "Spark did not tell the task which micro-batch it writes (local properties sql.streaming.queryId, "
            "streaming.sql.batchId, spark.sql.execution.query.id): set option delivery=at_least_once to write all the same"
        )
    owner = f"{_query(query_id, get)}, batch {batch_id}"
    return TransactionIds(_fitting(f"spark-{query_id}-{_target(options, topic)}"), int(batch_id), execution_id, "", owner)


def batch_ids(options: TransactionOptions, get: Property, *, topic: str | None, job_id: str) -> TransactionIds:
    """The ids for a task of df.write, inside foreachBatch or not. `job_id`: from the driver's writer. Raises ConfigError."""
    query_id, batch_id = (get(name) for name in (_QUERY_ID, _BATCH_ID))
    run_id = _run_id(get) if query_id and batch_id else ""
    target = _target(options, topic)
    if options.app_id is not None and options.version is not None:
        owner = f"application {options.app_id}, version {options.version}"
        return TransactionIds(_fitting(f"app-{options.app_id}/{target}"), options.version, job_id, run_id, owner)
    if query_id and batch_id:
        owner = f"{_query(query_id, get)}, batch {batch_id}, foreachBatch"
        return TransactionIds(_fitting(f"spark-{query_id}-{target}"), int(batch_id), job_id, run_id, owner)
    return TransactionIds(f"job-{job_id}", 0, job_id, "", "batch write", is_one_write=True)


def _target(options: TransactionOptions, topic: str | None) -> str:
    target = topic or _EVERY_TOPIC  # neither holds a slash
    return target if options.label is None else f"{target}/{options.label}"


def _query(query_id: str, get: Property) -> str:
    """The display name of a streaming query, with its queryName, which a task finds only in the description of its job."""
    name, mark, _ = (get(_DESCRIPTION) or "").partition(f"\nid = {query_id}")
    name = "".join(letter for letter in name if letter.isprintable())[:_QUERY_NAME_MAX_LENGTH]
    return f"streaming query {name} ({query_id})" if mark and name else f"streaming query {query_id}"


def _run_id(get: Property) -> str:
    """The run of a write inside foreachBatch: the execution of its micro-batch. Raises ConfigError."""
    root = get(_ROOT_EXECUTION)
    for tag in (get(_JOB_TAGS) or "").split(","):
        found = _ROOT_TAG.fullmatch(tag)
        if found is not None and found[1] == root:
            return tag
    raise ConfigError(_NO_RUN)


def _fitting(transactional_id: str) -> str:
    """The id; if it is too long, as with a long topic name, a hash replaces its end."""
    if len(transactional_id) <= TRANSACTIONAL_ID_MAX_LENGTH:
        return transactional_id
    digest = hashlib.sha256(transactional_id.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{transactional_id[: TRANSACTIONAL_ID_MAX_LENGTH - _HASH_LENGTH - 1]}-{digest}"


# --- the tasks' parts, and the driver's decision

# The broker forgets the id of a batch write an hour after its commit; it would tell a later retry that nothing was committed.
JOB_COMMIT_TIMEOUT_MAX_MS = 1_800_000
_ABORT_TIMEOUT_MS = 5_000  # the job or task has failed already; members that are not aborted expire, or end with the next commit


@dataclass(frozen=True, slots=True)
class TransactionPart(WriterCommitMessage):
    """One task's part of the transaction: its commit message, which Spark pickles. `totals` covers all rows that the task read,
    sent or not. `member` is None if the task had no rows, or sent none because the version is already committed (`is_skipped`)."""

    ids: TransactionIds
    totals: Totals
    member: MemberReport | None
    is_skipped: bool = False


def commit_parts(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commits the tasks' rows. The version is committed even if there are no rows.

    Raises TxnAbortedError (run the write again), ReplayMismatchError unless failOnReplayMismatch=false, ProducerFencedError,
    TxnConflictError, and BrokerUnreachableError or a retriable error if the outcome is unknown.
    """
    parts = _parts_of(messages)
    if not parts:
        return
    timeout_ms = options.producer.api_timeout_ms
    if parts[0].ids.is_one_write:
        timeout_ms = min(timeout_ms, JOB_COMMIT_TIMEOUT_MAX_MS)
    with lease_client(options.producer) as client:
        try:
            client.end_transaction(_end(parts, is_commit=True), timeout_ms=timeout_ms)
        except ReplayMismatchError as error:
            if options.fail_on_replay_mismatch:
                raise
            logger.warning("%s; passed over, since failOnReplayMismatch is false", error)


def abort_parts(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Aborts the known members of a failed write or task. Never raises an Exception: it would hide the error that Spark reports."""
    parts = _parts_of(messages)
    if not any(part.member for part in parts):
        return
    with contextlib.suppress(Exception):
        try:
            with lease_client(options.producer) as client:
                client.end_transaction(_end(parts, is_commit=False), timeout_ms=_ABORT_TIMEOUT_MS)
        except BrokerdError as error:
            name = parts[0].ids.transactional_id
            logger.warning("the rows of %s, if they are not committed, stay undecided until it expires: %s", name, error)


def _parts_of(messages: Sequence[WriterCommitMessage | None]) -> list[TransactionPart]:
    """The parts among the messages. An at-least-once write has no parts; in an abort, failed tasks have no message."""
    return [message for message in messages if isinstance(message, TransactionPart)]


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
