"""The cost of many partitions with three replicas on three nodes: idle, when a node that leads a third dies, and when it restarts.

    python -m benchmarks.many_partitions --partitions 1000 --session-ms 3000

The store is in memory and does not fsync; with etcd an election of many partitions takes longer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.environment import cpu_seconds
from brokerd import Producer
from brokerd.testing import Cluster

TOPIC = "many"
_IDLE_S = 20.0


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Prints how long the block takes."""
    start = time.monotonic()
    yield
    print(f"{what:50} {time.monotonic() - start:6.2f} s", flush=True)


def wait_in_sync(cluster: Cluster) -> None:
    """Returns once all replicas are in sync."""
    status = [sys.executable, "-m", "brokerd", "cluster", "status", "--under-replicated", "--json"]
    while True:
        done = subprocess.run(
            [*status, "--bootstrap-server", cluster.bootstrap_servers], capture_output=True, text=True, check=True
        )
        if not json.loads(done.stdout)["partitions"]:
            return


def main() -> int:
    """Measures, and prints a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--session-ms", type=int, default=3_000, help="broker.session.timeout.ms")
    args = parser.parse_args()
    settings = {"default.replication.factor": 3, "min.insync.replicas": 2, "broker.session.timeout.ms": args.session_ms}
    with Cluster(3, settings) as cluster:
        with timed(f"{args.partitions} partitions created, and in sync"):
            cluster.create_topic(TOPIC, args.partitions)
            wait_in_sync(cluster)
        before = {number: cpu_seconds(node.pid) for number, node in cluster.nodes.items()}
        time.sleep(_IDLE_S)
        for number, node in cluster.nodes.items():
            print(f"node {number}, idle: {(cpu_seconds(node.pid) - before[number]) / _IDLE_S:.1%} of a core", flush=True)
        client = {"bootstrap.servers": cluster.bootstrap_servers, "delivery.timeout.ms": 120_000}
        with Producer(client) as producer:

            def send_to_all() -> None:
                for sent in [producer.send(TOPIC, b"x", partition=number) for number in range(args.partitions)]:
                    sent.result()

            with timed("a record to each, acknowledged"):
                send_to_all()
            victim = cluster.leader(TOPIC, 0)
            cluster.kill(victim)
            with timed("a record to each after one node was killed"):
                send_to_all()
            with timed("that node started"):
                cluster.restart(victim)
            with timed("  and all in sync"):
                wait_in_sync(cluster)
            victim = cluster.leader(TOPIC, 0)
            with timed("another node stopped and started"):
                cluster.restart(victim)
            with timed("  and all in sync"):
                wait_in_sync(cluster)
            with timed("a record to each, acknowledged"):
                send_to_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
