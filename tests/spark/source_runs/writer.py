"""Writes to a round's topics until it is over, partly in transactions, and records every row's fate and place.

Rows without transactions lie between those of an open transaction, so that it holds them back.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.errors import AlreadyCommittedError, InvalidTxnStateError, TxnAbortedError
from brokerd.producer.futures import RecordFuture
from brokerd.producer.producer import Producer
from brokerd.wire.v1.topics_pb2 import TopicDescription
from tests.spark.source_runs.checker import Row, Written
from tests.support.wait import wait_until

_PAUSE_S = 0.2
_ROWS_MAX = 4  # of a topic at a time
_ATTEMPTS_MAX = 100
_ACKNOWLEDGED_S = 300
_DECIDED_S = 120
_TRANSACTION_TIMEOUT_MS = 20_000  # ends a transaction whose abort did not reach the broker
_SIZES = (0, 10, 1_000)

Sent = list[tuple[str, str, RecordFuture]]  # topic, value


class LeftError(Exception):
    """Leaves a transaction's block on purpose."""


class Writer:
    """One plain and one transactional producer. Only run() may be called from another thread."""

    def __init__(self, topics: Mapping[str, int], seed: float, *, pause_s: float = _PAUSE_S) -> None:
        """`topics`: partitions by name."""
        self._pause_s = pause_s
        self.partitions = dict(topics)  # may be raised during run(), once the topic has them
        self._rng = random.Random(seed)
        self._number = 0
        self._version = 0
        self.written = {topic: Written() for topic in topics}
        self.transactions: Counter[str] = Counter()  # by outcome

    def run(self, servers: str, is_over: threading.Event) -> None:
        """Returns soon after `is_over`, once every transaction is decided. Raises the first failure of a record."""
        plain_config = ProducerConfig(bootstrap_servers=servers, batch_size=4_096)
        transactional_config = ProducerConfig(
            bootstrap_servers=servers,
            batch_size=4_096,
            transactional_id="runs",
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        )
        with Producer(plain_config) as plain, Producer(transactional_config) as transactional:
            while not is_over.wait(self._pause_s):
                self._committed(self._send(plain))
                if self._rng.random() < 0.5:
                    self._transaction(plain, transactional, is_left=self._rng.random() < 0.4)
            self._transaction(plain, transactional, is_left=False)

    def _send(self, producer: Producer) -> Sent:
        sent: Sent = []
        for topic, partitions in self.partitions.items():
            for _ in range(self._rng.randrange(_ROWS_MAX)):
                value = f"{self._number}:" + "v" * self._rng.choice(_SIZES)
                sent.append((topic, value, producer.send(topic, value, partition=self._rng.randrange(partitions))))
                self._number += 1
        return sent

    def _transaction(self, plain: Producer, transactional: Producer, *, is_left: bool) -> None:
        """Commits a transaction, or leaves it midway. After a failure it retries the same number until its fate is known."""
        undecided: Sent = []
        for _ in range(_ATTEMPTS_MAX):
            sent: Sent = []
            try:
                with transactional.transaction(self._version):
                    for _ in range(self._rng.randrange(1, 4)):
                        sent += self._send(transactional)
                        transactional.flush(_ACKNOWLEDGED_S)
                        self._committed(self._send(plain))
                    if is_left and not undecided:
                        raise LeftError
            except LeftError:
                self._aborted(sent)
                return
            except AlreadyCommittedError:
                sent, undecided = undecided, []
            except (TxnAbortedError, InvalidTxnStateError):
                self._aborted(undecided)
                undecided = sent
                continue
            self._aborted(undecided)
            self._committed(sent)
            self.transactions["committed"] += 1
            self._version += 1
            return
        raise AssertionError(f"transaction {self._version} is not committed after {_ATTEMPTS_MAX} attempts")

    def _committed(self, sent: Iterable[tuple[str, str, RecordFuture]]) -> None:
        for topic, value, future in sent:
            place = future.result(_ACKNOWLEDGED_S)
            assert place.offset >= 0, f"{topic}: the broker did not say where {value[:12]!r} is"
            self.written[topic].committed.add(Row(place.partition, place.offset, value))

    def _aborted(self, sent: Sent) -> None:
        for topic, value, _ in sent:
            self.written[topic].aborted.add(value)
        self.transactions["aborted"] += bool(sent)


def wait_until_decided(servers: str, topics: Sequence[str]) -> None:
    """Waits until no open transaction hides records. One whose abort did not reach the broker has to expire."""
    with BlockingClient(ClientConfig(bootstrap_servers=servers)) as client:

        def is_decided() -> bool:
            described = client.describe_topics(topics).values()
            partitions = [one for topic in described if isinstance(topic, TopicDescription) for one in topic.partitions]
            return bool(partitions) and all(one.last_stable_offset == one.log_end_offset for one in partitions)

        wait_until(is_decided, deadline_s=_DECIDED_S, pause_s=0.1, what="every transaction is decided")
