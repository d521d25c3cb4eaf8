"""Offsets committed in transactions, in random schedules: the real Groups and Transactions over a log in memory. The log becomes
durable at random times and loses undurable batches in a crash. Programs read a group's offsets, pause, and commit from there, on
the same or other transactional ids. Meanwhile offsets are set and groups deleted without transactions.

A group's history is the ordered list of decisions about it. Checked:

- Each transaction starts from the offsets that the history gives at its decision.
- An answer includes everything decided before the request came, and nothing that a crash undoes.
- A crash leaves a prefix of the history that includes everything answered, and the group's offsets are those of that prefix."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from brokerd.config.broker import BrokerConfig
from brokerd.coordinator.group_table import NO_OFFSET, partition_of
from brokerd.coordinator.records import decode, is_of_group
from brokerd.coordinator.transaction_coordinator import StateWriter
from brokerd.coordinator.transactional_id import Held
from brokerd.datadir.node_state import DecidedMembers
from brokerd.datadir.topic_store import Topic
from brokerd.errors import StorageError, TxnAbortedError, UnknownGroupError, UnknownTopicIdError, WireError
from brokerd.ids import PRODUCER_NUMBERS, TopicIdPartition
from brokerd.server.coordinator.groups import AskedOffsets, Groups
from brokerd.server.coordinator.leaders import Frozen, OpenMembers
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset, CoordinatorRecord
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, TransactionTotals
from tests.support.clock import ManualClock
from tests.support.group_offsets import committed
from tests.support.loop import one_turn

ANN = "ann"
GROUPS = ("g", "h")
IDS = ("one", "two", "three")
STEPS = 60
_TURNS_MAX = 4_000
_YEAR_MS = 365 * 86_400_000
Offsets = dict[TopicIdPartition, CommittedOffset]


class BrokenPromiseError(AssertionError):
    """A promise is broken."""


class Decided(NamedTuple):
    """A decision about a group: its batch number and its record."""

    place: int
    entry: CoordinatorRecord


class Log:
    """The coordinator's log as a list of batches. `start` and `durable_end` are batch numbers."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.batches: list[Sequence[bytes]] = []
        self.start = 0
        self.leader_epoch = 1
        self.durable_end = 0
        self.late: list[CoordinatorRecord] = []
        self._flushed = asyncio.Event()

    def flush(self, end: int) -> None:
        self.durable_end = end
        self._flushed.set()
        self._flushed = asyncio.Event()

    def crash(self, rng: random.Random) -> None:
        del self.batches[rng.randint(self.durable_end, len(self.batches)) :]
        self.durable_end = len(self.batches)
        self.late = []

    # Interface of CoordinatorLog

    settled = CoordinatorLog.settled

    def check_not_cut_off(self) -> None:
        pass

    async def make(self) -> None:
        await one_turn()

    async def durable(self) -> None:
        end = len(self.batches)
        while self.durable_end < end:
            await self._flushed.wait()

    async def confirmed(self) -> None:
        await self.durable()

    def append(self, records: Sequence[CoordinatorRecord]) -> None:
        if self.sim.refuses("log"):
            raise StorageError("no space")
        batch = (*self.late, *records)
        self.batches.append([record.SerializeToString() for record in batch])
        self.late = []
        self.sim.recorded(batch)

    def append_late(self, entry: CoordinatorRecord) -> None:
        self.late.append(entry)

    def append_rest(self) -> None:
        if self.late:
            self.append(())

    def read(self) -> Iterator[CoordinatorRecord]:
        return (decode(data) for batch in self.batches[self.start :] for data in batch)

    def has_grown(self) -> bool:
        return bool(self.batches)

    @property
    def start_offset(self) -> int:
        return self.start

    async def compact(self, pieces: Iterator[Sequence[CoordinatorRecord]]) -> None:
        self.append_rest()
        begin = len(self.batches)
        for piece in pieces:
            self.batches.append([record.SerializeToString() for record in piece])
            await one_turn()
        await self.durable()
        self.start = begin


class AllLeaders:
    """All partition leaders, reduced to the fact that they may refuse a marker."""

    producer_ids: Sequence[int] = ()

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    async def freeze(self, *_: object) -> Frozen:
        return Frozen(Held({}), [])

    async def write_markers(self, *_: object) -> None:
        await one_turn()
        if self._sim.refuses("markers"):
            raise StorageError("no space")

    async def abort(self, *_: object) -> None:
        await self.write_markers()

    async def release(self, *_: object) -> None:
        pass

    async def open_members(self) -> OpenMembers:
        return OpenMembers(set(), others=False)


class Simulation:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.facts: Counter[str] = Counter()
        self.log = Log(self)
        self.topics = [bytes([number]) * 16 for number in range(2)]
        self.gone: set[bytes] = set()
        self.history: dict[str, list[Decided]] = {name: [] for name in GROUPS}
        self.told: dict[str, int] = dict.fromkeys(GROUPS, 0)  # length of the prefix of the history that answers have revealed
        self.failing: frozenset[str] = frozenset()
        self.tasks: set[asyncio.Task[None]] = set()
        self.asked: dict[str, tuple[EndTransactionRequest, AskedOffsets]] = {}  # all commit requests, by execution id
        self.compacting: set[Transactions] = set()
        self.tag = 0
        self.stamps = itertools.count(_YEAR_MS, _YEAR_MS)  # a year apart, so that each renewal is recorded

    # --- the broker

    def new_broker(self) -> None:
        time: Any = SimpleNamespace(stamp_ms=lambda: (next(self.stamps), 0))
        topics: Any = self
        log: Any = self.log
        leaders: Any = AllLeaders(self)
        partitions: Any = SimpleNamespace(highest_producer_number=lambda: -1)
        ids = ProducerIds(log, partitions, mock.AsyncMock(return_value=(0, PRODUCER_NUMBERS)))
        self.groups = Groups(BrokerConfig(), log, topics, time)
        self.transactions = Transactions(
            BrokerConfig(), log, leaders, self.groups, ids, self.clock, decided_members=DecidedMembers()
        )

    def by_id(self, topic_id: bytes) -> Topic:
        """Interface of TopicStore."""
        if topic_id in self.gone:
            raise UnknownTopicIdError("gone")
        return Topic("t", topic_id, 1, {})

    def refuses(self, name: str) -> bool:
        return name in self.failing and self.rng.random() < 0.5

    def recorded(self, batch: Sequence[CoordinatorRecord]) -> None:
        """Records were appended as one batch: at most one decision about a group, perhaps with a transaction."""
        place = len(self.log.batches) - 1
        prepared = [record.commit_prepared for record in batch if record.HasField("commit_prepared")]
        for entry in filter(is_of_group, batch):
            if prepared:
                self.facts["decided"] += 1
                self.check_begun(entry.group_id, self.asked[prepared[0].execution_id][1])
            self.history[entry.group_id].append(Decided(place, entry))

    def check_begun(self, group: str, asked: AskedOffsets) -> None:
        """Checks that a transaction is decided at the offsets where it began."""
        before = self.fold(group)
        for tp, expected in asked.expected.items():
            found = before[tp].offset if tp in before else NO_OFFSET
            if found != expected:
                raise BrokenPromiseError(f"{group}: a transaction that began at {expected} is decided on at {found}")

    def fold(self, group: str, count: int | None = None) -> Offsets:
        """The group's offsets after `count` decisions; None: after all."""
        offsets: Offsets = {}
        for one in self.history[group][:count]:
            if one.entry.HasField("offsets_committed"):
                offsets.update({partition_of(offset): offset for offset in one.entry.offsets_committed.offsets})
            elif one.entry.HasField("offsets_deleted"):
                for tp in one.entry.offsets_deleted.partitions:
                    offsets.pop(TopicIdPartition(tp.topic_id, tp.partition), None)
            else:
                offsets.clear()
        return {tp: one for tp, one in offsets.items() if tp.topic_id not in self.gone}

    # --- requests

    async def think(self) -> None:
        for _ in range(self.rng.choice((0, 0, 1, 3, 10, 40))):
            await one_turn()

    async def fetch(self, group: str) -> Offsets:
        """Fetches the group's offsets, which must be those of some moment since the call."""
        known = len(self.history[group])
        gone = len(self.gone)
        self.facts["waited"] += self.log.durable_end < len(self.log.batches)
        async with self.groups.settled() as table:
            held = table.groups.get(group)
            found = {tp: one for tp in held.partitions() if (one := held.offset(tp)) is not None} if held is not None else {}
        if len(self.gone) != gone:
            return self.fold(group)
        states = range(known, len(self.history[group]) + 1)
        seen = next((count for count in states if self.fold(group, count) == found), None)
        if seen is None:
            raise BrokenPromiseError(f"{group}: told of {found}, but decided was {self.fold(group, known)} when it was asked")
        self.told[group] = max(self.told[group], seen)
        return found

    def tagged(self, offsets: Mapping[TopicIdPartition, int]) -> Offsets:
        """Tags the offsets, so that no two decisions are equal."""
        self.tag += 1
        return {tp: committed(tp, offset, metadata=str(self.tag)) for tp, offset in offsets.items()}

    def partitions(self) -> list[TopicIdPartition]:
        tps = [TopicIdPartition(topic_id, number) for topic_id in self.topics for number in range(2)]
        return self.rng.sample(tps, self.rng.randint(1, len(tps)))

    def answered(self, group: str, entry_is: Any) -> None:
        """A decision's request was answered: the decision must be in the history, and stays there."""
        places = [place for place, one in enumerate(self.history[group], 1) if entry_is(one.entry)]
        if not places:
            raise BrokenPromiseError(f"{group}: what is answered is not decided")
        self.told[group] = max(self.told[group], places[0])  # a renewal repeats the offsets

    async def program(self) -> None:
        """One cycle of a consume-process-produce program."""
        group, name = self.rng.choice(GROUPS), self.rng.choice(IDS)
        tps = self.partitions()
        found = await self.fetch(group)
        expected = {tp: found[tp].offset if tp in found else NO_OFFSET for tp in tps}
        offsets = self.tagged({tp: max(0, offset) + self.rng.randint(1, 3) for tp, offset in expected.items()})
        tag = self.tag
        await self.think()
        state = self.transactions.coordinator.states.get(name)
        version = state.last_version + 1 if state is not None else 0
        await self.think()

        def checked() -> Collection[CommittedOffset]:
            if any(tp.topic_id in self.gone for tp in offsets):
                raise TxnAbortedError("its topic is deleted")
            return offsets.values()

        request = EndTransactionRequest(
            transactional_id=name,
            txn_version=version,
            execution_id=f"e{tag}",
            run_id=f"e{tag}",
            totals=TransactionTotals(rows=tag),
        )
        self.asked[request.execution_id] = (request, AskedOffsets(group, ANN, checked, expected))
        await self.ask(request.execution_id)

    async def ask(self, execution_id: str) -> None:
        """Requests a commit, perhaps again."""
        request, asked = self.asked[execution_id]
        try:
            await self.transactions.commit(ANN, request, asked)
        except WireError as error:
            self.facts["trouble" if error.retriable else "refused"] += 1
            if isinstance(error, UnknownGroupError):
                self.facts["lost"] += 1
            return
        self.facts["committed"] += 1
        tag = str(request.totals.rows)
        self.answered(
            asked.group_id,
            lambda entry: tag in {one.metadata for one in entry.offsets_committed.offsets},
        )

    async def plain(self) -> None:
        """Sets or renews offsets, or deletes some or the whole group, without a transaction."""
        group = self.rng.choice(GROUPS)
        offsets = self.tagged({tp: self.rng.randrange(9) for tp in self.partitions() if tp.topic_id not in self.gone})
        tag = str(self.tag)
        choice = self.rng.randrange(8)
        if choice > 4:
            await self.groups.renew(group)
            self.facts["renewed"] += 1
        elif choice == 0:
            await self.groups.delete(group)
        elif choice == 1:
            await self.groups.delete_offsets(group, offsets)
        elif offsets:
            await self.groups.commit(group, ANN, offsets.values())
            if not any(tp.topic_id in self.gone for tp in offsets):
                self.answered(
                    group,
                    lambda entry: tag in {one.metadata for one in entry.offsets_committed.offsets},
                )

    # --- events

    def begin(self, work: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> None:
        async def carried_out() -> None:
            with contextlib.suppress(WireError):
                await work(*arguments)

        task = asyncio.create_task(carried_out())
        self.tasks.add(task)

    async def compact(self, transactions: Transactions) -> None:
        """Compacts, unless a compaction is under way."""
        if transactions in self.compacting:
            return
        self.compacting.add(transactions)
        await transactions.compact()
        self.compacting.remove(transactions)
        self.facts["compacted"] += 1

    def settle_tasks(self) -> None:
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.discard(task)
            if not task.cancelled():
                task.result()

    def flush(self, *, all_of_it: bool = False) -> None:
        log = self.log
        log.flush(len(log.batches) if all_of_it else self.rng.randint(log.durable_end, len(log.batches)))

    def delete_topic(self) -> None:
        place = self.rng.randrange(len(self.topics))
        self.gone.add(self.topics[place])
        self.groups.table.forget_topic(self.topics[place])
        self.topics[place] = self.rng.randbytes(16)
        self.facts["deleted"] += 1

    async def crash(self) -> None:
        await self.end_tasks()
        self.log.crash(self.rng)
        for group, decided in self.history.items():
            left = [one for one in decided if one.place < len(self.log.batches)]
            if len(left) < self.told[group]:
                raise BrokenPromiseError(f"{group}: somebody was told of what a crash took back")
            self.history[group] = left
        self.facts["crashed"] += 1
        await self.start()

    async def end_tasks(self) -> None:
        await self.cancel_tasks()
        for task in self.tasks:
            if not task.cancelled():
                task.result()
        self.tasks.clear()

    async def cancel_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, *self.tasks, return_exceptions=True)

    async def start(self) -> None:
        """Starts the broker, perhaps with a crash during the start."""
        self.new_broker()
        starting = asyncio.create_task(self.begin_transactions())
        self.tasks.add(starting)
        for _ in range(_TURNS_MAX):
            await one_turn()
            if starting.done():
                break
            self.flush()
            if self.rng.random() < 0.01:
                self.facts["crashed in its start"] += 1
                await self.crash()
                return
        self.settle_tasks()
        if not starting.done():
            raise BrokenPromiseError("the start does not end")

    async def begin_transactions(self) -> None:
        """Starts as CoordinatorHost.start does."""
        await self.transactions.load()
        await self.transactions.sweep()

    async def check_all(self) -> None:
        """Completes everything, then checks that the groups' offsets are those of their histories."""
        self.failing = frozenset()
        self.clock.advance(600_000)
        self.begin(self.transactions.sweep)
        for _ in range(_TURNS_MAX):
            self.flush(all_of_it=True)
            await one_turn()
            self.settle_tasks()
            if not self.tasks:
                break
        if self.tasks:
            raise BrokenPromiseError("requests have no answer")
        self.flush(all_of_it=True)  # also the completion of a commit, which no request waits for
        for group in GROUPS:
            await asyncio.wait_for(self.fetch(group), 1)

    async def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        if choice < 0.35:
            self.begin(self.program)
        elif choice < 0.45:
            self.begin(self.plain)
        elif choice < 0.5 and self.asked:
            self.begin(self.ask, rng.choice(list(self.asked)))
        elif choice < 0.75:
            self.flush()
        elif choice < 0.79:
            await self.crash()
        elif choice < 0.83:
            self.failing = frozenset(rng.sample(("log", "markers"), rng.randrange(3)))
        elif choice < 0.87:
            self.begin(self.compact, self.transactions)
        elif choice < 0.9:
            self.begin(self.fetch, rng.choice(GROUPS))
        elif choice < 0.92:
            self.delete_topic()
        elif choice < 0.94:
            await self.check_all()
        for _ in range(rng.choice((0, 1, 2, 6, 30))):
            await one_turn()
        self.settle_tasks()

    async def run(self) -> Counter[str]:
        try:
            await self.start()
            for _ in range(STEPS):
                await self.step()
            await self.check_all()
            await self.crash()
            await self.check_all()
        finally:
            await self.cancel_tasks()
        return self.facts


def run_seed(seed: int) -> Counter[str]:
    """Runs one schedule. Raises BrokenPromiseError, or an error of the code."""

    async def at_once(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    with (
        mock.patch.object(asyncio, "to_thread", at_once),
        mock.patch.object(StateWriter, "pieces", functools.partialmethod(StateWriter.pieces, 1)),
    ):
        return asyncio.run(Simulation(seed).run())
