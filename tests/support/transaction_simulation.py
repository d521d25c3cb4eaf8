"""Transactions on one node, in seeded schedules: `Simulation(seed).run()` raises AssertionError if a promise is broken.
replicated_transactions.py covers several nodes.

Checked: transaction_promises.py at every step, and that everything completes once all faults are over.

Simulated: drivers with tasks, twins and leftover attempts, on one or two transactional ids and up to three partitions; a network
that delays, repeats and loses messages; random flushes, crashes that cut each log anywhere, failing markers, expiry, sweeps,
compactions of the coordinator's log, deleted topics. The broker is that of simulated_transactions.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from brokerd.coordinator.records import Event
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator.transactions import MAX_MS
from brokerd.wire.v1 import control_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, MembersAborted, VersionRepeated
from tests.support.clock import ManualClock
from tests.support.simulated_loop import SimulatedLoop
from tests.support.simulated_transactions import Disk, SimulatedBroker, Witness, simulated
from tests.support.transaction_actors import TIMEOUT_MS, Actor, Call, Driver, Versions, drivers_of, is_abort
from tests.support.transaction_bench import partition as partition_name
from tests.support.transaction_partition import SimulatedPartition, check_is_readable
from tests.support.transaction_promises import Promises

_STEPS = (80, 240)
_ROUNDS_MAX = 20
_TURNS_MAX = 2_000
_PATIENT_TURNS = 500
_VERSIONS = range(2)
_STATE_TURNS = 100


class Process(NamedTuple):
    """A request being handled (`call`), or background work."""

    task: asyncio.Task[object]
    call: Call | None
    started_ms: int


class Simulation:
    """See the module."""

    node_count = 1

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.trace = trace
        self.clock = ManualClock()
        self.loop = SimulatedLoop()
        self.facts: dict[str, int] = {}
        self.disk = Disk()
        self.deleted: list[SimulatedPartition] = []
        self.network: list[Call] = []
        self.late: list[Call] = []  # delayed for long
        self.answers: list[tuple[Call, object]] = []
        self.processes: list[Process] = []
        self.is_calm = False
        self._crash_in = 0  # steps until a crash; below 1: none is planned
        self._names = 0
        self._fails_markers = False  # certainly, after the next start
        self.promises = Promises(self)
        for number in range(rng.choice((1, 2, 3, 3))):
            self._create(partition_name(number, "t"))
        self._topics = 1
        counts = {(name, version): rng.choice((0, 2, 3, 4, 5)) for name in "12" for version in _VERSIONS}
        self.versions = Versions(_VERSIONS, counts)
        self.names = ["1"] if rng.random() < 0.7 else ["1", "2"]
        self.drivers: list[Driver] = []
        self.has_rash = (
            rng.random() < 0.2
        )  # tasks that report unacknowledged rows; then no topic is deleted, as counts would be less conclusive
        self.rash_ids: set[int] = set()  # producer ids of such tasks

    @property
    def now_ms(self) -> int:
        """The monotonic clock."""
        return self.clock.monotonic_ms()

    @property
    def told_committed(self) -> Callable[[Driver], None]:
        """See Promises."""
        return self.promises.told_committed

    def _add_drivers(self, name: str) -> None:
        kind, drivers = drivers_of(self, name, _VERSIONS)
        self._count(f"scenario: {kind}")
        self.drivers += drivers

    def run(self) -> dict[str, int]:
        """Runs the schedule to its end; returns how often each event occurred."""
        with simulated(self.loop, self.rng):
            try:
                self._run()
            finally:
                self.loop.cancel_all()
                self.loop.close()
        return self.facts

    def _run(self) -> None:
        self._start()
        for name in self.names:
            self._add_drivers(name)
        actions = {**self._progress(), **self._faults()}
        names, weights = list(actions), [weight for weight, _ in actions.values()]
        for name in self.rng.choices(names, weights, k=self.rng.randint(*_STEPS)):
            actions[name][1]()
            self._crash_in -= 1
            if self._crash_in == 0:
                self._crash()
            if self.broker.is_serving:
                self.promises.check_readers()
        self._calm_down()

    def _progress(self) -> dict[str, tuple[int, Callable[[], None]]]:
        return {
            "deliver": (30, lambda: self._some(self._deliver)),
            "go on": (30, lambda: self._some(self._go_on)),
            "answer": (30, lambda: self._some(self._answer)),
            "flush log": (self.rng.choice((6, 12, 24)), self._flush_log),
            "flush": (self.rng.choice((3, 8, 24)), self._flush),
            "ask again": (4, self._ask_again),
            "late": (2, self._arrive_late),
        }

    def _some(self, action: Callable[[], object]) -> None:
        """Repeats an action one to six times."""
        for _ in range(self.rng.choice((1, 1, 3, 6))):
            action()

    def _faults(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Each schedule has some of the faults, some with a high weight, so that each fault is frequent in some schedules."""
        faults: dict[str, Callable[[], None]] = {
            "twin": self._twin,
            "heartbeat": self._beat,
            "give up": self._give_up,
            "kill driver": self._kill_driver,
            "time": self._pass_time,
            "sweep": self._sweep,
            "state": self._state,
            "markers fail": self._fail_markers,
            "crash": self._crash,
            "unlucky": self._crash_between_markers,
            "delete": self._delete,
            "read again": self._read_again,
        }
        return {name: (self.rng.choice((0, 0, 1, 4)), fault) for name, fault in faults.items()}

    def _count(self, fact: str) -> None:
        self.facts[fact] = self.facts.get(fact, 0) + 1
        if self.trace is not None:
            self.trace.append(fact)

    def new_name(self, prefix: str) -> str:
        """A new unique name."""
        self._names += 1
        return f"{prefix}{self._names}"

    # --- the network

    def send(self, call: Call) -> None:
        """Sends a request; now and then it is delayed for long."""
        (self.late if not self.is_calm and self.rng.random() < 0.1 else self.network).append(call)

    def _arrive_late(self) -> None:
        if self.late:
            self.network.append(self.late.pop(self.rng.randrange(len(self.late))))

    def _deliver(self) -> None:
        """Delivers a request to the broker, in any order. It may be delivered twice or never."""
        if not self.network:
            return
        at = self.rng.randrange(len(self.network))
        call = self.network[at] if not self.is_calm and self.rng.random() < 0.12 else self.network.pop(at)
        if not self.broker.is_serving or (not self.is_calm and self.rng.random() < 0.03):
            return
        if is_abort(call.request):
            self.promises.asked_to_abort.update(member.producer_id for member in call.request.members)
        self._begin(self.broker.handle(call.request), call)

    def _begin(self, work: Coroutine[Any, Any, object], call: Call | None = None) -> None:
        self.processes.append(Process(self.loop.begin(work), call, self.now_ms))
        self._collect()

    def _go_on(self) -> bool:
        has_gone_on = self.loop.go_on(self.rng)
        self._collect()
        return has_gone_on

    def _collect(self) -> None:
        """Collects the answers of completed requests."""
        for process in [process for process in self.processes if process.task.done()]:
            self.processes.remove(process)
            answer = process.task.result()
            if process.call is not None:
                self._told(process.call, answer, process.started_ms)

    def _told(self, call: Call, answer: object, started_ms: int) -> None:
        name = "Abort" if is_abort(call.request) else type(call.request).__name__
        self._count(f"{name}: {type(answer).__name__}")
        self.promises.told(call.request, answer, started_ms)
        if self.is_calm or self.rng.random() < 0.93:
            self.answers.append((call, answer))

    def _answer(self) -> None:
        if self.answers:
            call, answer = self.answers.pop(self.rng.randrange(len(self.answers)))
            call.actor.answered(call, answer)

    def rows(self, name: str, variant: int, version: int) -> tuple[int, ...]:
        """See Versions."""
        return self.versions.rows(name, variant, version)

    def _ask_again(self) -> None:
        waiting = self._waiting()
        if waiting:
            call = self.rng.choice(waiting).call
            assert call is not None
            self.send(call)

    def _waiting(self) -> list[Actor]:
        actors: list[Actor] = [*self.drivers, *(attempt for driver in self.drivers for attempt in driver.attempts)]
        return [actor for actor in actors if actor.call is not None]

    # --- clients

    def _running(self) -> list[Driver]:
        return [driver for driver in self.drivers if not driver.is_over]

    def _twin(self) -> None:
        running = self._running()
        if running:
            driver = self.rng.choice(running)
            self._count("twin")
            driver.launch(self.rng.choice(driver.attempts).split)

    def _beat(self) -> None:
        attempts = [attempt for driver in self.drivers for attempt in driver.attempts if attempt.producer_id >= 0]
        if attempts:
            self.rng.choice(attempts).beat()

    def _give_up(self) -> None:
        drivers = [driver for driver in self._running() if driver.reports]
        if drivers:
            self._count("driver gave up")
            self.rng.choice(drivers).give_up()

    def _kill_driver(self) -> None:
        """A driver dies at any point. Mostly it is restarted, even after its end."""
        driver = self.rng.choice(self.drivers)
        if driver.outcome is not None:
            return
        driver.is_over = self.rng.random() < 0.2
        driver.call = None
        self._count("driver gone" if driver.is_over else "driver killed")
        if not driver.is_over:
            driver.restart()

    # --- the broker

    def _start(self) -> None:
        witness = Witness(self._recorded, self._marked)
        self.broker = SimulatedBroker(self.loop, self.disk, self.rng, self.clock, witness)
        self.broker.fails_markers = not self.is_calm and (self._fails_markers or self.rng.random() < 0.3)
        self._fails_markers = False
        self._begin(self.broker.start())

    def _recorded(self, name: str, event: Event) -> None:
        self.promises.recorded(name, event)
        if isinstance(event, CommitPrepared):
            if self.rng.random() < 0.4:
                self._state()
            self._count("prepared, with losers" if event.aborted_producer_ids else "prepared")
        elif isinstance(event, MembersAborted):
            self._count("aborted")
        elif isinstance(event, VersionRepeated):
            self._count("repeated")

    def _marked(self, record: control_pb2.ControlRecord) -> None:
        self.promises.marked(record)
        if record.committed_producer_ids and self.rng.random() < 0.3:
            self._crash_in = self.rng.randint(1, 6)  # with some of the markers durable, or none

    def _flush_log(self) -> None:
        self.broker.flush_log()

    def _flush(self) -> None:
        if self.disk.partitions:
            self.rng.choice(list(self.disk.partitions.values())).flush_step()

    def _pass_time(self) -> None:
        self.clock.advance(self.rng.choice((TIMEOUT_MS // 3, TIMEOUT_MS, TIMEOUT_MS)))
        if self.rng.random() < 0.5:
            self._sweep()

    def _sweep(self) -> None:
        if self.broker.is_serving:
            self._begin(self.broker.sweep())

    def _state(self) -> None:
        if self.broker.is_serving:
            self._count("state")
            self.promises.has_state = True
            self._begin(self.broker.write_state())

    def _fail_markers(self) -> None:
        self.broker.fails_markers = self.rng.random() < 0.7

    def _crash(self) -> None:
        """Crashes the broker, perhaps during its recovery."""
        self._count("crash" if self.broker.is_serving else "crash in a recovery")
        self.processes.clear()
        self.loop.cancel_all()
        self.answers = [(call, answer) for call, answer in self.answers if self.rng.random() < 0.5]
        if self.rng.random() < 0.3:
            self.disk.durable = len(self.disk.log)
        self.disk.crash(self.rng)
        self.promises.crashed()
        for partition in self.disk.partitions.values():
            assert partition.core.ends.log_end_offset >= (partition.seen[-1].offset + 1 if partition.seen else 0)
        self._start()
        if self.rng.random() < 0.2:
            self._crash()

    def _crash_between_markers(self) -> None:
        """A crash leaves a commit's marker in one partition and loses another's. After the restart, markers fail at first."""
        if not self.broker.is_serving or not self.broker.coordinator.prepared():
            return
        for _ in range(self.rng.choice((0, 3, 12))):
            self.disk.durable = len(self.disk.log)
            self._go_on()
        self.rng.choice(self.broker.of_clients()).flush()
        self._count("crash between markers")
        self._fails_markers = True
        self._crash()

    def between_writes(self) -> None:
        """Between two writes of one run: restarts the broker, at times with a compacted log."""
        if not self.broker.is_serving or self.rng.random() < 0.2:
            return
        if self.rng.random() < 0.7:
            self._state()
            for _ in range(_STATE_TURNS):
                self.disk.durable = len(self.disk.log)
                if self.broker.is_idle("state"):
                    break
                self._go_on()
        self.disk.durable = len(self.disk.log)
        self._crash()

    def _create(self, tp: TopicIdPartition) -> None:
        self.disk.partitions[tp] = SimulatedPartition(tp)

    def writable(self) -> list[TopicIdPartition]:
        """The existing partitions."""
        return sorted(self.disk.partitions)

    def _delete(self) -> None:
        """Deletes a topic and creates another one."""
        if self.has_rash:
            return
        tp = self.rng.choice(self.writable())
        self.deleted.append(self.broker.delete(tp))
        self._topics += 1
        self._create(partition_name(0, f"t{self._topics}"))
        self._count("deleted")

    def _read_again(self) -> None:
        if self.broker.is_serving:
            for partition in self.disk.partitions.values():
                partition.read()
                check_is_readable(partition)

    # --- the end

    def _calm_down(self) -> None:
        """Ends all faults. Drivers finish, then all members."""
        self.is_calm = True
        self.network += self.late
        self.broker.fails_markers = False
        for _ in range(_ROUNDS_MAX):
            self._round()
            if not self._running():
                break
        assert not self._running(), "drivers go on for ever"
        for _ in range(4):
            self.clock.advance(MAX_MS)  # enough for a retrying sweep and every expiry
            self._round()
            self._sweep()
            self._round()
        self.network.clear()
        self.promises.check_quiet()

    def _round(self) -> None:
        """Runs everything that takes no time. Time advances only while a commit stays prepared: a sweep may have to retry it, and
        nodes keep asking which records it holds back."""
        for actor in self._waiting():
            if actor.call is not None and actor.call not in self.network:
                self.send(actor.call)
        for turn in range(1, _TURNS_MAX):
            if turn % _PATIENT_TURNS == 0 and self.broker.coordinator.prepared():
                self.clock.advance(MAX_MS)
                self._sweep()
            for _ in range(len(self.network)):
                self._deliver()
            has_gone_on = self._go_on()
            self._answer()
            for partition in self.disk.partitions.values():
                partition.flush()
            self.disk.durable = len(self.disk.log)
            if self.broker.is_serving:
                self.promises.check_readers()
            if not (self.network or self.answers or has_gone_on or self.loop.is_waiting_for_turn):
                return
        raise AssertionError("requests never come to an end")


def run_seed(seed: int) -> dict[str, int]:
    """Runs one schedule."""
    return Simulation(seed).run()
