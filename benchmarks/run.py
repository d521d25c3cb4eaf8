"""`python -m benchmarks.run`: measures the requested groups, prints tables, writes JSON to benchmarks/results/.

Works side by side, each with its ceiling: clients, latency, peers, spark. The broker alone: parked (10,000 parked fetches). The
brokers of brokerd.testing: testing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import parked, testing_broker
from benchmarks.clients import RECORDS_SHARE, ClientWorks
from benchmarks.environment import Broker, Server, bare_server
from benchmarks.measure import Figures, Work, measure, page_cache_ms_per_mb, table, text_table, write_results
from benchmarks.peers import PeerWorks, kafka_clients
from benchmarks.spark_io import Kafka, SparkWorks, spark_session

GROUPS = ("clients", "latency", "peers", "spark", "parked", "testing")
RESULTS = Path(__file__).resolve().parent / "results"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--rows", type=int, default=4_000_000, help="rows of a work (default: %(default)s)")
    made.add_argument("--value-bytes", type=int, default=100, help="bytes of a value; keys have 8 (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=8, help="partitions of a topic (default: %(default)s)")
    made.add_argument("--repeats", type=int, default=3, help="measured rounds after the warm-up (default: %(default)s)")
    made.add_argument("--only", default="clients,latency,spark", help=f"groups, of {', '.join(GROUPS)} (default: %(default)s)")
    made.add_argument("--work", default="", help="only works whose name begins so, such as 'Spark write'")
    made.add_argument("--waiters", type=int, default=10_000, help="fetches of the parked group (default: %(default)s)")
    made.add_argument("--appends", type=int, default=2_000, help="what wakes them, one by one (default: %(default)s)")
    made.add_argument("--quiet-seconds", type=float, default=8.0, help="idle time of parked (default: %(default)s)")
    made.add_argument("--brokers", type=int, default=100, help="brokers of the testing group (default: %(default)s)")
    made.add_argument("--data-dir", help="where the broker's and Spark's files go (default: the system's temporary directory)")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the broker")
    made.add_argument("--spark", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    made.add_argument("--servers", help="brokers that run, to measure instead of a new one: HOST:PORT, of a cluster several")
    made.add_argument("--kafka-servers", help="a Kafka to compare with: HOST:PORT, of a cluster several")
    made.add_argument("--kafka-python", help="an interpreter that has confluent-kafka and kafka-python, for the peers group")
    made.add_argument("--kafka-jars", help="the jars of Spark's Kafka connector, comma-separated")
    made.add_argument("--out", type=Path, help="results file (default: a new one in benchmarks/results)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; returns the exit code."""
    given = parser().parse_args(arguments)
    groups = given.only.split(",")
    unknown = set(groups) - set(GROUPS)
    if unknown:
        print(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    page_cache = page_cache_ms_per_mb(given.data_dir)
    say(f"this machine's page cache takes {page_cache:.2f} ms a MB")
    figures: list[Figures] = []
    extra: dict[str, object] = {}
    settings = dict(pair.split("=", 1) for pair in given.set)
    with contextlib.nullcontext(Server(given.servers)) if given.servers else Broker(given.data_dir, settings) as broker:
        for group in groups:
            say(f"{group}:")
            if group in TOLD:
                extra[group] = TOLD[group](given)
            else:
                figures += MEASURED[group](given, broker)
    if figures:
        print(table(figures), flush=True)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    out = given.out or RESULTS / f"{stamp}-{given.only.replace(',', '-')}.json"
    asked: dict[str, object] = {name: str(value) for name, value in vars(given).items() if name != "out"}
    write_results(out, asked, figures, extra, page_cache=page_cache)
    say(f"written to {out}")
    return 0


def say(line: str) -> None:
    """Prints progress, apart from the tables."""
    print(line, file=sys.stderr, flush=True)


def _peers(given: argparse.Namespace, broker: Server) -> list[Figures]:
    with contextlib.ExitStack() as stack:
        floor = stack.enter_context(bare_server(given.data_dir))
        kafka = None
        if given.kafka_servers and given.kafka_python:
            kafka = stack.enter_context(kafka_clients(given.kafka_python, given.kafka_servers))
            say(f"  Kafka clients: {kafka.greeting}")
        records = given.rows // RECORDS_SHARE
        works = PeerWorks(broker, floor, kafka, records=records, value_bytes=given.value_bytes, partitions=given.partitions)
        return measure(_chosen(given, works.works()), given.repeats, say)


def _with_floor(given: argparse.Namespace, broker: Server, choose: Callable[[ClientWorks], list[Work]]) -> list[Figures]:
    with bare_server(given.data_dir) as floor:
        works = ClientWorks(broker, floor, rows=given.rows, value_bytes=given.value_bytes, partitions=given.partitions)
        return measure(_chosen(given, choose(works)), given.repeats, say)


def _spark(given: argparse.Namespace, broker: Server) -> list[Figures]:
    kafka = Kafka(given.kafka_servers, given.kafka_jars) if given.kafka_servers and given.kafka_jars else None
    spark = spark_session(kafka=kafka, settings=dict(pair.split("=", 1) for pair in given.spark))
    with tempfile.TemporaryDirectory(dir=given.data_dir, ignore_cleanup_errors=True) as directory, spark:
        works = SparkWorks(
            spark,
            broker,
            rows=given.rows,
            value_bytes=given.value_bytes,
            partitions=given.partitions,
            directory=directory,
            kafka=kafka,
        )
        return measure(_chosen(given, works.works()), given.repeats, say)


def _chosen(given: argparse.Namespace, works: list[Work]) -> list[Work]:
    """The works whose names begin with --work, and the writers that fill the topics of the readers among them."""
    chosen = [work for work in works if work.name.startswith(given.work)]
    needs = {"consumer": "producer send_batch", "Spark read": "Spark write batch"}
    for reader, writer in needs.items():
        has_reader = any(work.name.startswith(reader) for work in chosen)
        if has_reader and not any(work.name == writer for work in chosen):
            chosen = [work for work in works if work.name == writer] + chosen
    return chosen


MEASURED: dict[str, Callable[[argparse.Namespace, Server], list[Figures]]] = {
    "clients": partial(_with_floor, choose=ClientWorks.works),
    "latency": partial(_with_floor, choose=ClientWorks.latency_works),
    "peers": _peers,
    "spark": _spark,
}


def _parked(given: argparse.Namespace) -> object:
    return parked.run(given.data_dir, waiters=given.waiters, rounds=given.appends, idle_s=given.quiet_seconds)


def _testing(given: argparse.Namespace) -> object:
    rows = testing_broker.run(given.data_dir, brokers=given.brokers, say=say)
    print(text_table(rows), flush=True)
    return rows


# These start their own brokers.
TOLD: dict[str, Callable[[argparse.Namespace], object]] = {
    "parked": _parked,
    "testing": _testing,
}

if __name__ == "__main__":
    raise SystemExit(main())
