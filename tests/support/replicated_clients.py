"""The clients of a replicated cluster with transactions: drivers and their tasks (transaction_actors.py), and how their requests
travel. Each client finds leaders and the coordinator through any node, and repeats a request after a retriable error or a time-out.
When a driver dies, its tasks run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.errors import WireError
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import Attributes
from tests.support.build import arrow_batch
from tests.support.clock import START_WALL_MS
from tests.support.replicated_groups import GroupClient
from tests.support.replicated_nodes import Sent, TransactionalProcess
from tests.support.replication_clients import Client
from tests.support.replication_nodes import Process
from tests.support.replication_promises import identity
from tests.support.simulated_transactions import Batch
from tests.support.transaction_actors import Actor, Call, Driver, Versions, drivers_of, is_abort

if TYPE_CHECKING:
    from tests.support.replicated_transactions import Simulation

_VERSIONS = range(8)
_TIMEOUT_MS = 500
_BEAT_MS = (100, 500)


class _Asked:
    """A request under way: its metadata and the number of attempts."""

    def __init__(self, call: Call, metadata: Client) -> None:
        self.call, self.metadata = call, metadata
        self.tries = 0

    @property
    def is_wanted(self) -> bool:
        """True while its client waits for the answer."""
        return not self.call.is_answered and self.call.actor.call is self.call


class Clients:
    """All clients. Implements World for the actors (transaction_actors.py) and for their answers (transaction_promises.py)."""

    node_count = 3  # more than one, which is all that matters

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.rng = sim, sim.rng
        self.sent: dict[tuple[TopicIdPartition, int, int], tuple[int, ...]] = {}  # rows, by producer id and sequence
        self.rash_ids: set[int] = set()
        self.drivers: list[Driver] = []
        self._batches: dict[Batch, RecordBatch] = {}
        self._metadata: dict[tuple[Actor, TopicIdPartition], Client] = {}
        self._names = 0
        self.has_rash = self.rng.random() < 0.5
        self._refresh_chance = self.rng.choice((0.05, 0.3))
        counts = {(name, version): self.rng.choice((0, 2, 3, 4, 5)) for name in "12" for version in _VERSIONS}
        self._versions = Versions(_VERSIONS, counts)

    def start(self) -> None:
        """Starts the groups at once, and the drivers perhaps after a quiet while."""
        for commits in (True, False, False):
            GroupClient(self, self.sim.rows_tps[0], commits=commits).step()
        self.sim.every(self._beat, _BEAT_MS)
        if self.rng.random() < 0.7:
            self._start_drivers()
            return
        at_ms = self.rng.randint(500, 4_000)
        self.sim.after(at_ms, self._start_drivers)
        if self.rng.random() < 0.5:  # an idle coordinator does not notice that it was replaced
            self.sim.after(at_ms - self.rng.randint(0, 500), self.sim.depose)

    def _start_drivers(self) -> None:
        if not self.is_calm:
            for name in self.rng.choice(("1", "1", "12")):
                kind, drivers = drivers_of(self, name, _VERSIONS)
                self.sim.count(f"scenario: {kind}")
                self.drivers += drivers

    def calm_down(self) -> None:
        """The drivers finish with their current versions."""
        for driver in self.drivers:
            driver.versions = range(driver.versions[0], driver.version + 1)

    def running(self) -> list[Driver]:
        """The unfinished drivers."""
        return [driver for driver in self.drivers if not driver.is_over]

    def all_metadata(self) -> Sequence[Client]:
        """Each client's metadata."""
        return tuple(self._metadata.values())

    # --- World of the actors

    @property
    def now_ms(self) -> int:
        """The schedule's time."""
        return self.sim.now_ms

    @property
    def is_calm(self) -> bool:
        """True once all faults are over."""
        return self.sim.is_healing

    @property
    def told_committed(self) -> Callable[[Driver], None]:
        """See Decisions."""
        return self.sim.decided.told_committed

    def new_name(self, prefix: str) -> str:
        """A new unique name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def rows(self, name: str, variant: int, version: int) -> tuple[int, ...]:
        """See Versions."""
        return self._versions.rows(name, variant, version)

    def writable(self) -> list[TopicIdPartition]:
        """The existing partitions."""
        return self.sim.writable()

    def between_writes(self) -> None:
        """No event between two writes of one run: the faults suffice."""

    def send(self, call: Call) -> None:
        """Sends a client's request until it is answered or no longer wanted."""
        tp = call.request.tp if isinstance(call.request, Batch) else COORDINATOR_LOG
        if isinstance(call.request, Batch) and call.request.producer_id in self.rash_ids:
            self.sim.strike_soon(0.2)
        if (call.actor, tp) not in self._metadata:
            self._metadata[call.actor, tp] = Client(self.sim, tp)
        self._ask(_Asked(call, self._metadata[call.actor, tp]))

    def _ask(self, asked: _Asked) -> None:
        asked.tries += 1
        metadata, tries = asked.metadata, asked.tries
        process = metadata.process()
        if process is None or self.rng.random() < self._refresh_chance:
            metadata.refresh()
            self._ask_again(asked, tries, self.rng.randint(20, 150))
            return
        assert isinstance(process, TransactionalProcess)
        serve = partial(self._serve, process, asked, tries, metadata.epoch)
        if self.is_calm or self.rng.random() > 0.01:
            self.sim.after(self.sim.latency(), lambda: process.enter(lambda: process.begin(self.sim.guarded(serve()))))
        self._ask_again(asked, tries, _TIMEOUT_MS)

    def _ask_again(self, asked: _Asked, tries: int, delay_ms: int) -> None:
        def again() -> None:
            if asked.tries == tries and asked.is_wanted:
                asked.metadata.refresh()
                self._ask(asked)

        self.sim.after(delay_ms, again)

    async def _serve(self, process: TransactionalProcess, asked: _Asked, tries: int, epoch: int) -> None:
        request, started_ms = asked.call.request, self.sim.now_ms
        if is_abort(request):
            self.sim.decided.asked_to_abort.update(member.producer_id for member in request.members)
        answer = await process.answer(Sent(request, epoch))
        self.sim.touched(process)
        self.sim.count(f"{'Abort' if is_abort(request) else type(request).__name__}: {type(answer).__name__}")
        self.sim.decided.told_by(process, request, answer, started_ms)
        if self.is_calm or self.rng.random() > 0.01:
            self.sim.after(self.sim.latency(), partial(self._answered, asked, tries, answer))

    def _answered(self, asked: _Asked, tries: int, answer: object) -> None:
        if isinstance(answer, WireError) and answer.retriable:
            self._ask_again(asked, tries, self.rng.randint(10, 150))
        else:
            asked.call.actor.answered(asked.call, answer)

    def encoded(self, batch: Batch) -> RecordBatch:
        """A batch encoded as its client sends it."""
        found = self._batches.get(batch)
        if found is None:
            tp, producer_id, sequence, rows = batch
            assert self.sent.setdefault((tp, producer_id, sequence), rows) == rows, f"producer id {producer_id} is given twice"
            found = self._batches[batch] = arrow_batch(
                [b"%d" % row for row in rows],
                [START_WALL_MS] * len(rows),
                producer=ProducerIdAndEpoch(producer_id, 0),
                sequence=sequence,
                attributes=int(Attributes.TRANSACTIONAL),
                tp=tp,
            )
        return found

    def acknowledges(self, process: Process, batch: Batch, base_offset: int) -> None:
        """A leader is about to acknowledge a batch as committed."""
        promises = self.sim.promises[batch.tp]
        promises.check(process)
        promises.check_copies(base_offset + len(batch.rows))
        promises.promise(base_offset, identity(self.encoded(batch).header))

    # --- faults

    def _beat(self) -> None:
        for driver in self.running():
            for attempt in driver.attempts:
                if attempt.producer_id >= 0 and self.rng.random() < 0.8:
                    attempt.beat()

    def twin(self) -> None:
        """Starts a second attempt at a task beside the first."""
        running = self.running()
        if running:
            driver = self.rng.choice(running)
            driver.launch(self.rng.choice(driver.attempts).split)
            self.sim.count("twin")

    def give_up(self) -> None:
        """A driver aborts the members that it knows, and restarts."""
        drivers = [driver for driver in self.running() if driver.reports]
        if drivers:
            self.sim.count("driver gave up")
            self.rng.choice(drivers).give_up()

    def kill_driver(self) -> None:
        """A driver dies at any point. Mostly it is restarted."""
        running = self.running()
        if not running:
            return
        driver = self.rng.choice(running)
        driver.is_over = self.rng.random() < 0.15
        driver.call = None
        self.sim.count("driver gone" if driver.is_over else "driver killed")
        if not driver.is_over:
            driver.restart()
