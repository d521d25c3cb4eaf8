"""How long a partition has no leader after its leader's node dies, and whether acknowledged records are lost.

    python -m benchmarks.failover --kills 100 --session-ms 3000
    python -m benchmarks.failover --rolls 5                     # instead, all nodes are stopped (SIGTERM) and started in turn

Three nodes with three replicas of each partition; a producer per partition sends one record at a time. The leader of the first
partition is killed (SIGKILL) repeatedly, and restarted. Printed are the times from each kill to the end of the dead node's lease,
from there to the election of another leader, from there to the next acknowledgement, their sum, and the longest wait for a record.
At the end all records are read: each acknowledged one must be there, once and in order.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.measure import quantile_ms
from brokerd import Consumer, Producer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.testing import Cluster

TOPIC = "failover"
PHASES = ("end of the lease", "election", "next acknowledgement", "in all")
PARTITIONS = 3
_PAUSE_S = 0.005
_DEADLINE_S = 120.0


class Sender:
    """Sends numbers to one partition, each after the previous one is acknowledged."""

    def __init__(self, servers: str, partition: int) -> None:
        self.acknowledged: list[float] = []  # times, by number
        self.longest_s = 0.0
        self.failure: BaseException | None = None
        self._settings = {"bootstrap.servers": servers, "linger.ms": 0, "delivery.timeout.ms": 120_000}
        self._partition = partition
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the last number is acknowledged. Raises the sender's failure."""
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with Producer(self._settings) as producer:
                while not self._stopped.is_set():
                    start = time.monotonic()
                    producer.send(TOPIC, b"%d" % len(self.acknowledged), partition=self._partition).result()
                    self.acknowledged.append(time.monotonic())
                    self.longest_s = max(self.longest_s, self.acknowledged[-1] - start)
        except BaseException as error:
            self.failure = error


def until(condition: Callable[[], bool]) -> float:
    """Waits for the condition; returns the time when it holds. Raises TimeoutError."""
    end = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the cluster does not come to rest")
        time.sleep(_PAUSE_S)
    return time.monotonic()


def kill_one(cluster: Cluster, sender: Sender) -> tuple[float, ...]:
    """Kills the leader of the first partition; returns the seconds that each of PHASES took."""
    victim = cluster.leader(TOPIC, 0)
    others = ",".join(node.bootstrap_servers for number, node in cluster.nodes.items() if number != victim)
    with BlockingClient(ClientConfig(bootstrap_servers=others)) as client:
        killed = time.monotonic()
        cluster.kill(victim)
        ended = until(lambda: victim not in {node.node_id for node in client.describe_cluster([]).nodes})
    elected = until(lambda: cluster.leader(TOPIC, 0) not in (victim, -1))
    count = len(sender.acknowledged)
    acknowledged = until(lambda: len(sender.acknowledged) > count + 1)  # the first may have been on its way
    cluster.restart(victim)
    wait_in_sync(cluster)
    return ended - killed, elected - ended, acknowledged - elected, acknowledged - killed


def roll(cluster: Cluster) -> None:
    """Restarts all nodes in turn."""
    for node in cluster.nodes:
        cluster.restart(node)
        wait_in_sync(cluster)


def wait_in_sync(cluster: Cluster) -> None:
    """Returns once all replicas are in sync."""
    until(lambda: all(len(cluster.in_sync(TOPIC, partition)) == 3 for partition in range(PARTITIONS)))


def missing(cluster: Cluster, senders: Sequence[Sender]) -> int:
    """The number of acknowledged records that are not at their offsets."""
    wrong = 0
    for partition, sender in enumerate(senders):
        tp, found = TopicPartition(TOPIC, partition), list[bytes | None]()
        with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([tp])
            (end,) = consumer.end_offsets([tp]).values()
            while consumer.position(tp) < end:
                found += [record.value for record in consumer.poll(10_000)]
        wrong += sum(value != b"%d" % number for number, value in enumerate(found)) + max(len(sender.acknowledged) - len(found), 0)
    return wrong


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rolls", type=int, default=0, help="rolling restarts, in place of kills")
    parser.add_argument("--session-ms", type=int, default=3_000, help="broker.session.timeout.ms")
    args = parser.parse_args()
    settings = {"default.replication.factor": 3, "min.insync.replicas": 2, "broker.session.timeout.ms": args.session_ms}
    with Cluster(3, settings) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        senders = [Sender(cluster.bootstrap_servers, partition) for partition in range(PARTITIONS)]
        try:
            until(lambda: all(sender.acknowledged for sender in senders))
            times = [kill_one(cluster, senders[0]) for _ in range(0 if args.rolls else args.kills)]
            for _ in range(args.rolls):
                roll(cluster)
        finally:
            for sender in senders:
                sender.stop()
        wrong = missing(cluster, senders)
    for name, seconds in zip(PHASES, zip(*times, strict=True), strict=False):
        print(f"{name:20} p50 {statistics.median(seconds):.2f} s, p99 {quantile_ms(seconds, 0.99) / 1_000:.2f} s")
    print(f"longest wait for one record: {max(sender.longest_s for sender in senders):.2f} s")
    print(
        f"{sum(len(sender.acknowledged) for sender in senders)} records acknowledged, {wrong} of them lost, twice or out of order"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
