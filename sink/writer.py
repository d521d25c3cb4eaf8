"""Spark's writers. Thin: options.py checks, task.py writes a task's rows, transaction.py commits or aborts.

Spark creates a writer on the driver and pickles it to the tasks. For each commit of a stream it creates another writer in a
separate process, which has only the tasks' commit messages.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from brokerd.allocator import tune_spark_worker
from brokerd.client.leases import lease_client
from brokerd.errors import ConfigError, UnknownTopicOrPartitionError
from brokerd.ids import missing_topic_remedy
from brokerd.sink.options import Delivery, SinkOptions, check_columns, parse_sink_options
from brokerd.sink.transaction import TransactionIds, abort_parts, batch_ids, commit_parts, streaming_ids

# Spark expects truncation for mode("overwrite"), and for outputMode("complete"), which writes the whole result each time.
_NO_OVERWRITE = 'a log cannot be overwritten: write with .mode("append")'
_NO_COMPLETE = (
    'a log cannot be overwritten, which outputMode("complete") would do with each batch. Write an aggregation with '
    '.outputMode("append") after .withWatermark(...), each result once, when its window is over; or write the changes of each '
    'batch with .outputMode("update").foreachBatch(write), where write(rows, batch_id) calls '
    'rows.write.format("brokerd")....mode("append").save()'
)
_NO_VERSIONS_OF_STREAMS = (
    "txnAppId and txnVersion are for batch writes: a streaming query has an id and versions of its own (its checkpoint's query "
    "id, its micro-batches); leave them out"
)


def plan_write(
    options: Mapping[str, str],
    columns: Sequence[tuple[str, str]],
    *,
    overwrite: bool,
    is_streaming: bool = False,
    is_planned: bool = False,
) -> SinkOptions:
    """Checks options, columns (name and Spark type), save or output mode, and topic, on the driver before any task runs. If the
    write `is_planned` already, the topic is not looked up.

    Raises ConfigError, UnknownTopicOrPartitionError, BrokerUnreachableError.
    """
    parsed = parse_sink_options(options)
    if overwrite:
        raise ConfigError(_NO_COMPLETE if is_streaming else _NO_OVERWRITE)
    if is_streaming and parsed.transaction.app_id is not None:
        raise ConfigError(_NO_VERSIONS_OF_STREAMS)
    check_columns(columns, topic=parsed.topic, include_headers=parsed.include_headers)
    if parsed.topic is not None and not is_planned:
        with lease_client(parsed.producer) as client:
            metadata = client.metadata([parsed.topic])
        error = metadata.errors.get(parsed.topic)
        if isinstance(error, UnknownTopicOrPartitionError):
            raise UnknownTopicOrPartitionError(
                f"topic '{parsed.topic}' does not exist: {missing_topic_remedy(parsed.topic, given_by='option topic')}"
            )
        if error is not None:
            raise error
    return parsed


class _Writer(ABC):
    """The common base of both writers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @abstractmethod
    def _ids(self) -> TransactionIds:
        """The ids of the task's transaction. Raises ConfigError."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows; returns once all are acknowledged."""
        # Imported here: the import takes 40 ms of CPU time, which processes that only plan or commit a write do not need.
        from brokerd.sink.task import write_as_member, write_at_least_once

        tune_spark_worker()
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(self._options, iterator)
        return write_as_member(self._options, self._ids(), iterator)

    # batchId, which Spark passes for streams only, is not used: the parts have the number of the micro-batch.

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803, ARG002
        """Makes the rows of these tasks visible, atomically. Idempotent."""
        commit_parts(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803, ARG002
        """Discards the rows of these tasks, best effort. Others are discarded at the stream's next commit, or expire."""
        abort_parts(self._options, messages)


class BrokerdBatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of df.write.format("brokerd"), also inside foreachBatch."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self._job_id = str(uuid.uuid4())  # pickled, so the same in all tasks and in commit

    def _ids(self) -> TransactionIds:
        return batch_ids(self._options.transaction, _local_property, topic=self._options.topic, job_id=self._job_id)


class BrokerdStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of df.writeStream.format("brokerd")."""

    def _ids(self) -> TransactionIds:
        return streaming_ids(self._options.transaction, _local_property, topic=self._options.topic)


def _local_property(name: str) -> str | None:
    """A property of the job that this task belongs to."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
