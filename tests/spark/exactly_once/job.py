"""A pipeline from topic to topic, as a program of its own whose JVM may be killed: `python job.py '{...}'`. Settings, as JSON:

servers, source, target, checkpoint: where from and to; partitions: of the shuffle; max_offsets: of a micro-batch;
fault, marks, broker_pid_file: see faulty_sink.py; foreach: write inside foreachBatch; master; batch: one batch write instead.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.spark.exactly_once.faulty_sink import FaultySource

settings: dict[str, Any] = json.loads(sys.argv[1])
ACCIDENT = {name: settings[name] for name in ("fault", "marks", "broker_pid_file") if settings.get(name)}
OPTIONS = {"bootstrap.servers": settings["servers"], "topic": settings["target"], **ACCIDENT, **settings.get("options", {})}


def session() -> SparkSession:
    """A driver with the shipped settings that matter."""
    builder = SparkSession.builder.master(settings.get("master", "local[2,4]")).appName("exactly once")
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(settings.get("partitions", 2)),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        **settings.get("conf", {}),
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(FaultySource)
    return spark


def shuffled(frame: DataFrame) -> DataFrame:
    """Each key in one task. Its rows come from one partition of the source, and a shuffle keeps the order of what comes from one
    task; a stream cannot be sorted."""
    return frame.repartition("key").select("key", "value")


def write_batch(frame: DataFrame, _batch_id: int) -> None:
    """foreachBatch's function."""
    frame.write.format("faulty").options(**OPTIONS).mode("append").save()


def main() -> None:
    """Reads what is there now, and writes it."""
    spark = session()
    source = {"bootstrap.servers": settings["servers"], "subscribe": settings["source"], "startingOffsets": "earliest"}
    if settings.get("batch"):
        write_batch(shuffled(spark.read.format("brokerd").options(**source).load()), 0)
        return
    limited = {**source, "maxOffsetsPerTrigger": str(settings.get("max_offsets", 2_000))}
    frame = shuffled(spark.readStream.format("brokerd").options(**limited).load())
    writer = frame.writeStream.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True)
    writer = writer.foreachBatch(write_batch) if settings.get("foreach") else writer.format("faulty").options(**OPTIONS)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
