"""A pipeline from topic to topic, as a program whose JVM may be killed: `python job.py '{...}'`. Settings, as JSON:

servers, source, target, checkpoint; partitions: of the shuffle; max_offsets: of a micro-batch; source_options, options: of the
source and of the sink; key: an expression; fault, marks, broker_pid_file: see faulty_sink.py; foreach: write inside foreachBatch,
once for each of `groups` (a job group, or none) with each of `labels`; or "append_to": driver and sink write alternate
micro-batches, the driver the even ones if `turn` is 0; master; conf; batch: one batch write instead; meet: files, of which this
driver creates the first and waits for all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from brokerd.sink import foreach_batch
from brokerd.sink.options import SinkOptions
from brokerd.sink.task import write_as_member
from brokerd.sink.transaction import TransactionIds, TransactionPart, commit_parts
from tests.spark.exactly_once.faulty_sink import VARIABLE, Accident, FaultyBrokerd, FaultySource
from tests.spark.exactly_once.ways import append_by
from tests.support.wait import wait_until

settings: dict[str, Any] = json.loads(sys.argv[1])


def session() -> SparkSession:
    """A driver with those shipped settings that matter here."""
    builder = SparkSession.builder.master(settings.get("master", "local[2,4]")).appName("exactly once")
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.authenticate.socketTimeout": "120s",  # for a Python worker to start on a busy machine
        **settings.get("conf", {}),
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def shuffled(frame: DataFrame) -> DataFrame:
    """Puts each key into one task. Its rows come from one source partition, and a shuffle keeps the order of rows from one task (a
    stream cannot be sorted). The number of partitions is explicit, since a checkpoint overrides the session's setting."""
    return frame.repartition(settings.get("partitions", 2), "key").selectExpr(f"{settings.get('key', 'key')} AS key", "value")


def sink_options() -> dict[str, str]:
    """Options of the faulty sink."""
    accident = {name: settings[name] for name in ("fault", "marks", "broker_pid_file") if settings.get(name)}
    return {"bootstrap.servers": settings["servers"], "topic": settings["target"], **accident, **settings.get("options", {})}


def write_batch(frame: DataFrame, _batch_id: int) -> None:
    """The function for foreachBatch."""
    groups = settings.get("groups", [])
    for group, label in zip_longest(groups or [""], settings.get("labels", [])):
        if groups:
            frame.sparkSession.sparkContext.setLocalProperty("spark.jobGroup.id", group)
        labelled = {"txnLabel": label} if label else {}
        frame.write.format("faulty").options(**sink_options(), **labelled).mode("append").save()


def append_with_accident(spark: SparkSession, own: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """append_to with the fault in the driver's own write. In writes by the sink FaultyBrokerd causes the fault."""
    accident = Accident(**own, kill_driver=lambda: kill_driver(spark))
    commit, write_rows = commit_parts, write_as_member
    options = {"bootstrap.servers": settings["servers"], **settings.get("options", {})}

    def write_with_accident(options: SinkOptions, ids: TransactionIds, rows: Iterator[pa.RecordBatch]) -> TransactionPart:
        return write_rows(options, ids, accident.rows(rows))

    def commit_with_accident(options: SinkOptions, parts: Sequence[TransactionPart]) -> None:
        accident.commit(lambda: commit(options, parts))

    setattr(foreach_batch, "write_as_member", write_with_accident)  # noqa: B010
    setattr(foreach_batch, "commit_parts", commit_with_accident)  # noqa: B010
    return append_by(settings["target"], options, lambda batch_id: bool((batch_id + settings.get("turn", 0)) % 2))


def kill_driver(spark: SparkSession) -> None:
    """Kills the JVM that this program started, and the program."""
    gateway: Any = spark.sparkContext._gateway
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def meet(own: str, *ready: str) -> None:
    """Waits for the other drivers."""
    Path(own).touch()
    wait_until(lambda: all(Path(path).exists() for path in ready), what="all drivers are ready")


def main() -> None:
    """Reads and writes the rows that exist now."""
    own = {name: settings.get(name, "") for name in ("fault", "marks", "broker_pid_file")}
    os.environ[VARIABLE] = json.dumps(own)  # before the JVM starts, whose workers inherit it
    spark = session()
    spark.dataSource.register(FaultySource)
    if settings.get("foreach") == "append_to":
        spark.dataSource.register(FaultyBrokerd)
    if "meet" in settings:
        meet(*settings["meet"])
    source = {"bootstrap.servers": settings["servers"], "subscribe": settings["source"], "startingOffsets": "earliest"}
    source |= settings.get("source_options", {})
    if settings.get("batch"):
        write_batch(shuffled(spark.read.format("brokerd").options(**source).load()), 0)
        return
    limited = {**source, "maxOffsetsPerTrigger": str(settings.get("max_offsets", 2_000))}
    frame = shuffled(spark.readStream.format("brokerd").options(**limited).load())
    writer = frame.writeStream.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True)
    if settings.get("foreach"):
        writer = writer.foreachBatch(append_with_accident(spark, own) if settings["foreach"] == "append_to" else write_batch)
    else:
        writer = writer.format("faulty").options(**sink_options())
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
