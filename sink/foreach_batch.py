"""A ready-made function for `foreachBatch`, which spares small micro-batches the sink's tasks and processes.

Few rows are taken to the driver as Arrow, sent by a producer there, and committed as one transaction. More rows, or large ones, go
through `df.write.format("brokerd")`. Both ways write the same version of the same transactional id, so a micro-batch that was
written one way and is replayed the other way is written once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from brokerd.config.spark_options import SINK, split_options
from brokerd.errors import ConfigError
from brokerd.sink.commit import abort_parts, commit_parts, parts_of
from brokerd.sink.options import Delivery, SinkOptions, parse_sink_options
from brokerd.sink.task import write_as_member, write_at_least_once
from brokerd.sink.transaction_ids import TransactionIds, batch_ids
from brokerd.sink.writer import plan_write

ROWS_MAX = 2_000  # of a micro-batch that the driver writes
ROW_BYTES_MAX = 16_384  # of each of its rows, so that the driver never holds more than 32 MiB

_IS_LARGE = "brokerd_is_large"
_HEADER_BYTES = "(n, h) -> n + octet_length(h.key) + coalesce(octet_length(h.value), 0)"


class AppendTo:
    """The function that `append_to` makes. It can be pickled, as for Spark Connect."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._checked: Sequence[tuple[str, str]] | None = None  # columns for which the write has been planned

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
        few = _few_rows(rows)
        if few is None:
            rows.write.format("brokerd").options(**options).mode("append").save()
        else:
            _write_here(parsed, ids, few)


def append_to(topic: str | None, options: Mapping[str, Any], *, label: str | None = None) -> Callable[[DataFrame, int], None]:
    """The function for `writeStream.foreachBatch`, or for use inside your own: appends a micro-batch to `topic`, exactly once.

    `options` are the sink's. `topic` is None if a column names the topic of each row. `label` (option txnLabel) tells two writes to
    one topic inside one foreachBatch apart. Through Spark Connect, option txnAppId must name the query; txnVersion is always the
    number of the micro-batch. Raises ConfigError.
    """
    given = {name: str(value) for name, value in options.items()}
    for name, value in (("topic", topic), ("txnLabel", label)):
        if value is not None:
            if any(other.lower() == name.lower() for other in given):
                raise ConfigError(f"option {name} is given twice, as an option and as an argument of append_to: keep one")
            given[name] = value
    if "txnVersion" in split_options(given, SINK):
        raise ConfigError("append_to takes the number of the micro-batch for option txnVersion: remove the option")
    parse_sink_options(_of_batch(given, 0))
    return AppendTo(given)


def _of_batch(options: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """The options of the sink for a micro-batch."""
    is_named = any(name.lower() == "txnappid" for name in options)
    return {**options, "txnVersion": str(batch_id)} if is_named else dict(options)


def _few_rows(rows: DataFrame) -> list[pa.RecordBatch] | None:
    """All rows, if they are few and small; None otherwise. Runs the query once, for at most ROWS_MAX + 1 rows."""
    names = rows.columns
    sizes = [f"coalesce(octet_length({name}), 0)" for name in ("key", "value") if name in names]
    if "headers" in names:
        sizes.append(f"coalesce(aggregate(headers, 0, {_HEADER_BYTES}), 0)")
    is_large = f"{' + '.join(sizes)} > {ROW_BYTES_MAX}"
    wide = [name for name in ("key", "value", "headers") if name in names]
    taken = [f"IF({is_large}, NULL, {name}) AS {name}" if name in wide else f"`{name}`" for name in names]
    table = rows.selectExpr(*taken, f"{is_large} AS {_IS_LARGE}").limit(ROWS_MAX + 1).toArrow()
    if table.num_rows > ROWS_MAX or (table.num_rows and True in table.column(_IS_LARGE).unique().to_pylist()):
        return None
    few: list[pa.RecordBatch] = table.drop_columns([_IS_LARGE]).to_batches()
    return few


def _write_here(options: SinkOptions, ids: TransactionIds, rows: list[pa.RecordBatch]) -> None:
    if options.delivery is Delivery.AT_LEAST_ONCE:
        write_at_least_once(options, iter(rows))
        return
    parts = parts_of([write_as_member(options, ids, iter(rows))])
    try:
        commit_parts(options, parts)
    except BaseException:
        abort_parts(options, parts)  # as Spark does after a failed commit: without it, readers wait until the member expires
        raise


def _local_property_of(rows: DataFrame) -> Callable[[str], str | None]:
    """Spark's local properties of the micro-batch; Spark Connect has none."""
    if type(rows).__module__.startswith("pyspark.sql.connect"):
        return lambda _: None
    return rows.sparkSession.sparkContext.getLocalProperty
