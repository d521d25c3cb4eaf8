"""Micro-batches of 20 rows: brokerd's source, sink and `append_to` in turn with Kafka's connector, a sink that discards rows and a
source that generates them.

    python -m benchmarks.micro_batches [--kafka-servers HOST:PORT --kafka-jars A,B --kafka-python PYTHON]

Figures are the median and the 90th percentile of Spark's triggerExecution, in ms. Kafka runs in a separate session, since its
connector may need another PySpark: `--kafka-python` is the interpreter that has it. The Kafka server creates the topics: it needs
auto.create.topics.enable, and num.partitions=8.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.environment import Answering, Broker
from benchmarks.spark_io import shipped_settings

PARTITIONS = 8
RATE = {"format": "rate-micro-batch"}
NOOP = {"format": "noop"}


class Work(NamedTuple):
    """A query: its name in the table, the peer whose session runs it, its source and its sink."""

    name: str
    peer: str
    source: dict[str, str]
    sink: dict[str, str]


def session(python: str, settings: dict[str, str]) -> Answering:
    """The process of a Spark session."""
    script = Path(__file__).with_name("micro_batches_session.py")
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": root}
    return Answering([python, str(script), json.dumps(settings)], environment)


def run(asked: Answering, work: Work, batches: int) -> dict[str, float]:
    """Runs a query for `batches` micro-batches; returns median_ms and p90_ms."""
    figures: dict[str, float] = asked.ask(source=work.source, sink=work.sink, batches=batches)
    return figures


def _works(peer: str, prefix: str, servers: str, full: str, new: list[str]) -> list[Work]:
    """The queries of brokerd, or of Kafka: `full` is the topic to read, `new` are topics to write."""
    common = {prefix + "bootstrap.servers": servers}
    source = {"format": peer, "subscribe": full, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20", **common}

    def sink(name: str, format_: str = peer) -> dict[str, str]:
        return {"format": format_, "topic": name, **common}

    works = [
        Work("fill", peer, RATE, sink(full)),  # rows for the other queries to read; warms up the session
        Work("rate -> topic", peer, RATE, sink(new[0])),
        Work("topic -> noop", peer, source, NOOP),
        Work("topic -> topic", peer, source, sink(new[1])),
    ]
    if peer == "brokerd":
        tasks = {**source, "taskPerPartition": "true"}
        works += [
            Work("rate -> topic, append_to", peer, RATE, sink(new[2], "append_to")),
            Work("topic -> topic, append_to", peer, source, sink(new[3], "append_to")),
            Work("topic -> noop, taskPerPartition", peer, tasks, NOOP),
        ]
    return works


def main() -> int:
    """Measures in turn and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka-servers", default="", help="HOST:PORT of a Kafka")
    parser.add_argument("--kafka-jars", default="", help="the jars of Spark's connector for Kafka, comma-separated")
    parser.add_argument("--kafka-python", default=sys.executable, help="interpreter with the PySpark that fits these jars")
    parser.add_argument("--batches", type=int, default=80, help="micro-batches of a query that are measured")
    parser.add_argument("--rounds", type=int, default=3, help="turns")
    parser.add_argument("--only", default="", help="only works whose name contains this")
    given = parser.parse_args()
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(None, {}))
        ours = stack.enter_context(session(sys.executable, shipped_settings()))
        sessions = {"brokerd": ours, "ceiling": ours}
        works = _works(
            "brokerd", "", broker.address, broker.new_topic(PARTITIONS), [broker.new_topic(PARTITIONS) for _ in range(4)]
        )
        works += [
            Work("rate -> noop", "ceiling", RATE, NOOP),
            Work("rate -> topic", "ceiling", RATE, {"format": "discard"}),
            Work("topic -> noop", "ceiling", {"format": "counting"}, NOOP),
            Work("topic -> topic", "ceiling", {"format": "counting"}, {"format": "discard"}),
        ]
        if given.kafka_servers:
            jars = {**shipped_settings(), "spark.jars": given.kafka_jars}
            sessions["kafka"] = stack.enter_context(session(given.kafka_python, jars))
            names = [f"bench-{uuid.uuid4().hex[:8]}" for _ in range(5)]
            works += _works("kafka", "kafka.", given.kafka_servers, names[0], names[1:])
        for filling in [work for work in works if work.name == "fill"]:
            run(sessions[filling.peer], filling, given.batches + 20)
        works = sorted((work for work in works if work.name != "fill" and given.only in work.name), key=lambda work: work.name)
        taken: list[list[dict[str, float]]] = [[] for _ in works]
        for _ in range(given.rounds):
            for work, figures in zip(works, taken, strict=True):
                figures.append(run(sessions[work.peer], work, given.batches))
    print(f"{'':34}{'peer':10}{'median ms':>10}{'p90 ms':>8}  medians of the rounds")
    for work, figures in zip(works, taken, strict=True):
        medians = [one["median_ms"] for one in figures]
        p90 = statistics.median(one["p90_ms"] for one in figures)
        print(f"{work.name:34}{work.peer:10}{statistics.median(medians):10.1f}{p90:8.1f}  {medians}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
