"""The nodes of a simulated cluster. A `Process` is one run ("life") of a daemon on a machine.

Real: the data directory and its recovery (on files in memory), brokerd/replication, brokerd/server/replication and brokerd/cluster,
the reconciliation of the directory with the cluster image, the controller, the queue of administrative work, and flushes. Fake: the
event loop's time, threads (the schedule runs their jobs), the client of the coordination store, and the streams between nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import pyarrow as pa

from brokerd.cluster.assignments import Life
from brokerd.cluster.changes import Transaction
from brokerd.cluster.image import Node as NodeEntry
from brokerd.cluster.keys import Keys, Registration, encode
from brokerd.config.broker import BrokerConfig
from brokerd.coordination.client import Changes, KeyValue, Snapshot
from brokerd.datadir.flusher import Flusher
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.errors import BrokerdError, CoordinationError, NotReadyError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import UNSETTLED, LogEnd
from brokerd.partition.partition import Partition
from brokerd.partition.reader import FetchDataInfo
from brokerd.purgatory import Purgatory
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import BatchHeader
from brokerd.server.admin import Admin
from brokerd.server.cluster.controller import Controller
from brokerd.server.cluster.directory import ClusterDirectory
from brokerd.server.cluster.membership import Membership, check_own, for_ever
from brokerd.server.cluster.topics import ClusterTopics
from brokerd.server.delayed_produce import Appended, DelayedProduce
from brokerd.server.failures import not_appended
from brokerd.server.internode import METHODS
from brokerd.server.limits.fence import InstanceFence
from brokerd.server.replication.copying import Copying, Means
from brokerd.server.replication.leading import Leading
from brokerd.server.replication.serving import ReplicaStream
from brokerd.sharing import FairQueue
from tests.support.coordination_store import Event
from tests.support.files import Hook, Killed, MemoryFiles

if TYPE_CHECKING:
    from tests.support.replication_disasters import Answers
    from tests.support.replication_simulation import Simulation

CLUSTER = ClusterIdentity("test", "cluster-of-the-schedule")
KEYS = Keys(CLUSTER.name)
TP = TopicIdPartition(b"replicated-topic", 0)
LAG_MAX_MS = 700
TOPIC = "t"
R = TypeVar("R")
_NEVER_MS = 10**12
_CALL_TIMEOUT_MS = 600


class NodeLoop(asyncio.BaseEventLoop):
    """The event loop of one process. It runs when an event reaches the node. The schedule completes the jobs that it starts in
    threads."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._sim = process.sim

    @property
    def has_ready(self) -> bool:
        """True if callbacks are ready."""
        return bool(self._ready)  # type: ignore[attr-defined]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Makes this the thread's running loop."""
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)

    def turn(self) -> None:
        """One iteration: runs the callbacks that are ready now."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def time(self) -> float:
        """The schedule's time in seconds."""
        return self._sim.now_ms / 1000

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """See AbstractEventLoop."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._sim.at(max(int(when * 1000 + 0.999), self._sim.now_ms), partial(self._due, timer))
        return timer

    def _due(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled() and not self._process.is_dead:
            self._ready.append(timer)  # type: ignore[attr-defined]
            self._process.go_on()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """See AbstractEventLoop."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """See AbstractEventLoop."""
        future = self.create_future()
        self._process.begin_job(lambda: func(*args), partial(settle, future))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception in a callback fails the schedule. A task's unretrieved exception is left to the task's owner."""
        if "never retrieved" not in context["message"] and not self._process.is_dead:
            self._sim.fail(context.get("exception") or AssertionError(context["message"]))


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Sets the future's result or exception, unless it is done."""
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class Copy(NamedTuple):
    """The state of a partition's copy when the last process on its disk ended."""

    durable_end: int = 0
    epochs: Sequence[EpochEntry] = ()


NO_COPY = Copy()


class Disk:
    """A data directory. Its disk may be taken out of the machine and put back."""

    is_read_by_test = False

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.directory_id = ""  # drawn by the first process
        self.copies: dict[TopicIdPartition, Copy] = {}
        self.trouble: Hook | None = None  # fails some of the disk's operations

    def recovers(self) -> None:
        """Ends the disk's trouble and frees space."""
        self.trouble = self.files.hook = self.files.space_left = None


class Machine:
    """A node's machine: its disks, the one in use, and the running process, if any."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.disks = [Disk()]
        self.disk = self.disks[0]
        self.process: Process | None = None


class _Lease:
    """See brokerd.coordination.client.Lease."""

    def __init__(self, sim: Simulation, lease_id: int) -> None:
        self.id = lease_id
        self.lost = asyncio.Event()
        self._sim = sim

    @property
    def is_over(self) -> bool:
        """True if the store has ended the lease. The real one goes by the node's own clock instead."""
        return self.lost.is_set() or not self._sim.store.has_lease(self.id)

    async def revoke(self) -> None:
        """Ends the lease after a network delay."""
        self._sim.at(self._sim.now_ms + self._sim.latency(), partial(self._sim.store.end_lease, self.id))


class _Membership(Membership):
    """The real membership, except that the schedule simulates its lease and its watch."""

    def __init__(self, process: Process, registration: Registration) -> None:
        super().__init__(process.client, KEYS, CLUSTER.id, process.node_id, registration)  # type: ignore[arg-type]
        self._process = process
        self.heard: asyncio.Queue[tuple[int, list[Event], bool]] = asyncio.Queue()

    async def begin(self) -> None:
        """Like `start`, but retries while the store does not answer, as a restarted daemon with a new client would."""
        while self.life is None:
            with suppress(CoordinationError):
                await self._register()
                break
            self._client.believe(0)
            await asyncio.sleep(0.3)
        self._process.sim.store.watch(self._process)
        self._tasks = [asyncio.create_task(for_ever(each)) for each in (self._stay_registered, self._follow)]
        while self.node_id not in self.image.nodes:
            await self.after(self.generation)

    async def _register(self) -> None:
        client, key, sim = self._client, self.image.keys.node(self.node_id), self._process.sim
        lease = _Lease(sim, sim.store.new_lease(self._process))
        try:
            while True:
                revision = await client.transact({key: 0}, {key: encode(self._registration)}, lease_id=lease.id)
                if revision is not None:
                    break
                found = await client.get(key)
                if found is not None:
                    check_own(found, self.node_id, self._registration.directory_id, self._lease_s)
                    await client.transact({key: found.mod_revision}, {}, [key])
        except BaseException:
            await lease.revoke()
            raise
        self._lease = lease  # type: ignore[assignment]
        await self._became(Life(self.node_id, revision, self._registration.directory_id))

    async def _follow(self) -> None:
        while True:
            revision, events, is_snapshot = await self.heard.get()
            changes = [
                KeyValue(key, value, created, modified) if value is not None else key for key, value, created, modified in events
            ]
            items = [item for item in changes if not isinstance(item, str)]
            has_gone_back = revision < self._process.client.revision
            await self._take(Snapshot(revision, items, has_gone_back) if is_snapshot else Changes(revision, changes))
            self._process.client.has_reached(revision)
            if is_snapshot:
                self._process.sim.store.unaware.discard(self._process)


class _Client:
    """See brokerd.coordination.client.CoordinationClient."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.clock = process.sim.clock
        self.timeout_ms = _CALL_TIMEOUT_MS
        self.answered_ms = process.sim.now_ms
        self.revision = self.histories = 0  # not used for requests: the store itself refuses clients that are ahead of it

    def believe(self, revision: int) -> None:
        """See CoordinationClient."""
        self.revision = revision
        self.histories += 1

    def has_reached(self, revision: int) -> None:
        """See CoordinationClient."""
        self.revision = max(self.revision, revision)

    async def transact(
        self,
        compares: Mapping[str, int],
        puts: Mapping[str, bytes],
        deletes: Sequence[str] = (),
        *,
        lease_id: int = 0,
        histories: int | None = None,
    ) -> int | None:
        """See CoordinationClient."""
        if histories not in (None, self.histories):
            raise CoordinationError("etcd has gone back since this change was decided")
        process, histories = self._process, self.histories
        future: asyncio.Future[int | None] = process.loop.create_future()
        transaction = Transaction(dict(compares), dict(puts), tuple(deletes))
        process.sim.store.ask(process, transaction, lease_id, lambda *answer: process.enter(lambda: settle(future, *answer)))
        revision = await future
        self.answered_ms = process.sim.now_ms
        if histories != self.histories:
            raise CoordinationError("etcd has gone back while it was asked", is_fate_unknown=True)
        self.has_reached(revision or 0)
        return revision

    async def get(self, key: str) -> KeyValue | None:
        """See CoordinationClient."""
        process = self._process
        future: asyncio.Future[KeyValue | None] = process.loop.create_future()
        process.sim.store.ask_key(process, key, lambda *answer: process.enter(lambda: settle(future, *answer)))
        return await future


class Stream:
    """A Replicate stream. Each side's messages arrive in order, late, or not at all. A side that has cancelled receives nothing
    more."""

    def __init__(self, sim: Simulation, client: Process, server: Process) -> None:
        self._sim = sim
        self.client, self.server = client, server
        self.to_server: asyncio.Queue[object] = asyncio.Queue()
        self.to_client: asyncio.Queue[object] = asyncio.Queue()
        self.is_open = self.is_cancelled = False
        self._server_at_ms = self._client_at_ms = 0

    # Follower side

    async def write(self, data: bytes) -> None:
        """See grpc.aio.StreamStreamCall."""
        self._send_to_server(data)

    async def read(self) -> object:
        """See grpc.aio.StreamStreamCall. Raises the error that ended the stream."""
        found = await self.to_client.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def cancel(self) -> None:
        """See grpc.aio.StreamStreamCall."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._send_to_server(None)

    # Network

    def break_off(self) -> None:
        """Ends the stream for the follower. Requests that it has written may still arrive."""
        if not self.is_cancelled:
            self.client.enter(lambda: self.to_client.put_nowait(NotReadyError("the stream has ended")))

    def _send_to_server(self, data: bytes | None) -> None:
        self._server_at_ms = self._sim.carry(self.client, self.server, self._server_at_ms, lambda: self._arrive(data))

    def _arrive(self, data: bytes | None) -> None:
        if self.server.is_dead:
            self._sim.at(self._sim.now_ms + self._sim.latency(), self.break_off)
            return
        self.server.enter(lambda: self._take(data))

    def _take(self, data: bytes | None) -> None:
        if not self.is_open:
            self.is_open = True
            self.server.begin(self._serve())
        self.to_server.put_nowait(data)

    def _send_to_client(self, data: object) -> None:
        def arrive() -> None:
            if not self.is_cancelled:
                self.client.enter(lambda: self.to_client.put_nowait(data))

        self._client_at_ms = self._sim.carry(self.server, self.client, self._client_at_ms, arrive)

    async def _serve(self) -> None:
        context = SimpleNamespace(read=self.to_server.get, write=self._answer)
        server = self.server
        try:
            await ReplicaStream(server.broker, server.membership, server.leading, context).run()  # type: ignore[arg-type]
        except BrokerdError as error:
            self._send_to_client(error)
        else:
            self._send_to_client(None)

    async def _answer(self, data: bytes) -> None:
        self._send_to_client(data)


class Produced(NamedTuple):
    """A client's append request."""

    batch: RecordBatch
    epoch: int  # leader epoch in the client's metadata
    is_acks_all: bool = True
    is_heard: Callable[[], bool] = lambda: True  # False if the producer's newer stream arrived first: the request is dropped


class Process:
    """One run of a node's daemon. Events reach it only through `enter`, and it does nothing while paused."""

    def __init__(self, sim: Simulation, machine: Machine) -> None:
        self.sim = sim
        self.machine, self.disk = machine, machine.disk
        self.node_id = machine.node_id
        self.is_dead = self.is_paused = self.fails_next_sync = self.may_stop = False
        self.seen_states: dict[TopicIdPartition, tuple[int, ...]] = {}  # per partition, the state last checked
        self._inbox: list[Callable[[], object]] = []
        self._is_going = False
        self.token = f"life-{sim.next_number()}"
        self.loop = NodeLoop(self)
        self.client = _Client(self)
        try:
            with self.loop.running():
                self._open()
        except BaseException:
            self.loop.close()
            raise
        self.enter(lambda: self.begin(self._run()))

    def _open(self) -> None:
        sim, config = self.sim, dataclasses.replace(self.sim.config, node_id=self.node_id)
        self.logs = logs = LogManager(config, self.disk.files, sim.clock, cluster=CLUSTER)
        report = logs.open()
        assert not report.damaged, f"damage: {report.damaged}"
        assert not report.read_only_reason, report.read_only_reason
        self.disk.directory_id = logs.directory_id
        for tp, copy in self.disk.copies.items():
            partition = self.replica(tp)
            assert (partition.ends.log_end_offset if partition else 0) >= copy.durable_end, f"what was durable of {tp} is lost"
        self.flusher = _flusher()
        self._flushes: Any = self.flusher._begun
        registration = Registration(f"node{self.node_id}", 9092, logs.directory_id, token=self.token)
        self.membership = _Membership(self, registration)
        self.broker: Any = self._new_broker(config)
        self.admin: Admin = self.broker.admin
        logs.resources.flush_soon = self.flusher.mark_dirty
        client, membership, calls = (
            cast("Any", self.client),
            self.membership,
            cast("Any", SimpleNamespace(replicate=self._replicate)),
        )
        self.leading = Leading(client, membership, logs.partitions, LAG_MAX_MS, logs.refusals)
        unable, on_deleted = self.leading.unable, self.broker.forget_topic
        self.directory = ClusterDirectory(
            client, membership, logs.topics, logs.partitions, logs.changes, logs.replicas, self.admin, on_deleted, unable
        )
        means = Means(logs.partitions, logs.replicas, membership, calls, self.flusher, self.admin, sim.clock, unable)
        self.copying = Copying(means)
        self.controller = Controller(client, membership, sim.factor_wanted)
        self._works: list[asyncio.Task[None]] = []

    def _new_broker(self, _config: BrokerConfig) -> Any:
        """Builds the parts of BrokerParts that the nodes use."""
        partitions = self.logs.partitions
        partitions.on_role = self._on_role
        self.fence = InstanceFence(max_instances=1_000)
        self.produce_purgatory = Purgatory()
        return SimpleNamespace(
            clock=self.sim.clock,
            partitions=partitions,
            readers=self.readers(),
            admin=Admin(),
            forget_topic=lambda _topic: None,
            is_stopping=False,
        )

    def readers(self) -> Any:
        """A reader pool whose jobs the schedule runs."""
        return SimpleNamespace(run=lambda _caller, work: self.loop.run_in_executor(None, work))

    async def _run(self) -> None:
        """Joins the cluster as ClusterNode.join does."""
        await self.membership.begin()

        async def follow() -> None:
            seen = -1
            while True:
                seen = await self.directory.passed(seen)
                self.leading.follow_image()
                self.copying.follow_image()

        works = (self.directory.run, self.controller.run, follow, self.leading.run, self._write_checkpoints, *self._more_works())
        self._works = [asyncio.create_task(for_ever(each)) for each in works]

    def _more_works(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Hook for subclasses: further background work."""
        return ()

    async def _write_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(0.4)
            await asyncio.to_thread(self.logs.replicas.checkpoint_now())

    async def _replicate(self, node: NodeEntry) -> Stream:
        process = self.sim.machines[node.id].process
        if process is None or process.token != node.registration.token:
            await asyncio.sleep(0.05)
            raise NotReadyError(f"node {node.id} does not answer")
        return self.sim.connect(self, process)

    # Running

    def begin(self, work: Any) -> None:
        """Starts a task."""
        self.loop.create_task(work)

    def enter(self, event: Callable[[], object]) -> None:
        """Delivers an event to the node, or queues it while the node is busy or paused."""
        if self.is_dead:
            return
        if self.is_paused or self._is_going:
            self._inbox.append(event)
            return
        with self.loop.running():
            event()
        self.go_on()

    def go_on(self) -> None:
        """Runs the event loop until it is idle. Occasionally stops early and continues later."""
        if self._is_going:
            return
        self._is_going = True
        try:
            while not self.is_dead and not self.is_paused and (self.loop.has_ready or self._inbox):
                with self.loop.running():
                    for event in self._take_inbox():
                        event()
                    self.loop.turn()
                while not self._flushes.empty():
                    self._begin_flush(*self._flushes.get())
                self.sim.touched(self)
                if self.loop.has_ready and self.sim.rng.random() < 0.02:
                    self.sim.at(self.sim.now_ms + self.sim.rng.randint(1, 30), self.go_on)
                    break
        finally:
            self._is_going = False

    def _take_inbox(self) -> list[Callable[[], object]]:
        inbox, self._inbox = self._inbox, []
        return inbox

    def pause(self) -> None:
        """Stops the process while time advances, as SIGSTOP does."""
        self.is_paused = True

    def resume(self) -> None:
        """Continues the process."""
        self.is_paused = False
        self.go_on()

    def end(self) -> None:
        """Kills the process."""
        self.disk.copies = {
            tp: Copy(partition.ends.durable_end, list(partition.epochs.entries))
            for tp in self.sim.tps
            if (partition := self.replica(tp)) is not None
        }
        self.is_dead = True
        with self.loop.running():
            for task in sorted(asyncio.all_tasks(self.loop), key=lambda task: int(task.get_name().rpartition("-")[2])):
                task.cancel()
            while self.loop.has_ready:
                self.loop.turn()
        self.loop.close()

    # Threads

    def begin_job(self, job: Callable[[], object], settle: Callable[[object, BaseException | None], None]) -> None:
        """Runs a job as a thread would; `settle` is called in the event loop."""
        if not self.is_dead:
            self.sim.at(self.sim.now_ms + self.sim.disk_time(self), partial(self._do, job, settle))

    def _do(self, job: Callable[[], object], settle: Callable[[object, BaseException | None], None]) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._inbox.append(partial(self.begin_job, job, settle))
            return
        result, error = None, None
        trouble, mishap = self.disk.trouble, self.sim.mishap(self)

        def hook(operation: str, path: str) -> None:
            for each in (mishap, trouble):
                if each is not None:
                    each(operation, path)

        self.disk.files.hook = hook if mishap is not None or trouble is not None else None
        try:
            result = job()
        except Killed:
            self.sim.count("killed in a job")
            self.sim.crash(self.machine)
            return
        except Exception as failed:
            error = failed
        finally:
            self.disk.files.hook = self.disk.trouble
        self.sim.at(self.sim.now_ms + self.sim.rng.choice((0, 0, 0, 1, 5)), lambda: self.enter(lambda: settle(result, error)))

    def _begin_flush(self, log: Partition, task: Any) -> None:
        def run() -> None:
            if self.fails_next_sync:
                self.fails_next_sync, self.may_stop = False, True
                self.sim.count("sync failed")
                raise OSError(errno.EIO, "Input/output error")
            task.run()

        self.begin_job(run, lambda _, error: self.flusher._report(log, task, error))

    # Partitions

    def replica(self, tp: TopicIdPartition) -> Partition | None:
        """The node's copy of a partition, or None."""
        return self.logs.partitions.replica(tp)

    @property
    def partition(self) -> Partition | None:
        """The node's copy of `TP`, or None."""
        return self.replica(TP)

    def has_failed(self) -> bool:
        """True if a log failed permanently in this process."""
        return any(partition.health.failure is not None for partition in self.logs.partitions)

    def _on_role(self, partition: Partition) -> None:
        if partition.is_leader:
            partition.wake(partition.release(UNSETTLED))  # as the coordinator would at once, since there are no transactions
            self.sim.led(self, partition)

    def produce(self, asked: Produced, answer: Callable[[int, WireError | None], object]) -> None:
        """Appends as the Produce handler does. `answer` receives the base offset and the error."""
        if not asked.is_heard():
            return
        try:
            partition = self.logs.partitions.leader(TP, asked.epoch)
            if asked.is_acks_all:
                partition.check_enough_in_sync()
            now_ms, ahead_ms = self.logs.time.stamp_ms()
            info = partition.append(asked.batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms)
        except WireError as error:
            answer(-1, not_appended(error))
            return
        if not asked.is_acks_all:
            return
        batches = {0: Appended(partition, info.last_offset, info.leader_epoch)}
        told: Any = SimpleNamespace(done=lambda: False)
        operation = DelayedProduce(_NEVER_MS, batches, told)
        told.set_result = lambda _: answer(info.base_offset, operation.errors.get(0))
        self.produce_purgatory.try_complete_else_watch(operation)

    def fetch(self, offset: int, epoch: int) -> list[BatchHeader]:
        """Fetches the batches below the high watermark as the Fetch handler does. Raises WireErrors."""
        partition = self.logs.partitions.leader(TP, epoch)
        partition.check_in_range(offset)
        return list(headers(partition, offset, below=LogEnd.HIGH_WATERMARK, max_bytes=2_000))

    async def elect_unclean(self, tp: TopicIdPartition, answers: Answers) -> None:
        """Elects as the handler of ElectUncleanLeader does, and stores the nodes' CopyEnd responses in `answers`. Raises
        WireErrors."""
        logs = self.logs
        client = cast("Any", self.client)
        ask_copy = cast("Any", partial(self._ask_copy, answers))
        topics = ClusterTopics(client, self.membership, self.directory, logs.topics, logs.changes, ask_copy)
        await topics.elect_unclean(self.sim.topic_names[tp.topic_id], tp.partition)

    async def _ask_copy(self, answers: Answers, node_id: int, request: Any, _response_type: Any) -> Any:
        """A CopyEnd call."""
        sim, future = self.sim, self.loop.create_future()
        target, method = sim.machines[node_id].process, METHODS["CopyEnd"]
        if target is None:
            raise NotReadyError(f"node {node_id} does not answer")

        async def answer() -> None:
            response: Any = None
            with suppress(NotReadyError):
                response = await method.handle(target.broker, request)
            error = NotReadyError("it has no copy") if response is None else None
            sim.carry(target, self, 0, lambda: self.enter(lambda: settle(future, response, error)))

        sim.carry(self, target, 0, lambda: target.enter(lambda: target.begin(answer())))
        found = await future
        answers[node_id] = (found.log_end_offset > 0, not found.has_stopped, found.leader_epoch, found.log_end_offset)
        return found

    async def stop(self) -> None:
        """Shuts down as the daemon does: hands over leadership where possible, then ends."""
        self.admin.begin_stop()
        with suppress(CoordinationError):
            await self.leading.hand_over()
        for task in self._works:
            task.cancel()
        await self.copying.stop()
        if self.sim.rng.random() < 0.8:  # else the lease must expire
            await self.membership.stop()
        self.sim.at(self.sim.now_ms + self.sim.rng.randint(0, 50), partial(self.sim.ends, self))

    def trim(self, rng: random.Random) -> None:
        """Deletes records and removes the segments below."""
        partition = self.partition
        if partition is not None and partition.is_leader and not partition.is_stopped:
            ends = partition.ends
            target = max(ends.log_start_offset, ends.high_watermark - rng.choice((0, 0, 3, 20)))
            self.begin(self._trim(partition, target))

    async def _trim(self, partition: Partition, target: int) -> None:
        with suppress(WireError, OSError):
            await self.admin.run(self.logs.retention.give_up_below(partition, target))


def headers(partition: Partition, offset: int, *, below: LogEnd, max_bytes: int = 1 << 20) -> Iterator[BatchHeader]:
    """The headers of `batches`."""
    return (batch.header for batch in batches(partition, offset, below=below, max_bytes=max_bytes))


def batches(partition: Partition, offset: int, *, below: LogEnd, max_bytes: int = 1 << 20) -> Iterator[RecordBatch]:
    """The batches of one read from `offset`; with LOG_END, all batches up to the log end."""

    def read() -> FetchDataInfo:
        return partition.read(offset, below=below, max_bytes=max_bytes, cached_only=False)

    while offset < partition.ends.of(below):
        found = read() if below is not LogEnd.LOG_END else undisturbed(read)
        for chunk in found.chunks:
            yield from walk_batches(pa.py_buffer(chunk), partition.crc_seed)
        if below is not LogEnd.LOG_END:
            return
        offset = found.next_offset


def undisturbed(read: Callable[[], R]) -> R:
    """Runs a read of the test itself, which a disk's trouble does not affect."""
    Disk.is_read_by_test = True
    try:
        return read()
    finally:
        Disk.is_read_by_test = False


def _flusher() -> Flusher:
    """A flusher without threads: the schedule runs its flushes."""
    flusher = Flusher(threads=0, on_flush=lambda _log, _ns: None)
    flusher._room = FairQueue(1)
    flusher._begun = SimpleQueue()
    return flusher


def base_config(rng: random.Random) -> BrokerConfig:
    """Settings that all nodes share."""
    return dataclasses.replace(
        BrokerConfig(),
        log_segment_bytes=rng.choice((4_096, 4_096, 10_000, 1 << 20)),
        log_index_interval_bytes=128,
        min_insync_replicas=rng.choice((1, 2, 2)),
    )
