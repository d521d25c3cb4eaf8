"""Two queries in a program that may be killed: topic -> transformation -> topic -> aggregation -> topic. Settings, as JSON:

servers, source, clean, counts: topics; checkpoints: a directory; foreach: the query that writes inside foreachBatch without
options, or "append_to" for both queries, which then write by driver or sink at random; drain: read what exists now, one query after
the other, and end; max_offsets: of a micro-batch.

A query that fails, as some deaths of Python workers make it, is restarted, and a line with FAILED gives the reason.

Neither result depends on the bounds of micro-batches. Rows of the source are JSON {"number": n}; n is the event time in seconds. A
key's rows keep their order. A window closes when a row DELAY_S later arrives. No row is late: rows of different keys overtake each
other only within a micro-batch, which spans less than DELAY_S.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, window
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.exactly_once.job import session, settings
from tests.spark.exactly_once.ways import append_by

DELAY_S = 5_000
WINDOW_S = 50
_TURN_S = 1
SERVERS = {"bootstrap.servers": settings["servers"]}


def read(spark: SparkSession, topic: str) -> DataFrame:
    """A topic from its start, with each row's number."""
    options = {**SERVERS, "subscribe": topic, "startingOffsets": "earliest"}
    if "max_offsets" in settings:
        options["maxOffsetsPerTrigger"] = str(settings["max_offsets"])
    frame = spark.readStream.format("brokerd").options(**options).load()
    return frame.selectExpr("key", "bigint(get_json_object(string(value), '$.number')) AS number")


def cleaned(frame: DataFrame) -> DataFrame:
    """The transformation: each key in one task."""
    value = "to_json(named_struct('number', number, 'square', number * number)) AS value"
    return frame.repartition(2, "key").selectExpr("key", value)


def counted(frame: DataFrame) -> DataFrame:
    """The aggregation: one row for each key and window."""
    timed = frame.selectExpr("string(key) AS name", "number", "timestamp_seconds(number) AS time")
    groups = timed.withWatermark("time", f"{DELAY_S} seconds").groupBy("name", window("time", f"{WINDOW_S} seconds"))
    sums = groups.agg(count("number").alias("rows"), sum_of("number").alias("sum"))
    key = "concat(name, '@', unix_seconds(window.start)) AS key"
    return sums.selectExpr(key, "to_json(struct(rows, sum)) AS value")


def write_batch_to(topic: str) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch."""

    def write(frame: DataFrame, _batch_id: int) -> None:
        frame.write.format("brokerd").options(**SERVERS, topic=topic).mode("append").save()

    return write


def start(name: str, frame: DataFrame, topic: str) -> StreamingQuery:
    """Starts a query that writes to a topic."""
    writer: Any = frame.writeStream.queryName(name).option("checkpointLocation", f"{settings['checkpoints']}/{name}")
    if settings.get("drain"):
        writer = writer.trigger(availableNow=True)
    if settings["foreach"] == "append_to":
        writer = writer.foreachBatch(append_by(topic, SERVERS, lambda _: random.random() < 0.5))
    elif settings["foreach"] == name:
        writer = writer.foreachBatch(write_batch_to(topic))
    else:
        writer = writer.format("brokerd").options(**SERVERS, topic=topic)
    query: StreamingQuery = writer.start()
    return query


def keep_up(starts: Mapping[str, Callable[[], StreamingQuery]]) -> None:
    """Runs the queries, and restarts each one that fails. Does not return."""
    queries: dict[str, StreamingQuery] = {}
    while True:
        for name, begin in starts.items():
            if name not in queries or not queries[name].isActive:
                queries[name] = begin()
        for name, query in queries.items():
            try:
                query.awaitTermination(_TURN_S)
            except StreamingQueryException as error:
                print("FAILED", name, " ".join(str(error).split()), flush=True)


def main() -> None:
    """Runs until it is killed, or drains both queries, one after the other."""
    spark = session()

    def clean() -> StreamingQuery:
        return start("clean", cleaned(read(spark, settings["source"])), settings["clean"])

    def counts() -> StreamingQuery:
        return start("counts", counted(read(spark, settings["clean"])), settings["counts"])

    starts = {"clean": clean, "counts": counts}
    if not settings.get("drain"):
        keep_up(starts)
    for begin in starts.values():
        begin().awaitTermination()


if __name__ == "__main__":
    main()
