"""Reads a topic as a stream and prints counts and means per sensor and minute, as they change.

    spark-submit --properties-file conf/spark-defaults.conf examples/read_stream.py [HOST:PORT] [TOPIC]

Run it together with write_stream.py. To port a pipeline that reads Kafka, change the name of the format.
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
    spark = SparkSession.builder.appName("read from brokerd").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # errors are raised below; the rest is about Ctrl-C
    signal.signal(signal.SIGINT, leave)  # replaces Spark's handler, which prints tracebacks
    readings = (
        spark.readStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)  # keeps the first batch of a long log small
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS sensor",
            "from_json(CAST(value AS STRING), 'seq BIGINT, celsius DOUBLE') AS reading",
            "window(timestamp, '1 minute').start AS minute",
        )
    )
    query = (
        readings.groupBy("minute", "sensor")
        .agg({"*": "count", "reading.celsius": "avg"})
        .orderBy("minute", "sensor", ascending=[False, True])  # the console shows 20 rows: the newest
        .writeStream.format("console")
        .outputMode("complete")
        .option("truncate", False)
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))
        .trigger(processingTime="5 seconds")
        .start()
    )
    print(f"reading {topic} at {servers}; stop with Ctrl-C", flush=True)
    query.awaitTermination()  # raises the error that ended it


def leave(number: int, _: FrameType | None) -> None:
    """Ends the program at once; a real query would continue from its checkpoint."""
    print("\nstopped", flush=True)
    os._exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
