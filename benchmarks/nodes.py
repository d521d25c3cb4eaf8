"""One broker beside clusters of one, two and three nodes on the same machine, and one with three replicas of each partition, in one
run: throughput of light clients in both directions, with the processor time of all nodes; sends acknowledged one at a time. Then
the processor time of a partition's leader and of its followers, separately.

    python -m benchmarks.nodes --rows 400000 --repeats 5

A node is a process on one core; if there are more nodes than cores, they share. etcd must be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks.environment import Broker, arrow_batches, free_port
from benchmarks.measure import Figures, Work, measure
from brokerd import Consumer, Producer

PARTITIONS = 60
SENDS = 200
ALONE = "alone"


class System:
    """A running system, by the addresses of its nodes."""

    def __init__(self, name: str, nodes: list[Broker]) -> None:
        self.name = name
        self.servers = ",".join(node.address for node in nodes)
        self._nodes = nodes
        self.topic = ""
        self.cpu_s: dict[str, list[float]] = {}  # of all nodes, by name of the measurement

    def cpu_seconds(self) -> list[float]:
        """Each node's processor time so far."""
        return [node.child.cpu_seconds() for node in self._nodes]

    @contextlib.contextmanager
    def metered(self, name: str) -> Iterator[None]:
        """Records the nodes' processor time during the block."""
        before = sum(self.cpu_seconds())
        yield
        self.cpu_s.setdefault(name, []).append(sum(self.cpu_seconds()) - before)

    def renew(self, partitions: int = PARTITIONS) -> None:
        """Replaces the topic with an empty one."""
        if self.topic:
            self._nodes[0].delete_topic(self.topic)
        self.topic = self._nodes[0].new_topic(partitions)

    def leader(self) -> int:
        """The index of the node that leads the topic's first partition, from 0."""
        with self._nodes[0].client() as client:
            (topic,) = client.describe_cluster([self.topic]).topics
        return topic.partitions[0].leader - 1


@contextlib.contextmanager
def etcd(parent: str) -> Iterator[str]:
    """A running etcd; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    client, peer = f"http://{address}", f"http://127.0.0.1:{free_port()}"
    flags = {"data-dir": f"{parent}/etcd", "logger": "zap", "log-level": "error", "initial-cluster": f"default={peer}"}
    flags |= {"listen-client-urls": client, "advertise-client-urls": client}
    flags |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer}
    process = subprocess.Popen(["etcd", *(f"--{name}={value}" for name, value in flags.items())])
    try:
        yield address
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def systems(parent: str, coordination: str) -> Iterator[list[System]]:
    """A single broker, clusters of one, two and three nodes, and one of three nodes with three replicas."""
    with contextlib.ExitStack() as stack:
        found = [System(ALONE, [stack.enter_context(Broker(parent, {}))])]
        for name, count, factor in (("1 node", 1, 1), ("2 nodes", 2, 1), ("3 nodes", 3, 1), ("3 copies", 3, 3)):
            of_all = {"cluster.name": name.replace(" ", "-"), "coordination.servers": f"etcd://{coordination}"}
            of_all |= {"default.replication.factor": str(factor), "min.insync.replicas": str(min(factor, 2))}
            nodes = [stack.enter_context(Broker(parent, {"node.id": str(one), **of_all})) for one in range(1, count + 1)]
            found.append(System(name, nodes))
        yield found


def works(system: System, rows: int, value_bytes: int) -> list[Work]:
    """The works of one system; the consumer reads what the producer of the same round wrote."""
    batches = list(arrow_batches(rows, value_bytes))
    size = sum(batch.nbytes for batch in batches)

    def produce(_round: int) -> float:
        system.renew()
        with Producer({"bootstrap.servers": system.servers}) as producer, system.metered("in"):
            start = time.perf_counter()
            for batch in batches:
                producer.send_batch(system.topic, batch)
            producer.flush()
            return time.perf_counter() - start

    def consume(_round: int) -> float:
        with Consumer({"bootstrap.servers": system.servers, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(system.topic, number) for number in range(PARTITIONS)])
            consumer.end_offsets(consumer.assignment())  # connects before the measurement
            with system.metered("out"):
                start, read = time.perf_counter(), 0
                while read < rows:
                    read += len(consumer.poll_arrow())
                return time.perf_counter() - start

    def send_one_by_one(_round: int) -> list[float]:
        found = []
        with Producer({"bootstrap.servers": system.servers, "linger.ms": 0}) as producer:
            producer.send(system.topic, b"first").result()
            for number in range(SENDS):
                start = time.perf_counter()
                producer.send(system.topic, b"%d" % number, partition=number % PARTITIONS).result()
                found.append(time.perf_counter() - start)
        return found

    return [
        Work("in", system.name, produce, rows, size),
        Work("out", system.name, consume, rows, size),
        Work("send", system.name, send_one_by_one, SENDS, SENDS),
    ]


def leader_and_followers(system: System, rows: int, value_bytes: int, repeats: int) -> tuple[float, float]:
    """Processor milliseconds per MB of the leader of the only partition, and of one follower: medians."""
    batches = list(arrow_batches(rows, value_bytes))
    size_mb = sum(batch.nbytes for batch in batches) / 1e6
    led, copied = list[float](), list[float]()
    for number in range(repeats + 1):
        system.renew(1)
        leader, before = system.leader(), system.cpu_seconds()
        with Producer({"bootstrap.servers": system.servers}) as producer:
            for batch in batches:
                producer.send_batch(system.topic, batch)
            producer.flush()
        taken = [after - at_first for after, at_first in zip(system.cpu_seconds(), before, strict=True)]
        if number:  # after a warm-up
            led.append(taken.pop(leader) * 1_000 / size_mb)
            copied.append(sum(taken) / len(taken) * 1_000 / size_mb)
    return statistics.median(led), statistics.median(copied)


def _table(figures: list[Figures], cpu_s: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    alone = {figure.work.name: figure.median_s for figure in figures if figure.work.peer == ALONE}
    yield f"{'':4} {'system':10} {'MB/s':>8} {'ratio':>6} {'CPU ms/MB':>10}"
    for figure in sorted(figures, key=lambda one: one.work.name):
        work, ratio = figure.work, alone[figure.work.name] / figure.median_s
        if figure.latencies:
            yield f"{work.name:4} {work.peer:10} p50 {figure.latency_ms(0.5):.1f} ms, p99 {figure.latency_ms(0.99):.1f} ms"
        else:
            size_mb = work.size_bytes / 1e6
            cpu_ms = statistics.median(cpu_s[work.peer][work.name][1:]) * 1_000 / size_mb
            yield f"{work.name:4} {work.peer:10} {size_mb / figure.median_s:8.0f} {ratio:6.2f} {cpu_ms:10.2f}"


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    parent = tempfile.mkdtemp(prefix="brokerd-nodes-")
    try:
        with etcd(parent) as address, systems(parent, address) as found:
            all_works = [work for system in found for work in works(system, args.rows, args.value_bytes)]
            figures = measure(all_works, args.repeats, lambda text: print(text, file=sys.stderr))
            led, copied = leader_and_followers(found[-1], args.rows, args.value_bytes, args.repeats)
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    print("\n".join(_table(figures, {system.name: system.cpu_s for system in found})))
    print(f"in   3 copies of one partition: CPU ms/MB of its leader {led:.2f}, of a follower {copied:.2f}")


if __name__ == "__main__":
    main()
