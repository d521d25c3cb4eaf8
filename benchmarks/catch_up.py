"""How copying to a new replica affects writers: the latency of acknowledged sends to other partitions, before and during it.

    python -m benchmarks.catch_up --gigabytes 1 --repeats 5

Three nodes and the client share the machine. The sends go one at a time to partitions with three replicas.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

from benchmarks.measure import quantile_ms
from brokerd import Producer
from brokerd.testing import Cluster

LIVE, BIG = "live", "big"
PARTITIONS = 4
VALUE_BYTES = 10_000
_QUIET_S = 10.0
_PAUSE_S = 0.005  # between two sends


def reassign(cluster: Cluster, replicas: str) -> None:
    """Requests these replicas for all partitions of the big topic, without waiting for them."""
    command = [sys.executable, "-m", "brokerd", "cluster", "reassign", "--bootstrap-server", cluster.bootstrap_servers]
    for number in range(PARTITIONS):
        subprocess.run([*command, BIG, str(number), "--replicas", replicas], check=True, stdout=subprocess.DEVNULL)


def has_copies(cluster: Cluster, nodes: Iterable[int]) -> bool:
    """True once exactly these nodes are in sync in the big topic."""
    return all(set(cluster.in_sync(BIG, number)) == set(nodes) for number in range(PARTITIONS))


def _is_past(end: float) -> bool:
    return time.monotonic() > end


def sends(servers: str, is_over: Callable[[], bool]) -> str:
    """Sends until `is_over`; returns the latency of acknowledgements as text."""
    found = []
    with Producer({"bootstrap.servers": servers, "linger.ms": 0}) as producer:
        producer.send(LIVE, b"first").result()
        while not is_over():
            start = time.perf_counter()
            producer.send(LIVE, bytes(100)).result()
            found.append(time.perf_counter() - start)
            time.sleep(_PAUSE_S)
    return f"{len(found)} sends, p50 {quantile_ms(found, 0.5):.1f} ms, p99 {quantile_ms(found, 0.99):.1f} ms"


def main() -> None:
    """Measures, and prints a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with Cluster(3) as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic(LIVE, 3, replication_factor=3)
        cluster.create_topic(BIG, PARTITIONS, replication_factor=2)
        reassign(cluster, "1,2")
        with Producer({"bootstrap.servers": servers, "compression.type": "none"}) as producer:
            for number in range(int(args.gigabytes * 1e9 / VALUE_BYTES)):
                producer.send(BIG, bytes(VALUE_BYTES), partition=number % PARTITIONS)
        for _ in range(args.repeats):
            while not has_copies(cluster, (1, 2)):
                time.sleep(_PAUSE_S)
            print("quiet:  ", sends(servers, partial(_is_past, time.monotonic() + _QUIET_S)), flush=True)
            reassign(cluster, "1,2,3")
            start = time.monotonic()
            print(
                "copying:",
                sends(servers, lambda: has_copies(cluster, (1, 2, 3))),
                f"in {time.monotonic() - start:.1f} s",
                flush=True,
            )
            reassign(cluster, "1,2")


if __name__ == "__main__":
    main()
