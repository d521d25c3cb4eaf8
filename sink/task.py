"""One task's write, by a producer that is a member of the write's transaction, or by a plain producer for at-least-once delivery.

The driver's commit (transaction.py) makes the member's rows visible; until then, and after an abort, read_committed consumers do
not see them. A task that fails aborts its own member, so that consumers do not wait for it to expire.

Producers are reused between tasks: each serves one task at a time, and is closed once it has been idle for a while
(client/leases.py). The producer of a failed task is closed at once and its pending records are dropped, since waiting would only
delay Spark's next attempt.

Spark's Arrow batches become records by column, never by row. Types are checked once, on the driver, against Spark's schema
(options.py). Arrow types are not checked: nullability, time zones and list item names vary with Spark's settings, and the producer
casts. RowTotals sums over all rows of a transaction, so that the broker can tell a replay from other data. The sums depend neither
on the order of rows nor on how batches divide them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from brokerd import process
from brokerd.client.leases import LeaseCache
from brokerd.clock import SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.errors import AlreadyCommittedError, InvalidRecordError
from brokerd.ids import topic_name_problem
from brokerd.producer import columns
from brokerd.producer.core.membership import HASH_SUM_MODULUS, MemberReport, Membership, Totals
from brokerd.producer.core.partitioner import Int32s, murmur2
from brokerd.producer.producer import Producer
from brokerd.record.schema import HEADERS, KEY, SCHEMA_0, VALUE
from brokerd.sink.options import SinkOptions
from brokerd.sink.transaction import TransactionIds, TransactionPart, abort_parts

# Closing a cached producer does not wait for its pending records.
producers: LeaseCache[ProducerConfig, Producer] = LeaseCache(SystemClock(), Producer, lambda one: one.close(0), is_shared=False)
process.in_forked_child(producers.forget)


def write_at_least_once(options: SinkOptions, arrow_batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    """Sends rows as they arrive (a full buffer blocks Spark), then waits until all are acknowledged.

    Raises InvalidRecordError, UnknownTopicOrPartitionError, DeliveryTimeoutError, or another producer error.
    """
    with producers.lease(options.producer) as producer:
        for arrow_batch in arrow_batches:
            _send(producer, options, arrow_batch)
            _raise_first(producer)
        producer.flush()
        _raise_first(producer)
    return WriterCommitMessage()  # nothing to commit


def write_as_member(options: SinkOptions, ids: TransactionIds, arrow_batches: Iterator[pa.RecordBatch]) -> TransactionPart:
    """Sends rows as a member of their transaction. If its version is already committed, counts the rows and sends none.

    Raises the errors of `write_at_least_once`, and TxnConflictError, ProducerFencedError, InvalidTxnStateError.
    """
    totals = RowTotals()
    with producers.lease(options.producer) as producer:
        # Each attempt of a task is its own member. Batch writes use the setting transaction.timeout.ms, too: a stage may wait
        # minutes for executors, and only running tasks send heartbeats.
        producer.begin_member(
            Membership(
                ids.transactional_id,
                ids.txn_version,
                ids.execution_id,
                ids.run_id,
                ids.owner,
                uuid.uuid4().bytes,
                options.producer.transaction_timeout_ms,
            )
        )
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
            return TransactionPart(ids, totals.totals, None, is_skipped=True)
        except BaseException:
            abort_parts(options, [_part(ids, totals, producer.abort_member())])
            raise
    return _part(ids, totals, report)


def _part(ids: TransactionIds, totals: RowTotals, report: MemberReport) -> TransactionPart:
    return TransactionPart(ids, totals.totals, report if report.producer_id >= 0 else None)


def _send(producer: Producer, options: SinkOptions, arrow_batch: pa.RecordBatch, key_hashes: Int32s | None = None) -> None:
    """Sends rows. Adds the topic to the producer's error about an invalid row."""
    for rows in to_records(arrow_batch, topic=options.topic, key_hashes=key_hashes):
        try:
            producer.send_batch(rows.topic, rows.records, rows.partitions, key_hashes=rows.key_hashes)
        except ValueError as error:
            raise InvalidRecordError(f"rows for topic '{rows.topic}' cannot be written: {error}") from None


def _raise_first(producer: Producer) -> None:
    if producer.first_error is not None:
        raise producer.first_error


# --- columns

UNSET_PARTITION = -1


class TopicRows(NamedTuple):
    """Rows of one topic, in Spark's order."""

    topic: str
    records: pa.RecordBatch  # key, value, headers and timestamp, as far as present, in Spark's types
    partitions: Int32s | None  # -1 = the partitioner chooses; None = it chooses for all rows
    key_hashes: Int32s | None = None  # the partitioner's hashes, if computed already


def to_records(arrow_batch: pa.RecordBatch, *, topic: str | None, key_hashes: Int32s | None = None) -> Iterator[TopicRows]:
    """Yields the rows of one Arrow batch as records, by topic in order of first appearance. Raises InvalidRecordError.

    Columns are passed on unchanged: the producer casts text to bytes, and gives rows without a timestamp the current time.
    """
    if arrow_batch.num_rows == 0:
        return
    names = arrow_batch.schema.names
    records = arrow_batch.select([name for name in SCHEMA_0.names if name in names])
    if HEADERS.name in names:
        _check_headers(arrow_batch.column(HEADERS.name))
    partitions = _partition_column(arrow_batch.column("partition")) if "partition" in names else None
    if topic is not None:
        yield TopicRows(topic, records, partitions, key_hashes)
    else:
        yield from _by_topic(arrow_batch.column("topic"), records, partitions, key_hashes)


def _by_topic(
    topics: pa.Array,
    records: pa.RecordBatch,
    partitions: Int32s | None,
    key_hashes: Int32s | None,
) -> Iterator[TopicRows]:
    if topics.null_count:
        raise InvalidRecordError(
            f"column 'topic' is null in {topics.null_count} of {len(topics)} rows: every row needs a topic, or set option 'topic'"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()  # one entry per topic, not per row
    for name in names:
        problem = topic_name_problem(name)
        if problem:  # the producer would wait max.block.ms for the topic to appear
            raise InvalidRecordError(f"column 'topic' holds '{name}', which is not a topic's name: {problem}")
    if len(names) == 1:
        yield TopicRows(names[0], records, partitions, key_hashes)
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        chosen = np.flatnonzero(codes == code)
        taken = [None if column is None else column[chosen] for column in (partitions, key_hashes)]
        yield TopicRows(name, records.take(pa.array(chosen)), *taken)


def _check_headers(headers: pa.Array) -> None:
    entries = headers.flatten()  # of this slice, without elements hidden by null lists
    if entries.null_count or pc.struct_field(entries, 0).null_count:
        raise InvalidRecordError(
            "a header or its key is null, but every header needs a key: filter such entries out of column 'headers'"
        )


def _partition_column(column: pa.Array) -> Int32s | None:
    if column.null_count == len(column):
        return None
    lowest, highest = (pc.min(column).as_py(), pc.max(column).as_py())
    if lowest < 0 or highest > np.iinfo(np.int32).max:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRecordError(f"column 'partition' holds {wrong}, which is not a partition: partitions are numbered from 0")
    chosen: Int32s = pc.fill_null(column.cast(pa.int32()), UNSET_PARTITION).to_numpy()
    return chosen


# The hash of a null key. It exceeds 32 bits, so no murmur2 hash equals it, and a null key differs from an empty one.
_NULL_KEY_HASH = 0x9E3779B97F4A7C15


class RowTotals:
    """Accumulates the sums over rows."""

    def __init__(self) -> None:
        self.totals = Totals()

    def add(self, rows: pa.RecordBatch) -> Int32s | None:
        """Adds rows with the columns key (optional) and value, in the types that Producer.send_batch takes. Returns the hashes of
        the keys, to be passed to it as `key_hashes`, or None without keys. Raises TypeError naming a column of a wrong type.
        """
        count = rows.num_rows
        value = columns.bytes_column(rows, VALUE)
        key = columns.bytes_column(rows, KEY) if KEY.name in rows.schema.names else None
        hashes = murmur2(key) if key is not None and key.null_count < count else None
        self.totals = self.totals.plus(Totals(count, _bytes_in(key), _bytes_in(value), _hash_sum(key, hashes, count)))
        return hashes


def _hash_sum(key: pa.Array | None, hashes: Int32s | None, count: int) -> int:
    if key is None or hashes is None:
        return count * _NULL_KEY_HASH % HASH_SUM_MODULUS
    total = int(hashes.view(np.uint32).sum(dtype=np.uint64))
    if key.null_count:
        empty_hash = int(murmur2(pa.array([b""])).view(np.uint32)[0])  # murmur2 hashes a null key as an empty one
        total += key.null_count * (_NULL_KEY_HASH - empty_hash)
    return total % HASH_SUM_MODULUS


def _bytes_in(column: pa.Array | None) -> int:
    if column is None or not len(column):
        return 0
    if not column.null_count:
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        return int(offsets[-1]) - int(offsets[0])
    return pc.sum(pc.binary_length(column)).as_py() or 0
