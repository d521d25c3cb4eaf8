"""The clients of the transaction simulations: drivers, which run versions (micro-batches) in sequence, and attempts at their tasks.
No client may assume that another one is dead: attempts of a driver that gave up keep writing, and so do twins (second attempts at a
task)."""

from __future__ import annotations

import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeGuard

from brokerd.errors import (
    AlreadyCommittedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidTxnStateError,
    NotCoordinatorError,
    NotReadyError,
    ProducerFencedError,
    ReplayMismatchError,
    StorageError,
    TxnAbortedError,
    TxnConflictError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.coordinator_log_pb2 import MemberOpened
from brokerd.wire.v1.transaction_pb2 import (
    TRANSACTION_DECISION_ABORT,
    TRANSACTION_DECISION_COMMIT,
    EndTransactionRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    TransactionDecision,
    TransactionMember,
    TransactionPartition,
    TransactionTotals,
)
from tests.support.simulated_transactions import Batch, Done, Request
from tests.support.transaction_bench import Execution

TIMEOUT_MS = 1_000
_BATCH_ROWS = 3


def totals_of(rows: tuple[int, ...]) -> TransactionTotals:
    """The totals, counted as the sink does."""
    count = len(rows)
    return TransactionTotals(rows=count, key_bytes=4 * count, value_bytes=9 * count, key_hash_sum=sum(row * row for row in rows))


_ASK_AGAIN = (StorageError, NotReadyError, NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError)


class World(Protocol):
    """What the actors need of their simulation."""

    rng: random.Random
    has_rash: bool  # some tasks report rows that were not acknowledged
    rash_ids: set[int]  # producer ids of such tasks

    @property
    def is_calm(self) -> bool:
        """True once all faults are over."""

    @property
    def told_committed(self) -> Callable[[Driver], None]:
        """Called when a driver learns that its version is committed."""

    def send(self, call: Call) -> None:
        """Sends a request over the network."""

    def writable(self) -> list[TopicIdPartition]:
        """The existing partitions."""

    def rows(self, name: str, variant: int, version: int) -> tuple[int, ...]:
        """The rows of a version."""

    def new_name(self, prefix: str) -> str:
        """A new unique name."""

    def between_writes(self) -> None:
        """Called between two writes of one run."""


class Call:
    """A request that is repeated until answered."""

    def __init__(self, actor: Actor, request: Request) -> None:
        self.actor = actor
        self.request = request
        self.is_answered = False


class Actor(ABC):
    """A client with at most one request at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.call: Call | None = None

    def ask(self, request: Request) -> None:
        """Sends a request."""
        self.call = Call(self, request)
        self.world.send(self.call)

    def answered(self, call: Call, answer: object) -> None:
        """Takes the first answer. After an error of a disk or a node, the request stays open and is repeated."""
        if call.is_answered or call is not self.call:
            return
        if isinstance(answer, _ASK_AGAIN):
            return
        call.is_answered = True
        self.call = None
        self.on_answer(call.request, answer)

    @abstractmethod
    def on_answer(self, request: Request, answer: object) -> None:
        """Continues after an answer."""


class Attempt(Actor):
    """One attempt at a task: a transaction member that writes its rows to partitions in batches."""

    def __init__(self, world: World, driver: Driver, execution: Execution, split: int, rows: tuple[int, ...]) -> None:
        super().__init__(world)
        self.driver = driver
        self.execution = execution
        self.split = split
        self.rows = rows
        self.member_id = uuid.UUID(int=world.rng.getrandbits(128)).bytes
        self.producer_id = -1
        self.is_skipped = False
        self.is_rash = world.has_rash and not world.is_calm and world.rng.random() < 0.2  # does not wait for acknowledgements
        self.is_over = False
        self.partitions: set[TopicIdPartition] = set()
        self._batches: list[Batch] = []
        if rows:
            owner = f"split {split}"
            self.ask(
                InitProducerIdRequest(
                    transactional_id=driver.name,
                    member_id=self.member_id,
                    owner=owner,
                    timeout_ms=TIMEOUT_MS,
                    **execution._asdict(),
                )
            )
        else:
            self._finish()

    def on_answer(self, request: Request, answer: object) -> None:
        if isinstance(answer, MemberOpened):
            self.producer_id = answer.producer_id
            self._batches = list(self._split_rows())
            self.partitions = {batch.tp for batch in self._batches}
            if self.is_rash:
                self.world.rash_ids.add(self.producer_id)
                for batch in self._batches:
                    self.world.send(Call(self, batch))
                self._batches = []
            self._write()
        elif isinstance(answer, AlreadyCommittedError):
            self.is_skipped = True
            self._finish()
        elif isinstance(answer, WireError):
            self.is_over = True
            self.driver.attempt_failed(self, answer)
        elif isinstance(request, Batch):
            self._batches.pop(0)
            self._write()

    def _split_rows(self) -> list[Batch]:
        partitions = self.world.writable()
        batches: list[Batch] = []
        for number, tp in enumerate(partitions):
            rows = [row for row in self.rows if row % len(partitions) == number]
            batches += [
                Batch(tp, self.producer_id, first, tuple(rows[first : first + _BATCH_ROWS]))
                for first in range(0, len(rows), _BATCH_ROWS)
            ]
        return batches

    def _write(self) -> None:
        if self._batches:
            self.ask(self._batches[0])
        else:
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self.driver.attempt_finished(self)

    def beat(self) -> None:
        """Sends a heartbeat without waiting for its answer."""
        version, execution_id, _ = self.execution
        beat = HeartbeatRequest(
            transactional_id=self.driver.name, txn_version=version, execution_id=execution_id, member_id=self.member_id
        )
        self.world.send(Call(self, beat))

    def report(self) -> TransactionMember | None:
        """The report to the driver; None if the task had no rows or skipped them."""
        has_rows = self.rows and not self.is_skipped
        return TransactionMember(producer_id=self.producer_id, records=len(self.rows)) if has_rows else None


class Driver(Actor):
    """Runs the versions of one query, each in as many executions as it needs. With `writes` > 1, it writes a version's rows several
    times in sequence."""

    def __init__(self, world: World, name: str, variant: int, run_id: str, versions: range, writes: int = 1) -> None:
        super().__init__(world)
        self.writes = writes
        self.written = 0  # writes of this version completed in this run
        self.name = name
        self.variant = variant
        self.versions = versions
        self.version = versions[0]
        self.run_id = run_id
        self.outcome: type[WireError] | None = None
        self.is_over = False
        self.has_committed = False  # learned that some version is committed
        self.reports: dict[int, Attempt] = {}
        self.attempts: list[Attempt] = []
        self._splits = 1
        self.execution = Execution(self.version, "", "")
        self.begin()

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the current version."""
        return self.world.rows(self.name, self.variant, self.version)

    def begin(self) -> None:
        """Starts a new execution of the current version."""
        world = self.world
        self.call = None
        self.reports = {}
        self.execution = Execution(self.version, world.new_name("e"), self.run_id)
        self._splits = world.rng.choice((1, 1, 2, 3))
        self.attempts = []
        for split in range(self._splits):
            self.launch(split)

    def launch(self, split: int) -> None:
        """Starts an attempt at a split: the first, a retry, or a twin."""
        self.attempts.append(Attempt(self.world, self, self.execution, split, self.rows[split :: self._splits]))

    def restart(self) -> None:
        """Restarts the failed query as a new run. Now and then the last commits file is lost, so it repeats a version."""
        self.run_id = self.world.new_name("r")
        self.written = 0
        if self.has_committed and self.version > self.versions[0] and self.world.rng.random() < 0.3:
            self.version -= 1
        self.begin()

    def give_up(self) -> None:
        """Aborts the members that it knows, and restarts the query."""
        members = [report for attempt in self.reports.values() if (report := attempt.report())]
        known = members if self.world.rng.random() < 0.7 else members[:1]
        self.world.send(Call(self, self._decision(known, TRANSACTION_DECISION_ABORT)))
        self.restart()

    def attempt_finished(self, attempt: Attempt) -> None:
        """A task reports. Of twins, the first one counts."""
        if attempt.execution is not self.execution or self.is_over or attempt.split in self.reports:
            return
        self.reports[attempt.split] = attempt
        if len(self.reports) == self._splits:
            self._commit()

    def attempt_failed(self, attempt: Attempt, error: WireError) -> None:
        """Retries a task unless the error is final."""
        if attempt.execution is not self.execution or self.is_over:
            return
        if isinstance(error, ProducerFencedError | TxnConflictError):
            self._end(error)
        elif attempt.split not in self.reports:
            self.launch(attempt.split)

    def _decision(self, members: list[TransactionMember], decision: TransactionDecision) -> EndTransactionRequest:
        partitions = {tp for attempt in self.reports.values() for tp in attempt.partitions}
        return EndTransactionRequest(
            transactional_id=self.name,
            decision=decision,
            members=members,
            partitions=[TransactionPartition(**tp._asdict()) for tp in sorted(partitions)],
            totals=totals_of(self.rows),
            any_skipped=any(attempt.is_skipped for attempt in self.reports.values()),
            **self.execution._asdict(),
        )

    def _commit(self) -> None:
        members = [report for attempt in self.reports.values() if (report := attempt.report())]
        self.ask(self._decision(members, TRANSACTION_DECISION_COMMIT))

    def on_answer(self, request: Request, answer: object) -> None:
        if isinstance(answer, Done):
            self.has_committed = True
            self.world.told_committed(self)
            self.written += 1
            if self.written < self.writes:
                self.world.between_writes()
                self.begin()
            elif self.version + 1 in self.versions:
                self.version += 1
                self.written = 0
                self.begin()
            else:
                self.is_over = True
        elif isinstance(answer, ProducerFencedError | ReplayMismatchError | TxnConflictError):
            self._end(answer)
        elif isinstance(answer, TxnAbortedError):
            self.restart()
        else:
            raise AssertionError(f"a driver is answered with {answer!r}")

    def _end(self, error: WireError) -> None:
        if self.writes > 1 and isinstance(error, TxnConflictError) and not self.world.is_calm and self.world.rng.random() < 0.7:
            self.restart()  # the error was lost
            return
        self.is_over = True
        self.outcome = type(error)


class Versions(NamedTuple):
    """The versions of each transactional id and their row counts."""

    numbers: range
    counts: Mapping[tuple[str, int], int]

    def rows(self, name: str, variant: int, version: int) -> tuple[int, ...]:
        """The rows of a version. Input variant 1 lacks the last row, variant 2 has a different last row."""
        base = (int(name) * 10 + version) * 100
        rows = [base + number for number in range(self.counts[name, version])]
        if variant and rows:
            rows.pop()
            rows += [base + 50] if variant == 2 else []
        return tuple(rows)


def drivers_of(world: World, name: str, versions: range) -> tuple[str, list[Driver]]:
    """The drivers of a transactional id, and the name of their scenario: one query; two on one checkpoint, on a copy of it or on a
    newer one; or two writes of one run, at once or in sequence."""
    rng = world.rng
    kind = rng.choice(("one", "two", "two", "copy", "writes", "second", "ahead"))
    drivers = [Driver(world, name, 0, world.new_name("r"), versions, 2 if kind == "second" else 1)]
    if kind == "two":
        drivers.append(Driver(world, name, 0, world.new_name("r"), versions))
    elif kind == "second" and rng.random() < 0.5:
        drivers.append(Driver(world, name, 0, world.new_name("r"), versions, 2))
    elif kind == "copy":
        drivers.append(Driver(world, name, random_variant(rng), world.new_name("r"), versions))
    elif kind == "ahead":
        drivers.append(Driver(world, name, 0, world.new_name("r"), versions[1:]))
    elif kind == "writes":
        drivers.append(Driver(world, name, rng.choice((0, 2)), drivers[-1].run_id, versions))
    return kind, drivers


def is_sign(request: Request, answer: object) -> bool:
    """True if the answer shows that the broker took the request as a sign of life."""
    if isinstance(answer, InvalidTxnStateError):
        return False
    return isinstance(answer, MemberOpened) or (isinstance(request, Batch | HeartbeatRequest) and isinstance(answer, Done))


def is_commit(request: Request) -> TypeGuard[EndTransactionRequest]:
    """True for a driver's COMMIT."""
    return isinstance(request, EndTransactionRequest) and request.decision == TRANSACTION_DECISION_COMMIT


def is_abort(request: Request) -> TypeGuard[EndTransactionRequest]:
    """True for a driver's ABORT."""
    return isinstance(request, EndTransactionRequest) and request.decision == TRANSACTION_DECISION_ABORT


def random_variant(rng: random.Random) -> int:
    """Mostly variant 0, the same input."""
    return rng.choice((0, 0, 0, 1, 2))
