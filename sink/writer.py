"""Spark's writers: pass rows to the producer in tasks, and counts back to the driver. Thin: rules are in columns.py and
options.py.

Guarantee so far: at-least-once. Within a task nothing is duplicated or reordered, whatever connections break (the producer is
idempotent). But a task that Spark reruns, or a micro-batch replayed after a crash, writes its rows again, and rows of a failed
task stay: Spark decides which attempt counts only after its rows are in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from brokerd.allocator import keep_freed_memory
from brokerd.client.leases import lease_client
from brokerd.errors import ConfigError, InvalidRecordError, UnknownTopicOrPartitionError
from brokerd.producer.producer import Producer
from brokerd.sink.columns import TopicRows, check_columns, to_records
from brokerd.sink.options import SinkOptions, parse_sink_options
from brokerd.sink.producers import delivered_counts, lease_producer


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """The rows that one task wrote. Plain data, because it is pickled and sent to the driver."""

    rows_per_partition: Mapping[str, Mapping[int, int]]  # topic -> partition -> rows acknowledged


# Spark truncates the target for mode("overwrite"), and for outputMode("complete"), which passes the whole result each time.
_NO_OVERWRITE = 'a log cannot be overwritten: write with .mode("append")'
_NO_COMPLETE = (
    'a log cannot be overwritten, which outputMode("complete") would do with each batch. Write an aggregation with '
    '.outputMode("append") after .withWatermark(...), each result once, when its window is over; or write the changes of each '
    'batch with .outputMode("update").foreachBatch(write), where write(rows, batch_id) calls '
    'rows.write.format("brokerd")....mode("append").save()'
)


def plan_write(
    options: Mapping[str, str], columns: Sequence[tuple[str, str]], *, overwrite: bool, is_streaming: bool = False
) -> SinkOptions:
    """Checks a write on the driver, before any task runs: options, columns (name and Spark type), save or output mode, topic.

    Raises ConfigError, UnknownTopicOrPartitionError, BrokerUnreachableError.
    """
    parsed = parse_sink_options(options)
    if overwrite:
        raise ConfigError(_NO_COMPLETE if is_streaming else _NO_OVERWRITE)
    check_columns(columns, topic=parsed.topic, include_headers=parsed.include_headers)
    if parsed.topic is not None:
        with lease_client(parsed.producer) as client:
            metadata = client.metadata([parsed.topic])
        error = metadata.errors.get(parsed.topic)
        if isinstance(error, UnknownTopicOrPartitionError):
            raise UnknownTopicOrPartitionError(
                f"topic '{parsed.topic}' does not exist: create it first (brokerd topics create {parsed.topic} --partitions N), "
                "or correct option topic"
            )
        if error is not None:
            raise error
    return parsed


class BrokerdBatchWriter(DataSourceArrowWriter):
    """df.write.format("brokerd")."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Writes one task's rows; returns once all are acknowledged."""
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: rows are in the log once their task has returned."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: written rows stay, and an error here would hide the one that Spark reports."""


class BrokerdStreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream.format("brokerd")."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Writes one task's rows of a micro-batch; returns once all are acknowledged."""
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Does nothing: rows are in the log once their task has returned."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: written rows stay, and an error here would hide the one that Spark reports."""


def write_rows(options: SinkOptions, arrow_batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
    """Sends rows as they arrive (a full buffer makes Spark wait), then waits until all are acknowledged.

    Raises InvalidRecordError, UnknownTopicOrPartitionError, DeliveryTimeoutError, or another error of the producer.
    """
    keep_freed_memory()
    with lease_producer(options.producer) as producer:
        before = delivered_counts(producer)
        for arrow_batch in arrow_batches:
            for rows in to_records(arrow_batch, topic=options.topic):
                _send(producer, rows)
            _raise_first(producer)
        producer.flush()
        _raise_first(producer)
        counts = delivered_counts(producer)
    written: dict[str, dict[int, int]] = {}
    for tp in sorted(counts):
        if counts[tp] > before.get(tp, 0):
            written.setdefault(tp.topic, {})[tp.partition] = counts[tp] - before.get(tp, 0)
    return SinkCommitMessage(written)


def _send(producer: Producer, rows: TopicRows) -> None:
    """Passes rows to the producer; adds the topic to its error about a row that it cannot take."""
    try:
        producer.send_batch(rows.topic, rows.records, rows.partitions)
    except ValueError as error:
        raise InvalidRecordError(f"rows for topic '{rows.topic}' cannot be written: {error}") from None


def _raise_first(producer: Producer) -> None:
    if producer.first_error is not None:
        raise producer.first_error
