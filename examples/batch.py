"""Writes a table to a topic and reads it back, once, without a stream.

spark-submit --properties-file conf/spark-defaults.conf examples/batch.py [HOST:PORT] [TOPIC]
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(servers: str = "127.0.0.1:9192", topic: str = "events") -> None:
    spark = SparkSession.builder.appName("brokerd, batch").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    orders = spark.range(1000).selectExpr(
        "concat('customer-', id % 10) AS key",
        "to_json(struct(id AS order, id * 3 AS cents)) AS value",
    )
    orders.write.format("brokerd").option("bootstrap.servers", servers).option("topic", topic).mode("append").save()
    read = spark.read.format("brokerd").option("bootstrap.servers", servers).option("subscribe", topic).load()
    texts = read.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", "offset", "timestamp")
    texts.orderBy("timestamp", "partition", "offset", ascending=False).show(10, truncate=False)  # the newest
    print(f"{read.count():,} records in {topic}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
