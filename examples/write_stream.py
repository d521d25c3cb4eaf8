"""Writes a stream to a topic: ten events a second, keyed, until it is stopped.

    brokerd start &
    brokerd topics create events --partitions 8
    spark-submit --properties-file conf/spark-defaults.conf examples/write_stream.py [HOST:PORT] [TOPIC]

Run it in the environment in which brokerd is installed: Spark finds format("brokerd") there by itself.
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import SparkSession


def main(servers: str = "127.0.0.1:9192", topic: str = "events") -> None:
    spark = SparkSession.builder.appName("write to brokerd").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    events = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 10)
        .load()
        .selectExpr(
            "concat('sensor-', value % 7) AS key",  # equal keys go to one partition, and stay in order
            "to_json(struct(value AS seq, round(20 + 5 * sin(value / 60), 2) AS celsius)) AS value",
            "timestamp",  # the record's own time; without it, the time of writing
        )
    )
    query = (
        events.writeStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("topic", topic)
        .option("compression.type", "zstd")  # any producer setting, bare or with Kafka's prefix
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))  # a real query keeps this
        .start()
    )
    print(f"writing to {topic} at {servers}; stop with Ctrl-C", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
