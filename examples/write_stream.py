"""Writes a stream to a topic: ten events a second, keyed, until it is stopped.

    brokerd start &
    brokerd topics create events --partitions 8
    spark-submit --properties-file conf/spark-defaults.conf examples/write_stream.py [HOST:PORT] [TOPIC]

Run it in the environment where brokerd is installed, so that Spark finds format("brokerd").
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from types import FrameType

from pyspark.sql import SparkSession


def main(servers: str = "127.0.0.1:9192", topic: str = "events") -> None:
    signal.signal(signal.SIGINT, leave)
    spark = SparkSession.builder.appName("write to brokerd").getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # errors are raised below; the rest is about Ctrl-C
    signal.signal(signal.SIGINT, leave)  # replaces Spark's handler, which prints tracebacks
    events = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 10)
        .load()
        .selectExpr(
            "concat('sensor-', value % 7) AS key",  # equal keys go to one partition and stay in order
            "to_json(struct(value AS seq, round(20 + 5 * sin(value / 60), 2) AS celsius)) AS value",
            "timestamp",  # the record's own time; without it, the time of writing
        )
    )
    query = (
        events.writeStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("topic", topic)
        .option("compression.type", "zstd")  # any producer setting, with or without Kafka's prefix
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))  # a real query keeps this
        .start()
    )
    print(f"writing to {topic} at {servers}; stop with Ctrl-C", flush=True)
    query.awaitTermination()  # raises the error that ended it


def leave(number: int, _: FrameType | None) -> None:
    """Ends the program at once; a real query would continue from its checkpoint."""
    print("\nstopped", flush=True)
    os._exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
