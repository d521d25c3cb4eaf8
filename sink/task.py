"""One task's write, by a producer that is a member of the write's transaction, or by a plain one for at-least-once delivery.

The driver's commit (commit.py) makes the member's rows visible; until then, and after an abort, read_committed consumers do not see
them. A task that fails aborts its own member, so that consumers do not wait for it to expire.

Producers are reused between tasks: each serves one task at a time, and is closed after a while of idleness (client/leases.py). The
producer of a failed task is closed at once and its pending records are dropped, since waiting would only delay Spark's next
attempt.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd import process
from brokerd.client.leases import LeaseCache
from brokerd.clock import SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.errors import AlreadyCommittedError, InvalidRecordError
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.producer import Producer
from brokerd.sink.columns import RowTotals, to_records
from brokerd.sink.commit import SinkCommitMessage, TransactionPart, abort_parts
from brokerd.sink.options import SinkOptions
from brokerd.sink.transaction_ids import TransactionIds

# Closing one does not wait for its pending records.
producers: LeaseCache[ProducerConfig, Producer] = LeaseCache(SystemClock(), Producer, lambda one: one.close(0), is_shared=False)
process.in_forked_child(producers.forget)


def write_at_least_once(options: SinkOptions, arrow_batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
    """Sends rows as they arrive (a full buffer blocks Spark), then waits until all are acknowledged.

    Raises InvalidRecordError, UnknownTopicOrPartitionError, DeliveryTimeoutError, or another producer error.
    """
    with producers.lease(options.producer) as producer:
        for arrow_batch in arrow_batches:
            _send(producer, options, arrow_batch)
            _raise_first(producer)
        producer.flush()
        _raise_first(producer)
    return SinkCommitMessage()


def write_as_member(options: SinkOptions, ids: TransactionIds, arrow_batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
    """Sends rows as a member of their transaction. If its version is already committed, counts the rows and sends none.

    Raises the errors of `write_at_least_once`, and TxnConflictError, ProducerFencedError, InvalidTxnStateError.
    """
    totals = RowTotals()
    with producers.lease(options.producer) as producer:
        producer.begin_member(_membership(options, ids))
        try:
            for arrow_batch in arrow_batches:
                key_hashes = totals.add(arrow_batch) if arrow_batch.num_rows else None
                _send(producer, options, arrow_batch, key_hashes)
                _raise_first(producer)
            report = producer.end_member()
        except AlreadyCommittedError:
            producer.abort_member()
            for arrow_batch in arrow_batches:
                totals.add(arrow_batch)
            return SinkCommitMessage(TransactionPart(ids, totals.totals, None, is_skipped=True))
        except BaseException:
            abort_parts(options, [_part(ids, totals, producer.abort_member())])
            raise
    return SinkCommitMessage(_part(ids, totals, report))


def _part(ids: TransactionIds, totals: RowTotals, report: MemberReport) -> TransactionPart:
    return TransactionPart(ids, totals.totals, report if report.producer_id >= 0 else None)


def _membership(options: SinkOptions, ids: TransactionIds) -> Membership:
    return Membership(
        transactional_id=ids.transactional_id,
        txn_version=ids.txn_version,
        execution_id=ids.execution_id,
        run_id=ids.run_id,
        owner=ids.owner,
        member_id=uuid.uuid4().bytes,  # each attempt of a task is its own member
        # For batch writes too: a stage may wait minutes for executors, and only running tasks send heartbeats.
        timeout_ms=options.producer.transaction_timeout_ms,
    )


def _send(
    producer: Producer, options: SinkOptions, arrow_batch: pa.RecordBatch, key_hashes: npt.NDArray[np.int32] | None = None
) -> None:
    """Sends rows. Adds the topic to the producer's error about an invalid row."""
    for rows in to_records(arrow_batch, topic=options.topic, key_hashes=key_hashes):
        try:
            producer.send_batch(rows.topic, rows.records, rows.partitions, key_hashes=rows.key_hashes)
        except ValueError as error:
            raise InvalidRecordError(f"rows for topic '{rows.topic}' cannot be written: {error}") from None


def _raise_first(producer: Producer) -> None:
    if producer.first_error is not None:
        raise producer.first_error
