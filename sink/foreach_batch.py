"""append_to: a function for `foreachBatch` that writes small micro-batches without the sink's tasks and processes.

Few, small rows are fetched to the driver as Arrow, sent by a producer there, and committed as one transaction. All other
micro-batches go through `df.write.format("brokerd")`. Both ways write the same version of the same transactional id, so a
micro-batch that is replayed the other way is written once.

Most of the cost on the driver is Spark's planning, so the query for rows has one task: without a shuffle, it needs no adaptive
execution. After a micro-batch of very few and small rows, the next query has no projection either. One task takes longer if each
row still needs much work, or if few of many rows are selected. The next micro-batch then runs as many tasks as it has partitions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from brokerd.clock import SystemClock
from brokerd.config.settings import by_name
from brokerd.config.spark_options import SINK, split_options
from brokerd.errors import ConfigError
from brokerd.sink.options import ACCEPTED, Delivery, SinkOptions, parse_sink_options
from brokerd.sink.task import write_as_member, write_at_least_once
from brokerd.sink.transaction import TransactionIds, abort_parts, batch_ids, commit_parts
from brokerd.sink.writer import plan_write

ROWS_MAX = 2_000  # of a micro-batch that the driver writes
ROW_BYTES_MAX = 16_384  # of each of its rows, so that the driver never holds more than 32 MiB
ONE_TASK_MAX_MS = 250  # a slower query is followed by one task per partition, until that takes at most half of this
PAUSE_MAX = 1_024  # most micro-batches before one task is tried again after repeated slow attempts
# Rows fetched without a check of their sizes. By default they have at most 256 MiB, a quarter of spark.driver.maxResultSize, since
# the sink refuses rows above max.request.size. With a max.request.size above its default, sizes are always checked.
VERY_FEW_ROWS_MAX = 32
VERY_FEW_REQUEST_BYTES_MAX = 8_388_608
VERY_FEW_BYTES_MAX = 1_048_576  # of a micro-batch's rows, above which the next query checks sizes

_IS_SMALL = "is_small"
_SIZES = {
    "key": "coalesce(octet_length(`key`), 0)",
    "value": "coalesce(octet_length(`value`), 0)",
    "topic": "coalesce(octet_length(`topic`), 0)",
    "headers": "coalesce(aggregate(`headers`, 0, (n, h) -> n + octet_length(h.key) + coalesce(octet_length(h.value), 0)), 0)",
}


class Query(Enum):
    """How rows are fetched to the driver. VERY_FEW falls back to ONE_TASK; both ONE_TASK and TASKS fall back to the sink."""

    VERY_FEW = auto()  # up to VERY_FEW_ROWS_MAX rows of unchecked size: the last micro-batch's rows were small
    ONE_TASK = auto()  # up to ROWS_MAX rows, none over ROW_BYTES_MAX
    TASKS = auto()  # the same, with a task for each partition


@dataclass
class Queries:
    """Chooses the query for each micro-batch. Pure. The first micro-batch may have to read a backlog, so it has many tasks."""

    next: Query = Query.TASKS
    pause: int = 1  # micro-batches with many tasks before one task is tried again
    left: int = 1  # of these, how many are left
    may_be_large: bool = False  # rows may be larger than VERY_FEW_REQUEST_BYTES_MAX

    def failed(self) -> None:
        """Notes that the query failed, perhaps because all its rows together were too large."""
        self.next = Query.TASKS

    def ended(self, took_ms: int, rows: Sequence[pa.RecordBatch] | None) -> None:
        """Notes that the query took `took_ms` and fetched `rows`; None if there are too many rows, or too large ones."""
        if self.next is not Query.TASKS and took_ms > ONE_TASK_MAX_MS:
            self.left = self.pause = min(2 * self.pause, PAUSE_MAX)
            self.next = Query.TASKS
            return
        if self.next is Query.TASKS:
            self.left -= 1
            if took_ms > ONE_TASK_MAX_MS // 2 or self.left > 0:
                return
        else:
            self.pause = max(1, self.pause // 2)
        is_very_few = (
            rows is not None
            and not self.may_be_large
            and sum(part.num_rows for part in rows) <= VERY_FEW_ROWS_MAX
            and sum(part.nbytes for part in rows) <= VERY_FEW_BYTES_MAX
        )
        self.next = Query.VERY_FEW if is_very_few else Query.ONE_TASK


class AppendTo:
    """The function that `append_to` returns. It can be pickled, as Spark Connect requires."""

    def __init__(self, options: Mapping[str, str], queries: Queries) -> None:
        self._options = dict(options)
        self._checked: Sequence[tuple[str, str]] | None = None  # the columns for which the write was planned
        self.queries = queries

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch; returns when its rows are visible. Raises the errors of the sink."""
        options = _of_batch(self._options, batch_id)
        columns = rows.dtypes
        if columns != self._checked:
            parsed = plan_write(options, columns, overwrite=False)
            self._checked = columns
        else:
            parsed = parse_sink_options(options)
        ids = batch_ids(parsed.transaction, _local_property_of(rows), topic=parsed.topic, job_id=str(uuid.uuid4()))
        if ids.is_one_write and parsed.delivery is Delivery.EXACTLY_ONCE:
            raise ConfigError(
                "Spark does not say here which micro-batch this is, as through Spark Connect or outside of foreachBatch: give "
                "append_to the option txnAppId, a name of the query that it keeps when it is restarted"
            )
        clock = SystemClock()
        began_ms = clock.monotonic_ms()
        try:
            few = _few_rows(rows, self.queries.next)
        except BaseException:
            self.queries.failed()
            raise
        self.queries.ended(clock.monotonic_ms() - began_ms, few)
        if few is None:
            rows.write.format("brokerd").options(**options).mode("append").save()
        else:
            _write_here(parsed, ids, few)


def append_to(topic: str | None, options: Mapping[str, Any], *, label: str | None = None) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch`, or for use inside your own, that appends a micro-batch to `topic`, exactly once.

    `options`: the sink's options. `topic`: None if a column names the topic of each row. `label` (option txnLabel) distinguishes
    two writes to one topic inside one foreachBatch. Through Spark Connect, option txnAppId must name the query; txnVersion is
    always the number of the micro-batch. Raises ConfigError.
    """
    given = {name: _text_of(name, value) for name, value in by_name(options).items()}
    for name, value in (("topic", topic), ("txnLabel", label)):
        if value is not None:
            if any(other.lower() == name.lower() for other in given):
                raise ConfigError(f"option {name} is given twice, as an option and as an argument of append_to: keep one")
            given[name] = value
    if "txnVersion" in split_options(given, SINK):
        raise ConfigError("append_to takes the number of the micro-batch for option txnVersion: remove the option")
    parsed = parse_sink_options(_of_batch(given, 0))
    return AppendTo(given, Queries(may_be_large=parsed.producer.max_request_size > VERY_FEW_REQUEST_BYTES_MAX))


def _text_of(name: str, value: object) -> str:
    if value is None:  # otherwise "None" would become an application's name
        raise ConfigError(f"option {name} is None: leave it out")
    return str(value)


def _of_batch(options: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """The sink's options for a micro-batch."""
    is_named = any(name.lower() == "txnappid" for name in options)
    return {**options, "txnVersion": str(batch_id)} if is_named else dict(options)


def _few_rows(rows: DataFrame, query: Query) -> list[pa.RecordBatch] | None:
    """All rows, if they are few and small; None otherwise."""
    if query is Query.VERY_FEW:
        found: pa.Table = rows.coalesce(1).limit(VERY_FEW_ROWS_MAX + 1).toArrow()
        if found.num_rows <= VERY_FEW_ROWS_MAX:
            return list(found.to_batches())
    return _small_rows(rows, has_tasks=query is Query.TASKS)


def _small_rows(rows: DataFrame, *, has_tasks: bool) -> list[pa.RecordBatch] | None:
    """Fetches up to ROWS_MAX + 1 rows, large ones as nulls. Returns None if there are too many rows, or large ones."""
    names = [name for name in rows.columns if name in ACCEPTED]
    is_small = f"{' + '.join(_SIZES[name] for name in names if name in _SIZES)} <= {ROW_BYTES_MAX}"
    columns = [f"CASE WHEN {is_small} THEN `{name}` END AS `{name}`" if name in _SIZES else f"`{name}`" for name in names]
    taken = rows.selectExpr(f"{is_small} AS {_IS_SMALL}", *columns)
    table = (taken if has_tasks else taken.coalesce(1)).limit(ROWS_MAX + 1).toArrow()
    if table.num_rows > ROWS_MAX or not pc.all(table.column(_IS_SMALL), min_count=0).as_py():
        return None
    return list(table.drop_columns([_IS_SMALL]).to_batches())


def _write_here(options: SinkOptions, ids: TransactionIds, rows: list[pa.RecordBatch]) -> None:
    if options.delivery is Delivery.AT_LEAST_ONCE:
        write_at_least_once(options, iter(rows))
        return
    parts = [write_as_member(options, ids, iter(rows))]
    try:
        commit_parts(options, parts)
    except BaseException:
        abort_parts(options, parts)  # as Spark does after a failed commit; otherwise readers wait until the member expires
        raise


def _local_property_of(rows: DataFrame) -> Callable[[str], str | None]:
    """Spark's local properties of the micro-batch; Spark Connect has none."""
    if type(rows).__module__.startswith("pyspark.sql.connect"):
        return lambda _: None
    return rows.sparkSession.sparkContext.getLocalProperty
