"""Clients that write transactions as Spark's sink does: members write, a driver decides. ACTS are chosen at random;
transaction_checker.py judges the result.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import uuid
from collections.abc import Callable, Sequence

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import BrokerdError, ProducerFencedError, WireError
from brokerd.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import MemberReport, Membership, Totals, TransactionEnd
from brokerd.producer.futures import RecordFuture
from tests.chaos.history import Attempt, Outcome, Value
from tests.chaos.recorder import PRODUCER_SETTINGS, Recorder

logger = logging.getLogger(__name__)

TIMEOUT_MS = 15_000  # of executions
_SILENT_TIMEOUT_MS = 1_000
_MEMBERS = 3
_ROWS = 40  # of a member, at most
_FLUSH_SECONDS = 30.0
_DECIDE_MS = 10_000


class Member:
    """One member of an attempt, with the producer that it uses."""

    def __init__(self, producer: Producer, identity: int, membership: Membership) -> None:
        self.producer = producer
        self.identity = identity
        self.membership = membership
        self.counted = MemberReport(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 0)  # its report in the decision
        self.partitions: set[TopicPartition] = set()
        self._futures: list[RecordFuture] = []
        self._number = 0

    def write(self, recorder: Recorder, tps: Sequence[TopicPartition], dice: random.Random, *, is_zombie: bool = False) -> None:
        """Sends some rows. Raises the member's error if it has failed."""
        for _ in range(dice.randrange(1, _ROWS)):
            tp = dice.choice(tps)
            value = Value(self.identity, self._number)
            self._number += 1
            if is_zombie:
                recorder.history.zombies.add(value)
            self._futures.append(recorder.send(self.producer, value, tp, dice.randrange(200)))
            self.partitions.add(tp)

    def acknowledged(self) -> int:
        """Waits until all its records are acknowledged, and returns their number. Raises the first failure."""
        self.producer.flush(_FLUSH_SECONDS)
        for future in self._futures:
            error = future.exception()
            if error is not None:
                raise error
        return len(self._futures)


class Transactor:
    """One driver with its members, on one thread. Several may share a transactional id."""

    def __init__(
        self, recorder: Recorder, config: ConsumerConfig, topics: Sequence[str], name: str, seed: str, stopped: threading.Event
    ) -> None:
        self._recorder = recorder
        self._history = recorder.history
        self._config = config
        self._topics = topics
        self._name = name
        self._dice = random.Random(seed)
        self._stopped = stopped
        self._client: BlockingClient
        self._free: list[Producer] = []
        self._tps: dict[TopicPartition, TopicIdPartition] = {}

    def run(self, pause_seconds: float) -> None:
        """Runs transactions one after another. After a client's error, all clients are replaced."""
        while not self._stopped.is_set():
            try:
                with contextlib.ExitStack() as stack:
                    self._open(stack)
                    while not self._stopped.is_set():
                        self._act()
                        self._stopped.wait(self._dice.random() * pause_seconds)
            except (BrokerdError, TimeoutError) as error:
                logger.info("transactor of %s begins again: %s", self._name, error)
                self._stopped.wait(0.1)

    def _open(self, stack: contextlib.ExitStack) -> None:
        self._client = stack.enter_context(BlockingClient(self._config))
        found = self._client.metadata(list(self._topics)).topics
        self._tps = {
            TopicPartition(topic, partition): TopicIdPartition(found[topic].topic_id, partition)
            for topic in self._topics
            for partition in range(found[topic].partition_count)
        }
        settings = {**PRODUCER_SETTINGS, "bootstrap.servers": self._config.bootstrap_servers}
        self._free = [Producer(settings) for _ in range(_MEMBERS)]
        for producer in self._free:
            stack.callback(producer.close, 1)

    def _act(self) -> None:
        name = self._dice.choice(list(ACTS))
        producers = list(self._free)
        try:
            ACTS[name](self)
        except (BrokerdError, TimeoutError) as error:
            logger.info("transactor of %s: %s ended: %s", self._name, name, error)
        finally:
            self._free = producers
            for producer in producers:
                producer.abort_member(0)

    # --- acts

    def commit(self) -> None:
        """Commits what members wrote."""
        attempt, members = self._begin(self._next_version(), self._dice.randrange(1, _MEMBERS + 1))
        self._decide(attempt, members)

    def commit_twice(self) -> None:
        """Repeats the COMMIT of a committed version, which must stay committed."""
        attempt, members = self._begin(self._next_version(), 1)
        if self._decide(attempt, members) is Outcome.OK and self._ask(self._end(attempt, members)) is Outcome.FAILED:
            self._history.forgotten.append(f"{attempt} was acknowledged, and refused when asked for again")

    def abort(self) -> None:
        """Aborts what members wrote."""
        attempt, members = self._begin(self._next_version(), 2)
        self._ask(self._end(attempt, members, is_commit=False))

    def commit_late(self) -> None:
        """Sends a COMMIT after the ABORT of its execution, or after the COMMIT of another one."""
        version = self._next_version()
        first, members = self._begin(version, 1)
        if self._dice.random() < 0.5:
            self._ask(self._end(first, members, is_commit=False))
        second, others = self._begin(version, self._dice.randrange(1, _MEMBERS))
        if self._dice.random() < 0.7:
            self._decide(second, others)
        self._decide(first, members)

    def replay(self) -> None:
        """Commits an execution while another with the same rows is open, then commits that one too."""
        version, totals = self._next_version(), self._dice.getrandbits(60)
        first, members = self._begin(version, 1, totals=totals)
        second, others = self._begin(version, 1, totals=totals)
        self._decide(first, members)
        self._decide(second, others)

    def fall_silent(self) -> None:
        """A member writes and then falls silent, in this transactional id or in one that is never used again."""
        name = self._dice.choice((self._name, f"{self._name}-{uuid.uuid4()}"))
        self._begin(self._next_version() if name == self._name else 0, 1, name=name, timeout_ms=_SILENT_TIMEOUT_MS)

    def write_on(self) -> None:
        """Members write after the decision: one that the commit named, and one that it did not."""
        attempt, members = self._begin(self._next_version(), 2)
        is_commit = self._dice.random() < 0.7
        outcome = self._decide(attempt, members[:1]) if is_commit else self._ask(self._end(attempt, members, is_commit=False))
        if outcome is Outcome.OK:
            for member in members:
                with contextlib.suppress(BrokerdError, TimeoutError):
                    member.write(self._recorder, list(self._tps), self._dice, is_zombie=True)
                    member.acknowledged()

    # --- steps

    def _next_version(self) -> int:
        found = self._client.find_transaction(self._name)
        return 0 if found is None else found.last_version + 1

    def _begin(
        self, version: int, count: int, *, name: str = "", totals: int | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> tuple[Attempt, list[Member]]:
        """An execution whose members have written; all records are acknowledged."""
        execution_id = uuid.uuid4().hex
        attempt = Attempt(name or self._name, version, execution_id, self._dice.getrandbits(60) if totals is None else totals)
        self._history.attempts.append(attempt)
        members = [self._member(attempt, timeout_ms) for _ in range(count)]
        tps = self._dice.sample(list(self._tps), self._dice.randrange(1, len(self._tps) + 1))
        for member in members:
            member.write(self._recorder, tps, self._dice)
        for member in members:
            records = member.acknowledged()
            grant = self._client.init_member(member.membership)  # a member that asks again gets the same producer id
            member.counted = MemberReport(grant.producer_id, grant.epoch, records)
        return attempt, members

    def _member(self, attempt: Attempt, timeout_ms: int) -> Member:
        identity = self._recorder.identity()
        attempt.members.add(identity)
        membership = Membership(
            attempt.transactional_id,
            attempt.version,
            attempt.execution_id,
            run_id=attempt.execution_id,
            owner="chaos",
            member_id=uuid.uuid4().bytes,
            timeout_ms=timeout_ms,
        )
        producer = self._free.pop()
        producer.begin_member(membership)
        return Member(producer, identity, membership)

    def _end(self, attempt: Attempt, members: Sequence[Member], *, is_commit: bool = True) -> TransactionEnd:
        return TransactionEnd(
            attempt.transactional_id,
            attempt.version,
            attempt.execution_id,
            attempt.execution_id,
            is_commit,
            members=[member.counted for member in members],
            partitions={self._tps[tp] for member in members for tp in member.partitions},
            totals=Totals(rows=1, key_hash_sum=attempt.totals),
        )

    def _decide(self, attempt: Attempt, members: Sequence[Member]) -> Outcome:
        """Sends a COMMIT and repeats it until its outcome is known or the workload stops."""
        end = self._end(attempt, members)
        attempt.listed = {member.identity for member in members}
        attempt.invoked_ms = self._recorder.clock.monotonic_ms()
        attempt.outcome = Outcome.UNKNOWN
        while (outcome := self._ask(end)) is Outcome.UNKNOWN and not self._stopped.is_set():
            if attempt.version <= self._last_version(attempt.transactional_id) - 1:
                break  # a later version is committed, so the outcome can no longer be learned
        if outcome is Outcome.OK:
            attempt.decided_ms = self._recorder.clock.monotonic_ms()
            self._recorder.acknowledged += 1
            self._recorder.committed += 1
        attempt.outcome = outcome
        return outcome

    def _last_version(self, name: str) -> int:
        try:
            found = self._client.find_transaction(name)
        except BrokerdError:
            return -1
        return -1 if found is None else found.last_version

    def _ask(self, end: TransactionEnd) -> Outcome:
        try:
            self._client.end_transaction(end, timeout_ms=_DECIDE_MS)
        except ProducerFencedError:  # a later version is committed; this one may have been, too
            return Outcome.UNKNOWN
        except WireError as error:
            logger.info("version %d of %s: %s", end.txn_version, end.transactional_id, error)
            return Outcome.UNKNOWN if error.retriable else Outcome.FAILED
        except BrokerdError as error:
            logger.info("version %d of %s: %s", end.txn_version, end.transactional_id, error)
            return Outcome.UNKNOWN
        return Outcome.OK


ACTS: dict[str, Callable[[Transactor], None]] = {
    "commit": Transactor.commit,
    "commit-twice": Transactor.commit_twice,
    "abort": Transactor.abort,
    "commit-late": Transactor.commit_late,
    "replay": Transactor.replay,
    "fall-silent": Transactor.fall_silent,
    "write-on": Transactor.write_on,
}
