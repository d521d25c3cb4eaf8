"""A Spark driver that runs steps: reads each as a line of JSON on standard input, and writes its response as a line of JSON.

Needs only PySpark and the attacked system, in whose environment it runs. Arguments: the master, and Spark's settings as JSON.
Steps, by "do":

stream     source, files (per micro-batch), checkpoint, format, options, columns[, tables][, groups, versions][, accident]: writes
           all files to the sink. With tables (topic -> path), foreachBatch writes them one after another, idempotently. With
           groups, foreachBatch writes an equal part of the rows after each setJobGroup, with a version if the sink needs one.
           With append_to (topic, turn), that function writes: every other micro-batch in the driver, the rest through the sink
batch      source, format, options, columns[, append_to]: one batch write
follow     read, checkpoint, path: a query that writes a topic to text files until nothing is left
read       reads, each with format, options, topic (an expression): the values that a reader sees, each with its topic

An accident is {"kind", "from", "until", "mark", "commits"}. It happens once, in the micro-batch with the row numbers from `from` to
below `until`, and outside the sink, so that it is the same for all sinks. It creates the file `mark`:

task-fails               the first task fails after passing all its rows to the sink; Spark runs it again
driver-killed            the JVM gets SIGKILL when the first task has ended and the second begins (there is one core)
driver-killed-in-commit  the same after the sink has committed the micro-batch, before Spark writes `commits/N`: the driver holds a
                         lock of Spark's until then
slow-twin                the first task passes its rows to the sink and does not end until the micro-batch is in `commits`; Spark
                         runs a twin on another host. `mark` has the host of the first attempt, `mark`.twin that of the other;
                         `mark`.late exists if the first was still running after the commit
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = "key string, value string, topic string, number long"
TASKS = 2
_SLICE_ROWS = 50
_DEADLINE_S = 120

Made = dict[str, Any]  # the description of an accident


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Polls until the condition is true. Raises TimeoutError."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_DEADLINE_S} s: {what}")
        time.sleep(0.005)


def is_first(made: Made) -> bool:
    """Creates the mark; True for the one process that does."""
    try:
        descriptor = os.open(made["mark"], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(descriptor, os.environ.get("SPARK_LOCAL_IP", "").encode())
    os.close(descriptor)
    return True


def was_read(made: Made, partition: int) -> bool:
    """True if the rows are read for the write. Before that, append_to looks at them in one task, which is partition 0."""
    if partition or not made.get("is_looked_at"):
        return True
    try:
        os.close(os.open(f"{made['mark']}.looked", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


def kill_jvm() -> None:
    """Kills the JVM that started this Python worker."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def ended(made: Made, batch_id: str) -> None:
    """The accident of the first task, after its rows."""
    mark = made["mark"]
    if made["kind"] == "task-fails" and is_first(made):
        raise RuntimeError("the accident that was asked for")
    if made["kind"] == "driver-killed-in-commit" and is_first(made):
        wait_for(Path(f"{mark}.held").exists, "the driver holds Spark's lock")
    if made["kind"] == "slow-twin":
        if is_first(made):
            wait_for(Path(made["commits"], batch_id).exists, "the micro-batch is committed")
            Path(f"{mark}.late").touch()
        else:
            Path(f"{mark}.twin").write_text(os.environ.get("SPARK_LOCAL_IP", ""))


def accident(made: Made) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A mapInArrow stage before the sink, where the accident happens."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        is_there = False
        for batch in batches:
            if not is_there and any(made["from"] <= number < made["until"] for number in batch.column("number").to_pylist()):
                is_there = was_read(made, task.partitionId())
            is_last = task.partitionId() == TASKS - 1 or made.get("is_one_task")
            if made["kind"] == "driver-killed" and is_there and is_last and is_first(made):
                kill_jvm()
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                yield batch.slice(start, _SLICE_ROWS)
        if is_there and task.partitionId() == 0:
            ended(made, task.getLocalProperty("streaming.sql.batchId") or "")

    return stage


def appender(step: dict[str, Any]) -> Callable[[DataFrame, int], None]:
    """append_to, with limits set for each micro-batch so that driver and sink take turns."""
    module: Any = importlib.import_module("brokerd.sink.foreach_batch")
    module.Queries = lambda: SimpleNamespace(next=module.Query.ONE_TASK, ended=lambda *_: None)  # one look at a micro-batch's rows
    append = module.append_to(step["append_to"]["topic"], step["options"])

    def write(rows: DataFrame, batch_id: int) -> None:
        module.ROWS_MAX = 0 if is_for_sink(step, batch_id) else 100_000
        append(rows.select(*step["columns"]), batch_id)

    return write


def is_for_sink(step: dict[str, Any], batch_id: int) -> bool:
    """True if append_to must take the micro-batch for a large one."""
    return (batch_id + int(step["append_to"]["turn"])) % 2 == 1


class Driver:
    """One Spark session and its steps."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - nothing public names the process
        assert jvm is not None
        self.jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def stream(self, step: dict[str, Any]) -> dict[str, Any]:
        """Runs a query that writes all files to the sink."""
        made = step.get("accident")
        rows = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", step["files"]).json(step["source"])
        rows = rows.repartition(TASKS, "key")
        if made and "tables" not in step and "append_to" not in step:
            rows = rows.mapInArrow(accident(made), rows.schema)
        to = self._to_tables if "tables" in step else self._appended if "append_to" in step else self._to_sink
        if step.get("groups"):
            to = self._in_groups
        writer = to(rows, step)
        query = writer.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True).start()
        if made and made["kind"] == "driver-killed-in-commit":
            self._die_after_commit(query, made["mark"])
        query.awaitTermination()
        return {}

    def _to_sink(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        return rows.select(*step["columns"]).writeStream.format(step["format"]).options(**step["options"]).outputMode("append")

    def _to_tables(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        """Writes tables as Delta's manual advises: txnAppId and txnVersion (the micro-batch's number) make each write idempotent.
        The accident happens in the last table."""
        last = list(step["tables"])[-1]

        def write(batch: DataFrame, batch_id: int) -> None:
            for topic, path in step["tables"].items():
                part = batch.where(batch.topic == topic)
                if step.get("accident") and topic == last:
                    part = part.mapInArrow(accident(step["accident"]), part.schema)
                options = {"txnAppId": last, "txnVersion": str(batch_id), **step["options"]}
                part.select(*step["columns"]).write.format(step["format"]).options(**options).mode("append").save(path)

        return rows.writeStream.foreachBatch(write)

    def _appended(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        """Writes by append_to. The accident happens when the rows are read for the write, not when append_to counts them. If the
        driver writes, one task reads all partitions, and the driver dies as that task begins the second.
        """
        append, made = appender(step), step.get("accident")

        def write(batch: DataFrame, batch_id: int) -> None:
            if made:
                is_one_task = not is_for_sink(step, batch_id)
                is_looked_at = made["kind"] == "driver-killed" or not is_one_task
                batch = batch.mapInArrow(accident({**made, "is_one_task": is_one_task, "is_looked_at": is_looked_at}), batch.schema)
            append(batch, batch_id)

        return rows.writeStream.foreachBatch(write)

    def _in_groups(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        """Writes with job groups, as programs do to label writes in Spark's UI or to cancel them."""
        groups = step["groups"]
        append = appender(step) if "append_to" in step else None

        def write(batch: DataFrame, batch_id: int) -> None:
            versions = {"txnAppId": "copy", "txnVersion": str(batch_id)} if step["versions"] else {}
            for part, group in enumerate(groups):
                self._spark.sparkContext.setJobGroup(group, "a group of the user's own")
                chosen = batch.where(f"number % {len(groups)} = {part}")
                if append is not None:
                    append(chosen, batch_id)
                    continue
                chosen.select(*step["columns"]).write.format(step["format"]).options(**versions, **step["options"]).mode(
                    "append"
                ).save()

        return rows.writeStream.foreachBatch(write)

    def _die_after_commit(self, query: StreamingQuery, mark: str) -> None:
        """Kills the JVM between the sink's commit and `commits/N`: Spark writes the latter under this lock."""
        lock = query._jsq.streamingQuery().awaitProgressLock()  # noqa: SLF001 - no public one
        wait_for(Path(mark).exists, "the first task has ended")
        lock.lock()
        Path(f"{mark}.held").touch()
        wait_for(lock.hasQueuedThreads, "the sink has committed")
        os.kill(self.jvm_pid, signal.SIGKILL)

    def batch(self, step: dict[str, Any]) -> dict[str, Any]:
        """Writes one batch."""
        rows = self._spark.read.schema(SCHEMA).json(step["source"])
        if "append_to" in step:
            version = int(step["options"].pop("txnVersion"))
            appender(step)(rows, version)
            return {}
        rows.select(*step["columns"]).write.format(step["format"]).options(**step["options"]).mode("append").save()
        return {}

    def follow(self, step: dict[str, Any]) -> dict[str, Any]:
        """Runs a query that reads the attacked system."""
        rows = self._spark.readStream.format(step["read"]["format"]).options(**step["read"]["options"]).load()
        writer = rows.selectExpr("cast(value as string) as value").writeStream.format("text")
        writer = writer.option("path", step["path"]).option("checkpointLocation", step["checkpoint"])
        writer.trigger(availableNow=True).start().awaitTermination()
        return {}

    def read(self, step: dict[str, Any]) -> dict[str, Any]:
        """Reads all rows."""
        found = []
        for each in step["reads"]:
            rows = self._spark.read.format(each["format"]).options(**each["options"]).load()
            found += rows.selectExpr("cast(value as string) as value", f"{each['topic']} as topic").collect()
        return {"rows": [[row.topic, row.value] for row in found]}


def main() -> None:
    """Runs steps until the end of standard input."""
    builder = SparkSession.builder.master(sys.argv[1]).appName("exactly once, attacked")
    for name, value in json.loads(sys.argv[2]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    driver = Driver(spark)
    print(json.dumps({"spark": spark.version, "jvm_pid": driver.jvm_pid}), flush=True)
    for line in sys.stdin:
        step = json.loads(line)
        try:
            response = getattr(driver, step["do"])(step)
        except Exception as error:
            response = {"error": f"{error} ({type(error).__name__})"}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
