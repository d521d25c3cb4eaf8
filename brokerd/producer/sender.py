"""Sender: the loop that sends, on its own thread. It carries out the commands of ProducerCore and reports the results.

It changes the producer's state under the lock (waiting.py), but encodes and runs callbacks without the lock. Python raises
interrupts in the main thread only, never here. Encoding happens in this thread so that the application's thread can split batches
meanwhile: Arrow releases the GIL.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from brokerd.clock import Clock
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    Fate,
    ProducerClosedError,
    UnknownServerError,
    WireError,
)
from brokerd.event_loop import GrpcLoop
from brokerd.ids import TopicIdPartition
from brokerd.process import OWN_THREADS
from brokerd.producer.columns import encode_batch_header, encode_pieces
from brokerd.producer.core.accumulator import NEVER_MS, ProducerBatch
from brokerd.producer.core.producer_core import ACKS, ProducerCore
from brokerd.producer.core.streams import (
    CloseStream,
    Command,
    FetchMetadata,
    OpenStream,
    RequestProducerId,
    SendHeartbeat,
    SendRequest,
)
from brokerd.producer.core.transport import (
    BATCH_OVERHEAD_BYTES,
    BatchToProduce,
    ProduceRequest,
    ProduceStream,
    ProduceTransport,
    RequestLimits,
)
from brokerd.producer.intake import Intake
from brokerd.producer.waiting import SharedLock

logger = logging.getLogger(__name__)

T = TypeVar("T")
TransportFactory: TypeAlias = Callable[[ProducerConfig], ProduceTransport]


@dataclass(slots=True, eq=False)
class _StreamTasks:
    """The tasks of one stream. Requests wait in `outbox` for flow control."""

    incarnation: int
    outbox: asyncio.Queue[SendRequest] = field(default_factory=asyncio.Queue)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Sender:
    """Drives the core. Before each step of the core, places the intake's records."""

    def __init__(
        self, *, config: ProducerConfig, core: ProducerCore, shared: SharedLock, clock: Clock, transport_factory: TransportFactory
    ) -> None:
        self._config = config
        self._core = core
        self._shared = shared
        self._clock = clock
        self._transport_factory = transport_factory
        self._intake: Intake
        self._owner: object
        self._streams: dict[int, _StreamTasks] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.SelectorEventLoop | None = None
        self._news = asyncio.Event()  # set only in this thread
        self._is_woken = False  # `wake` was called since the last step began; changed under the lock
        self._timer: asyncio.TimerHandle | None = None  # ends the loop's sleep
        self._timer_ms = 0
        self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}producer", daemon=True)

    def start(self, intake: Intake, *, owner: object) -> None:
        """Starts the thread. The thread keeps `owner` alive, so a producer without other references still sends and is closed at
        exit."""
        self._intake = intake
        self._owner = owner
        self._thread.start()

    def wake(self) -> None:
        """Makes the loop take a step soon. Call it under the lock, and only if there is work: a needless wake-up takes the GIL from
        a busy thread."""
        loop = self._loop
        if threading.get_ident() == self._thread.ident:
            self._news.set()
        elif loop is not None and not self._is_woken:
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                # GrpcLoop's override does extra work that only gRPC's callbacks need.
                asyncio.SelectorEventLoop.call_soon_threadsafe(loop, self._news.set)
                self._is_woken = True  # last: an interrupt before this line costs only a needless wake-up

    def join(self) -> None:
        """Waits for the thread to end."""
        self._thread.join()

    # --- the thread

    def _run(self) -> None:
        self._shared.own()
        try:
            with asyncio.Runner(loop_factory=GrpcLoop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self._fail_for_good(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._shared.end()

    async def _main(self) -> None:
        self._loop = cast("asyncio.SelectorEventLoop", asyncio.get_running_loop())
        self._transport = self._transport_factory(self._config)
        try:
            await self._loop_until_closed()
        finally:
            self._loop = None
            for stream in list(self._streams.values()):
                self._cancel(stream)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._transport.close()

    async def _loop_until_closed(self) -> None:
        while True:
            with self._shared.lock:
                self._news.clear()  # before the step, which handles everything reported so far
                self._is_woken = False
            now_ms = self._clock.monotonic_ms()
            next_ms = self._intake.place_due(now_ms)
            with self._shared.lock:
                step = self._core.step(now_ms, has_unplaced=self._intake.has_unplaced)
            self._notify()
            if step.is_over:
                return
            for command in step.commands:
                self._do(command)
            self._wake_by(min(next_ms, step.next_ms), now_ms)
            await self._news.wait()

    def _wake_by(self, until_ms: int, now_ms: int) -> None:
        """Ensures that the loop wakes by `until_ms`. Keeps an earlier timer: a needless wake-up costs less than a new timer for
        every step."""
        if self._timer is not None:
            if self._timer_ms <= until_ms:
                return
            self._timer.cancel()
            self._timer = None
        if until_ms < NEVER_MS:
            self._timer_ms = until_ms
            self._timer = asyncio.get_running_loop().call_later(max(0, until_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._news.set()

    def _notify(self) -> None:
        """Logs warnings, calls the listeners of ended batches, then wakes the calls whose condition may now hold."""
        warnings = self._core.warnings
        while warnings:  # calls of other threads may add to them
            with contextlib.suppress(Exception):  # a log handler may raise, which must not stop the sender
                logger.warning("%s", warnings.pop(0))
        ended, self._core.ended = self._core.ended, []
        for batch in ended:
            for listener in batch.listeners:
                listener(batch)
            batch.listeners = []
        with self._shared.lock:
            self._shared.tell_waiting()

    def _report(self, event: Callable[[int], T]) -> T:
        """Reports an event to the core, notifies waiting calls, and schedules a step if there is work."""
        with self._shared.lock:
            result = event(self._clock.monotonic_ms())
            if self._core.stopped_by is not None:
                self._intake.stage_all()  # no more records are accepted
            if self._core.has_work:
                self._news.set()
        self._notify()
        return result

    def _report_to_all(self, event: Callable[[int], T]) -> T:
        """Like `_report`, but always schedules a step."""
        result = self._report(event)
        self._news.set()
        return result

    # --- commands

    def _do(self, command: Command) -> None:
        core, transport = self._core, self._transport
        if isinstance(command, SendRequest):
            stream = self._streams.get(command.node_id)
            if stream is not None and stream.incarnation == command.incarnation:
                stream.outbox.put_nowait(command)
        elif isinstance(command, FetchMetadata):
            ask = partial(transport.metadata, command.topics)
            self._spawn(self._ask("metadata", ask, core.on_metadata, core.on_metadata_failed))
        elif isinstance(command, RequestProducerId):
            membership = command.membership
            new_id = partial(transport.init_producer_id, command.current)
            ask_id = new_id if membership is None else partial(transport.init_member, membership)
            on_failed = partial(core.on_identity_failed, command)
            self._spawn(self._ask("a producer id", ask_id, partial(core.on_producer_id, membership), on_failed))
        elif isinstance(command, SendHeartbeat):
            member = command.membership
            on_failed = partial(core.on_identity_failed, command)
            on_heartbeat: Callable[[None, int], None] = lambda _none, now_ms: core.on_heartbeat(member, now_ms)  # noqa: E731
            self._spawn(self._ask("a heartbeat", partial(transport.heartbeat, member), on_heartbeat, on_failed))
        elif isinstance(command, OpenStream):
            self._open(command)
        else:
            self._close(command)

    async def _ask(
        self,
        what: str,
        call: Callable[[], Coroutine[Any, Any, T]],
        on_result: Callable[[T, int], None],
        on_failed: Callable[[BrokerdError, int], None],
    ) -> None:
        """Makes a call, and reports its result or error."""
        timeout_ms = self._config.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                result = await call()
        except TimeoutError:
            text = f"no response to the request for {what} in request.timeout.ms ({timeout_ms} ms)"
            self._report_to_all(partial(on_failed, BrokerUnreachableError(text)))
        except (WireError, BrokerUnreachableError, AuthenticationError) as error:
            self._check_refusal(error)
            self._report_to_all(partial(on_failed, error))
        else:
            self._report_to_all(partial(on_result, result))

    def _check_refusal(self, error: BrokerdError) -> None:
        """Raises `error` if it is a final refusal, which stops the producer."""
        if isinstance(error, AuthenticationError) and self._report_to_all(partial(self._core.on_refused, error)):
            raise error

    def _open(self, command: OpenStream) -> None:
        old = self._streams.pop(command.node_id, None)
        if old is not None:
            self._cancel(old)
        stream = self._streams[command.node_id] = _StreamTasks(command.hello.incarnation)
        stream.tasks.append(self._spawn(self._run_stream(command, stream)))

    def _close(self, command: CloseStream) -> None:
        stream = self._streams.get(command.node_id)
        if stream is not None and stream.incarnation == command.incarnation:
            del self._streams[command.node_id]
            self._cancel(stream)

    async def _run_stream(self, command: OpenStream, tasks: _StreamTasks) -> None:
        """Opens a stream, then sends and receives until either fails."""
        node_id, incarnation = command.node_id, command.hello.incarnation
        stream: ProduceStream | None = None
        try:
            stream = await self._transport.open_stream(node_id, command.hello)
            self._report(partial(self._core.on_stream_open, node_id, incarnation, stream.limits))
            writer = self._start(self._write(stream, tasks.outbox))
            reader = self._start(self._read(stream, node_id, incarnation))
            tasks.tasks += (writer, reader)
            done, _ = await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            for task in done:
                task.result()
        except (WireError, BrokerUnreachableError, AuthenticationError) as error:
            self._report(partial(self._core.on_stream_lost, node_id, incarnation, error))
            self._check_refusal(error)  # after the core has re-enqueued the batches in flight
        finally:
            if stream is not None:
                await stream.close()

    async def _write(self, stream: ProduceStream, outbox: asyncio.Queue[SendRequest]) -> None:
        while True:
            rest: SendRequest | None = await outbox.get()
            while rest is not None:
                node_id = rest.node_id
                request, rest = self._encode(rest, stream.limits)
                if request.batches:
                    await stream.send(request)
                if request.acks == 0:
                    self._report(partial(self._core.on_sent, node_id, request.correlation_id))

    async def _read(self, stream: ProduceStream, node_id: int, incarnation: int) -> None:
        while True:
            response = await stream.receive()
            self._report(partial(self._core.on_response, node_id, incarnation, response))

    def _encode(self, command: SendRequest, limits: RequestLimits) -> tuple[ProduceRequest, SendRequest | None]:
        """Encodes a request; returns batches that do not fit as a second command. A retried batch only gets a new header."""
        batches = []
        rest: dict[TopicIdPartition, ProducerBatch] = {}
        room_bytes = limits.bytes_max
        for tp, batch in list(command.batches.items()):
            if batch.encoded is None and not self._encode_batch(batch):
                continue
            size_bytes = batch.size_bytes + BATCH_OVERHEAD_BYTES
            if size_bytes > limits.bytes_max:
                self._report(partial(self._core.on_too_large, batch, limits))
            elif rest or size_bytes > room_bytes:
                rest[tp] = batch
            else:
                room_bytes -= size_bytes
                batches.append(BatchToProduce(tp, encode_batch_header(batch, tp), batch.encoded.payload.data, batch.leader_epoch))
        acks, timeout_ms = ACKS[self._config.acks], self._config.request_timeout_ms
        request = ProduceRequest(command.correlation_id, acks, timeout_ms, batches, command.membership)
        return request, self._report(partial(self._core.streams.overflow, command, rest)) if rest else None

    def _encode_batch(self, batch: ProducerBatch) -> bool:
        """Encodes a batch; on an error, fails it and returns False. Needs no lock: no other code touches a batch in flight."""
        try:
            encoded = encode_pieces(batch.pieces, self._config.compression_type)
        except Exception as error:
            failure = UnknownServerError(f"records for {batch.tp} cannot be encoded: {error!r}", fate=Fate.NOT_APPENDED)
            self._report(partial(self._core.on_encode_failed, batch, failure))
            return False
        batch.encoded = encoded
        batch.pieces = []
        with self._shared.lock:
            before_bytes = batch.accounted_bytes
            self._core.on_encoded(batch, encoded.size_bytes, encoded.payload.uncompressed_bytes, self._clock.monotonic_ms())
            if batch.accounted_bytes < before_bytes:
                self._shared.tell_waiting()  # there may be room for calls that wait for memory
        return True

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a background task."""
        task = self._start(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # for a task that was cancelled before it began
        return task

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task. An unexpected exception stops the producer with that cause, so that no call waits forever."""
        try:
            await work
        except Exception as error:
            self._fail_for_good(error)

    def _fail_for_good(self, cause: BaseException) -> None:
        is_explained = isinstance(cause, BrokerdError)  # its message suffices, without a traceback
        with contextlib.suppress(Exception):  # of a log handler
            logger.error("the producer stops: %s", cause, exc_info=None if is_explained else cause)
        error: BrokerdError = ProducerClosedError(f"the producer failed: {cause if is_explained else repr(cause)}")
        error.__cause__ = cause
        self._report_to_all(partial(self._core.fail_for_good, error))
        self._intake.place_due(self._clock.monotonic_ms())
        self._report_to_all(self._core.fail_stopped)  # fails the records placed just now

    def _cancel(self, stream: _StreamTasks) -> None:
        for task in stream.tasks:
            task.cancel()
