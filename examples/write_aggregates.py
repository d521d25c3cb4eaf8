"""Counts the events of a topic per sensor and minute, into two other topics, until it is stopped.

    brokerd topics create minutes
    brokerd topics create counts
    spark-submit --properties-file conf/spark-defaults.conf examples/write_aggregates.py [HOST:PORT] [TOPIC]

Run it together with write_stream.py. A log cannot be overwritten, so there are two ways to write an aggregation: `minutes` gets
each count once, when its minute is over; `counts` gets every change as it happens.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from types import FrameType

from pyspark.sql import DataFrame, SparkSession


def main(servers: str = "127.0.0.1:9192", topic: str = "events") -> None:
    signal.signal(signal.SIGINT, leave)
    spark = SparkSession.builder.appName("aggregates to brokerd").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # errors are raised below; the rest is about Ctrl-C
    signal.signal(signal.SIGINT, leave)  # replaces Spark's handler, which prints tracebacks
    events = (
        spark.readStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()
        .withWatermark("timestamp", "10 seconds")
        .selectExpr("key", "window(timestamp, '1 minute') AS minute")
    )
    counts = events.groupBy("key", "minute").count().selectExpr("key", "to_json(struct(minute.start AS minute, count)) AS value")
    once = (
        counts.writeStream.format("brokerd")
        .outputMode("append")  # with the watermark above: each row once, when it can no longer change
        .option("bootstrap.servers", servers)
        .option("topic", "minutes")
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))  # a real query keeps this
        .start()
    )

    def save(rows: DataFrame, _batch_id: int) -> None:
        rows.write.format("brokerd").option("bootstrap.servers", servers).option("topic", "counts").mode("append").save()

    changes = (
        counts.writeStream.outputMode("update")  # not available to Python sinks, except through foreachBatch
        .foreachBatch(save)
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))
        .start()
    )
    print(f"counting {topic} at {servers} into minutes and counts; stop with Ctrl-C", flush=True)
    spark.streams.awaitAnyTermination()  # raises the error that ended it
    for query in (once, changes):
        query.stop()


def leave(number: int, _: FrameType | None) -> None:
    """Ends the program at once; a real query would continue from its checkpoint."""
    print("\nstopped", flush=True)
    os._exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
