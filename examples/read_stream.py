"""Reads a topic as a stream and prints counts and means per sensor and minute, as they change.

    spark-submit --properties-file conf/spark-defaults.conf examples/read_stream.py [HOST:PORT] [TOPIC]

Together with write_stream.py. A pipeline that reads Kafka becomes this by changing the format's name.
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import SparkSession


def main(servers: str = "127.0.0.1:9192", topic: str = "events") -> None:
    spark = SparkSession.builder.appName("read from brokerd").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
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
        .orderBy("minute", "sensor")
        .writeStream.format("console")
        .outputMode("complete")
        .option("truncate", False)
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))
        .trigger(processingTime="5 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
