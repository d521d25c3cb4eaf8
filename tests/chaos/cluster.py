"""Chaos with three nodes: `python -m tests.chaos.cluster --seconds 60 --seed 1`. Nodes and their coordination store are killed,
suspended and cut off while producers, consumers and transactions run. The history is checked as with one node. `--factor 3` keeps
three replicas of each partition, and adds disk faults and reassignments.

After each fault every partition must accept records again. Exit code 0 only if nothing was wrong and each kind of fault happened.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from brokerd.client.blocking import BlockingClient
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from brokerd.ids import TopicPartition
from brokerd.testing import Cluster
from brokerd.wire.v1.metadata_pb2 import PartitionMetadata
from tests.chaos.history import Outcome
from tests.chaos.run import SETTINGS, TOPIC, TRANSACTIONAL, Faults, Verdict, pause_seconds, torment
from tests.chaos.workload import PROGRESS_SECONDS, Workload
from tests.support.wait import wait_until

NODES = 3
PARTITIONS = 6
_FAULT_SECONDS = 2.0  # at most
_PATIENCE_S = 15.0  # for replicas to catch up; those that do not are damaged


class ClusterNemesis:
    """Faults against the nodes of a cluster and their store: one function per fault, which undoes its effects before it returns. A
    node that is killed, suspended or cut off loses its lease at once in half of the cases.
    """

    def __init__(self, cluster: Cluster, dice: random.Random, stopped: threading.Event) -> None:
        self.counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self._cluster = cluster
        self._dice = dice
        self._stopped = stopped

    def faults(self) -> dict[str, Callable[[], None]]:
        """All faults, by name."""
        return {
            "kill": lambda: self.kill(1),
            "kill-two": lambda: self.kill(2),
            "kill-all": lambda: self.kill(NODES),
            "restart": lambda: self._cluster.restart(self._drawn(1)[0]),
            "pause": self.pause,
            "isolate": self.isolate,
            "outage": self.outage,
            "outage-kill": self.outage_and_kill,
        }

    def run(self, name: str) -> None:
        """Runs one fault to its end."""
        self.faults()[name]()
        self.counts[name] += 1

    def kill(self, count: int) -> None:
        """Kills `count` nodes with SIGKILL and restarts them."""
        nodes = self._drawn(count)
        for node in nodes:
            self._cluster.kill(node)
            self._expire_perhaps(node)
        self._wait()
        for node in nodes:
            self._cluster.restart(node)

    def pause(self) -> None:
        """Suspends a node with SIGSTOP for a while."""
        (node,) = self._drawn(1)
        self._cluster.pause(node)
        self._expire_perhaps(node)
        self._wait()
        self._cluster.resume(node)

    def isolate(self) -> None:
        """Cuts a node off from the store, in both directions, for a while."""
        (node,) = self._drawn(1)
        self._cluster.isolate(node)
        self._expire_perhaps(node)
        self._wait()
        self._cluster.heal(node)

    def outage(self) -> None:
        """Stops the store for a while."""
        self._cluster.stop_coordination()
        self._wait()
        self._cluster.start_coordination()

    def outage_and_kill(self) -> None:
        """Kills a node while the store is down."""
        (node,) = self._drawn(1)
        self._cluster.stop_coordination()
        self._cluster.kill(node)
        self._wait()
        self._cluster.start_coordination()
        self._cluster.restart(node)

    def _drawn(self, count: int) -> list[int]:
        return self._dice.sample(range(1, NODES + 1), count)

    def _expire_perhaps(self, node: int) -> None:
        if self._dice.random() < 0.5:
            self._cluster.expire(node)

    def _wait(self) -> None:
        self._stopped.wait(self._dice.random() * _FAULT_SECONDS)


class CopiesNemesis(ClusterNemesis):
    """Further faults for three replicas of each partition: disks fail or are lost, a bit of a log flips, partitions are reassigned.
    Damaged replicas are replaced as docs/cluster.md describes."""

    def __init__(
        self, cluster: Cluster, dice: random.Random, stopped: threading.Event, client: BlockingClient, topics: Sequence[str]
    ) -> None:
        super().__init__(cluster, dice, stopped)
        self._client = client
        self._topics = topics

    def faults(self) -> dict[str, Callable[[], None]]:
        """All faults, by name."""
        disk = {f"disk-{how}": functools.partial(self.fail_disk, how) for how in ("full", "write", "sync", "read")}
        return {**super().faults(), **disk, "emptied": self.empty, "flipped": self.flip, "moved": self.move}

    def fail_disk(self, how: str) -> None:
        """The disk of a node fails for a while. The restart brings back the logs that stopped."""
        (node,) = self._drawn(1)
        broker = self._cluster.nodes[node]
        broker.fail_disk(how)
        self._wait()
        broker.heal_disk()
        self._cluster.restart(node)

    def empty(self) -> None:
        """Kills a node and deletes its data."""
        self._repair()
        (node,) = self._drawn(1)
        self._cluster.kill(node)
        self._cluster.expire(node)  # otherwise the node would have to wait with its new directory
        shutil.rmtree(self._data(node))
        self._wait()
        self._cluster.restart(node)

    def flip(self) -> None:
        """Kills a node and flips a bit in one of its logs. The start, a read or a follower must detect it."""
        self._repair()
        (node,) = self._drawn(1)
        wait_until(lambda: bool(self._logs(node)), what="records on every node")
        self._cluster.kill(node)
        log = self._dice.choice(self._logs(node))
        data = bytearray(log.read_bytes())
        data[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)
        log.write_bytes(data)
        self.injected["flipped"] += 1
        self._cluster.restart(node)

    def move(self) -> None:
        """Reassigns a partition to two nodes, with another leader, and back to three."""
        topic, partition, order = self._dice.choice(self._topics), self._dice.randrange(PARTITIONS), self._drawn(NODES)
        self._reassign(topic, partition, order[:-1])
        self._wait()
        self._reassign(topic, partition, order)

    def _repair(self) -> None:
        """Returns once all replicas are in sync. A replica that does not catch up is damaged, and is copied again."""
        end = time.monotonic() + _PATIENCE_S
        while left := [(one, at) for one, at in self._described() if len(at.isr) < NODES]:
            if time.monotonic() > end:
                topic, damaged = left[0]
                self.injected["copied anew"] += 1
                self._reassign(topic, damaged.partition, list(damaged.isr))
                self._reassign(topic, damaged.partition, list(range(1, NODES + 1)))
            self._stopped.wait(0.05)

    def _described(self) -> list[tuple[str, PartitionMetadata]]:
        described = self._client.describe_cluster(self._topics).topics
        return [(topic.name, partition) for topic in described for partition in topic.partitions]

    def _reassign(self, topic: str, partition: int, replicas: list[int]) -> None:
        self._client.reassign_partition(topic, partition, replicas)
        found: list[PartitionMetadata] = []

        def is_done() -> bool:
            found[:] = [at for name, at in self._described() if (name, at.partition) == (topic, partition)]
            return sorted(found[0].isr) == sorted(found[0].replicas) == sorted(replicas)

        wait_until(is_done, what=f"{topic}-{partition} is in sync on {replicas}", deadline_s=60)

    def _logs(self, node: int) -> list[Path]:
        return [path for path in sorted(self._data(node).glob("*-*/*.log")) if path.stat().st_size]

    def _data(self, node: int) -> Path:
        return self._cluster.nodes[node].directory / "data"


class ClusterWorkload(Workload):
    """A workload that makes progress only if it does so on every node."""

    def goes_on(self) -> bool:
        """Waits until each partition without transactions has acknowledged a record sent from now on, and new clients find the
        leader of each partition. False after a minute."""
        pause, clock = threading.Event(), SystemClock()
        begun_ms, seen = clock.monotonic_ms(), len(self.history.sends)
        left = {TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)}
        while left:
            if self.failures or clock.monotonic_ms() - begun_ms > PROGRESS_SECONDS * 1_000:
                return False
            newer = self.history.sends[seen:]
            seen += len(newer)
            left -= {send.tp for send in newer if send.outcome is Outcome.OK and send.invoked_ms >= begun_ms}
            pause.wait(0.01)
        return self.is_reached_anew()


def run(
    *,
    seconds: float,
    seed: int,
    kinds: list[str] | None = None,
    rounds: int | None = None,
    transactional: Sequence[str] = TRANSACTIONAL,
    factor: int = 1,
) -> Verdict:
    """One run on a fresh cluster: faults of `kinds` (default all) for `seconds`, or `rounds` of them. `factor`: replicas of each
    partition."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(NODES, {**SETTINGS, **replication(factor)}))
        servers, dice, stopped = cluster.bootstrap_servers, random.Random(seed), threading.Event()
        if factor == NODES:
            client = stack.enter_context(BlockingClient(from_mapping(ClientConfig, {"bootstrap.servers": servers})))
            nemesis: ClusterNemesis = CopiesNemesis(cluster, dice, stopped, client, [TOPIC, *transactional])
        else:
            nemesis = ClusterNemesis(cluster, dice, stopped)
        verdict = Verdict(seed, kinds or sorted(nemesis.faults()))
        return judged(servers, nemesis, verdict, seconds=seconds, rounds=rounds, transactional=transactional)


def replication(factor: int) -> dict[str, object]:
    """The settings for this replication factor."""
    return {"default.replication.factor": factor, "min.insync.replicas": min(factor, 2)}


def judged(
    bootstrap: str, nemesis: Faults, verdict: Verdict, *, seconds: float, rounds: int | None, transactional: Sequence[str]
) -> Verdict:
    """Runs workload and faults on a fresh cluster, and returns the verdict."""
    with BlockingClient(from_mapping(ClientConfig, {"bootstrap.servers": bootstrap})) as client:
        for topic in (TOPIC, *transactional):
            client.create_topic(topic, PARTITIONS)
    workload = ClusterWorkload(
        bootstrap,
        TOPIC,
        partitions=PARTITIONS,
        producers=3,
        consumers=2,
        seed=verdict.seed,
        pause_seconds=pause_seconds(seconds, rounds),
        transactional=transactional,
    )
    workload.start()
    try:
        torment(workload, nemesis, random.Random(f"{verdict.seed}-order"), verdict, seconds, rounds)
        verdict.commits_went_on = not transactional or workload.commits_go_on()
        history = workload.stop()
        history.node_count = NODES
    except BaseException as error:
        workload.abandon()  # the failure of the fault must surface, not the client errors that follow from it
        error.add_note(f"chaos: seed {verdict.seed}, kinds {','.join(verdict.kinds)}, after {nemesis.counts.total()} faults")
        raise
    verdict.judge(history, nemesis)
    return verdict


def options(doc: str | None) -> argparse.ArgumentParser:
    """The command line of a run."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument(
        "--rounds", type=int, help="so many faults, with shorter pauses between them, if there are seconds for them"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="comma-separated kinds of fault; default all")
    parser.add_argument("--factor", type=int, default=1, help="so many nodes hold each partition")
    parser.add_argument("--no-transactions", action="store_true", help="records alone")
    parser.add_argument("--verbose", action="store_true")
    return parser


def report(run: Callable[..., Verdict], args: argparse.Namespace) -> int:
    """Runs as the command line says, and prints the verdict. Returns the exit code."""
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(asctime)s %(name)s %(message)s")
    started = time.monotonic()
    transactional = () if args.no_transactions else TRANSACTIONAL
    verdict = run(
        seconds=args.seconds,
        rounds=args.rounds,
        seed=args.seed,
        kinds=args.kinds,
        transactional=transactional,
        factor=args.factor,
    )
    sys.stdout.write(f"{verdict}\n           in {time.monotonic() - started:.0f} s\n")
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    raise SystemExit(report(run, options(__doc__).parse_args()))
