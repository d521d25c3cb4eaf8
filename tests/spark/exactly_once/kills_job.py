"""Two queries in a program that may be killed: topic -> transformation -> topic -> aggregation -> topic. Settings, as JSON:

servers, source, clean, counts: topics; checkpoints: a directory; foreach: the query that writes inside foreachBatch, without an
option, or "append_to" for both, by that function, whose way is left to chance; drain: end with what is there now, first the one
query, then the other; max_offsets: of a micro-batch.

A query that fails, as it does when Python workers of certain kinds die, is started again, and a line with FAILED says why.

Neither result depends on where micro-batches begin and end. Rows of the source are JSON {"number": n}; n is their event time, in
seconds. A key's rows keep their order. A window is closed once a row comes that is DELAY_S later, so no row is late: rows of
different keys pass each other within a micro-batch, and that holds fewer.
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
    """A topic from its start, with the number that each row has."""
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
    """The aggregation: each key and window has one row."""
    timed = frame.selectExpr("string(key) AS name", "number", "timestamp_seconds(number) AS time")
    groups = timed.withWatermark("time", f"{DELAY_S} seconds").groupBy("name", window("time", f"{WINDOW_S} seconds"))
    sums = groups.agg(count("number").alias("rows"), sum_of("number").alias("sum"))
    key = "concat(name, '@', unix_seconds(window.start)) AS key"
    return sums.selectExpr(key, "to_json(struct(rows, sum)) AS value")


def write_batch_to(topic: str) -> Callable[[DataFrame, int], None]:
    """foreachBatch's function."""

    def write(frame: DataFrame, _batch_id: int) -> None:
        frame.write.format("brokerd").options(**SERVERS, topic=topic).mode("append").save()

    return write


def start(name: str, frame: DataFrame, topic: str) -> StreamingQuery:
    """A query into a topic."""
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
    """Queries, each started again whenever it has failed. Does not return."""
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
    """Runs until it is killed; or drains both queries, one after the other."""
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
