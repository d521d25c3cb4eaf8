"""Goal: a transaction over partitions of three leaders is visible completely or not at all, and each version once, whichever leader
or coordinator is killed during writes and decisions. Method: real processes, each node killed in turn under load.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from brokerd import Consumer, Producer, TopicPartition
from brokerd.errors import AlreadyCommittedError, BrokerdError
from brokerd.testing import Cluster
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = 6
WRITERS = 3
ROUNDS = 2  # of kills, each of all nodes in turn
_QUICK = {"retry.backoff.max.ms": 100, "reconnect.backoff.max.ms": 100, "linger.ms": 1, "transaction.timeout.ms": 15_000}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes with the topic `orders`."""
    with Cluster() as cluster:
        cluster.create_topic("orders", PARTITIONS)
        yield cluster


class Writer:
    """Commits versions one after another, with a row to each partition, and repeats each until it is known to be committed. Before
    each version it writes the same rows and aborts them."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.committed = 0  # versions
        self.failures: list[BaseException] = []
        self._settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"writer-{number}", **_QUICK}
        self._number = number
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the last version is committed. Raises the writer's failure."""
        self._stopped.set()
        self._thread.join()
        if self.failures:
            raise self.failures[0]

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._commit(self.committed)
                self.committed += 1
        except BaseException as error:
            self.failures.append(error)

    def _commit(self, version: int) -> None:
        while True:
            try:
                with Producer(self._settings) as producer:
                    with suppress(InterruptedError), producer.transaction(version):
                        self._send(producer, b"aborted")
                        raise InterruptedError
                    with producer.transaction(version):
                        self._send(producer, b"%d" % version)
                return
            except AlreadyCommittedError:
                return  # the response was lost
            except BrokerdError:
                pass  # not committed, or of unknown fate

    def _send(self, producer: Producer, value: bytes) -> None:
        for partition in range(PARTITIONS):
            producer.send("orders", value, key=b"%d" % self._number, partition=partition)


def test_transactions_over_three_leaders_are_whole_and_once(cluster: Cluster) -> None:
    writers = [Writer(cluster, number) for number in range(WRITERS)]
    try:
        for node in [1, 2, 3] * ROUNDS:
            goes_on(writers)
            cluster.kill(node)
            if node % 2:
                cluster.expire(node)
            cluster.restart(node)
        goes_on(writers)
    finally:
        for writer in writers:
            writer.stop()
    found = read_committed(cluster)
    rows = (
        (partition, b"%d" % number, b"%d" % version)
        for number, writer in enumerate(writers)
        for version in range(writer.committed)
        for partition in range(PARTITIONS)
    )
    assert found == Counter(rows)


def goes_on(writers: list[Writer]) -> None:
    """Returns once each writer has committed another version."""
    before = [writer.committed for writer in writers]
    wait_until(lambda: all(w.committed > b or w.failures for w, b in zip(writers, before, strict=True)), what="commits")
    assert not any(writer.failures for writer in writers)


def read_committed(cluster: Cluster) -> Counter[tuple[int, bytes | None, bytes | None]]:
    """What a fresh read_committed reader sees: partition, key, value. Everything decided is visible by then."""
    found: Counter[tuple[int, bytes | None, bytes | None]] = Counter()
    tps = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    with Consumer({**servers, "isolation.level": "read_uncommitted"}) as everything:
        ends = everything.end_offsets(tps)
    with Consumer({**servers, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as consumer:
        wait_until(lambda: consumer.end_offsets(tps) == ends, what="all transactions are decided")
        consumer.assign(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found.update((record.partition, record.key, record.value) for record in consumer.poll(int(DEADLINE_S * 1000)))
    return found
