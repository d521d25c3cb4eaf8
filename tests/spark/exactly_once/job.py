"""A pipeline from topic to topic, as a program of its own whose JVM may be killed: `python job.py '{...}'`. Settings, as JSON:

servers, source, target, checkpoint: where from and to; partitions: of the shuffle; max_offsets: of a micro-batch;
source_options, options: of the source and of the sink; key: an expression; fault, marks, broker_pid_file: see faulty_sink.py;
foreach: write inside foreachBatch, once for each of `groups` (a job group, or none) with each of `labels`; master; conf; batch:
one batch write instead; meet: files, of which this driver makes the first and waits for all.
"""

from __future__ import annotations

import json
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.spark.exactly_once.faulty_sink import FaultySource
from tests.support.wait import wait_until

settings: dict[str, Any] = json.loads(sys.argv[1])


def session() -> SparkSession:
    """A driver with the shipped settings that matter."""
    builder = SparkSession.builder.master(settings.get("master", "local[2,4]")).appName("exactly once")
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.authenticate.socketTimeout": "120s",  # for a Python worker to start, on a busy machine
        **settings.get("conf", {}),
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def shuffled(frame: DataFrame) -> DataFrame:
    """Each key in one task. Its rows come from one partition of the source, and a shuffle keeps the order of what comes from one
    task; a stream cannot be sorted. The number is given here: what the session is set to, a checkpoint overrides."""
    return frame.repartition(settings.get("partitions", 2), "key").selectExpr(f"{settings.get('key', 'key')} AS key", "value")


def sink_options() -> dict[str, str]:
    """Of the faulty sink."""
    accident = {name: settings[name] for name in ("fault", "marks", "broker_pid_file") if settings.get(name)}
    return {"bootstrap.servers": settings["servers"], "topic": settings["target"], **accident, **settings.get("options", {})}


def write_batch(frame: DataFrame, _batch_id: int) -> None:
    """foreachBatch's function."""
    groups = settings.get("groups", [])
    for group, label in zip_longest(groups or [""], settings.get("labels", [])):
        if groups:
            frame.sparkSession.sparkContext.setLocalProperty("spark.jobGroup.id", group)
        labelled = {"txnLabel": label} if label else {}
        frame.write.format("faulty").options(**sink_options(), **labelled).mode("append").save()


def meet(own: str, *ready: str) -> None:
    """Waits for the other drivers."""
    Path(own).touch()
    wait_until(lambda: all(Path(path).exists() for path in ready), what="all drivers are ready")


def main() -> None:
    """Reads what is there now, and writes it."""
    spark = session()
    spark.dataSource.register(FaultySource)
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
    writer = writer.foreachBatch(write_batch) if settings.get("foreach") else writer.format("faulty").options(**sink_options())
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
