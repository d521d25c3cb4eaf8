"""The real producer in replication_simulation.py: ProducerCore, driven as brokerd/producer/sender.py drives it.

Checked: each record is in the log at most once and in order. A record reported as written is there, at the reported offset. A
record reported as not written is absent. The producer never fails permanently, and it writes again once all faults are healed."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from brokerd.config.client import ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerUnreachableError, DeliveryTimeoutError, InvalidRequestError, NotReadyError, WireError
from brokerd.ids import TopicInfo, TopicPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.producer.core.accumulator import NO_OFFSET, Piece, ProducerBatch
from brokerd.producer.core.metrics import ProducerMetrics
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import CloseStream, Command, FetchMetadata, OpenStream, RequestProducerId, SendRequest
from brokerd.producer.core.transport import Hello, PartitionResult, ProduceResponse, RequestLimits
from brokerd.record.header import BatchHeader
from brokerd.server.limits.fence import Instance
from tests.support.broker_model import IdentityModel
from tests.support.build import raw_batch
from tests.support.replication_clients import Client
from tests.support.replication_nodes import TOPIC, TP, Process, Produced, batches
from tests.support.replication_promises import identity

if TYPE_CHECKING:
    from tests.support.replication_simulation import Simulation

_PARTITION = TopicPartition(TOPIC, TP.partition)
_RECORD_BYTES = 100
_NUMBER = struct.Struct(">q")
_LIMITS = RequestLimits(10, 1 << 20)
_PROBES_MAX = 20


class _Stream:
    """A produce stream to one process."""

    def __init__(self, process: Process, hello: Hello) -> None:
        self.process, self.hello = process, hello
        self.instance: Instance | None = None  # set when the node has received the Hello

    @property
    def is_heard(self) -> bool:
        """True while the node accepts this stream's requests."""
        return self.instance is not None and self.instance.incarnation == self.hello.incarnation


class CoreProducer(Client):
    """See the module."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._identities = IdentityModel()
        self._numbers = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self._first = next(self._numbers)  # number of this producer's first record
        self._offsets: dict[int, int] = {}  # offset of each written record by number; NO_OFFSET: unknown
        self._unwritten: set[int] = set()
        self._ids: set[int] = set()
        self._streams: dict[int, _Stream] = {}  # by incarnation
        self._records: dict[ProducerBatch, list[int]] = {}  # kept here since the core drops them
        self._payloads: dict[ProducerBatch, bytes] = {}
        self._probe: ProducerBatch | None = None
        self._probes = 0
        self._wakes_ms = -1
        rng = self.sim.rng
        settings: dict[str, object] = {
            "linger.ms": rng.choice((0, 20)),
            "batch.size": 3 * _RECORD_BYTES,
            "delivery.timeout.ms": rng.choice((2_000, 10_000, 120_000)),
            "request.timeout.ms": 900,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.max.ms": 200,
        }
        instance_id, self._core_rng = rng.randbytes(16), random.Random(rng.random())
        self.core = ProducerCore(
            from_mapping(ProducerConfig, settings),
            instance_id=instance_id,
            rng=self._core_rng,
            metrics=ProducerMetrics(self.sim.now_ms),
            splitter=self._split,
        )
        self.core.topics.want(TOPIC, self.sim.now_ms)

    def begin_anew(self) -> None:
        """Restarts as a new producer: this one's records may be lost."""
        self._begin()

    def forget_leader(self) -> None:
        """Does nothing: the core itself handles leader epochs lower than those it has seen."""

    # --- the application

    def step(self) -> None:
        """Sends a few records, unless ending."""
        if not self.is_ending:
            self._append(self.sim.rng.randint(1, 2))

    def _append(self, count: int) -> ProducerBatch:
        core, now_ms = self.core, self.sim.now_ms
        numbers = [next(self._numbers) for _ in range(count)]
        piece = Piece(numbers, count, count * _RECORD_BYTES, 0)
        core.pool.used_bytes += piece.size_bytes
        batch, _ = core.accumulator.append(_PARTITION, piece, now_ms)
        self._records.setdefault(batch, []).extend(numbers)
        self._run()
        return batch

    def problem(self) -> str:
        """Describes what is unfinished. A record sent after all faults are healed must be written within a few attempts."""
        if self.core.accumulator.incomplete:
            return "the producer has not brought all to its end"
        if self._probe is None or self._probe.error is not None:
            assert self._probes < _PROBES_MAX, f"a producer writes nothing although all works: {self._probe and self._probe.error}"
            self._probes += 1
            self._probe = self._append(1)
            return "a record that was sent when all works is under way"
        return ""

    # --- the core's commands

    def _run(self) -> None:
        """Steps the core and executes its commands until there are none."""
        core, now_ms = self.core, self.sim.now_ms
        while True:
            step = core.step(now_ms)
            self._note_ended()
            for command in step.commands:
                self._act(command)
            if not step.commands:
                break
        assert core.fatal_error is None, f"a producer gives up for good: {core.fatal_error}"
        if step.next_ms < self._wakes_ms or self._wakes_ms <= now_ms:
            self._wakes_ms = step.next_ms
            self.sim.at(step.next_ms, self._current(self._run))

    def _current(self, event: Callable[[], object]) -> Callable[[], None]:
        """Wraps an event: it runs, followed by the core, only if the producer has not been restarted since."""
        core = self.core

        def act() -> None:
            if core is self.core:
                event()
                if event != self._run:
                    self._run()

        return act

    def _after(self, delay_ms: int, event: Callable[[], object]) -> None:
        self.sim.after(delay_ms, self._current(event))

    def _act(self, command: Command) -> None:
        match command:
            case FetchMetadata():
                self._after(self.sim.latency(), self._answer_metadata)
            case RequestProducerId():
                self._after(self.sim.latency(), partial(self._answer_id, command))
            case OpenStream():
                self._open(command)
            case CloseStream():
                self._streams.pop(command.incarnation, None)
            case SendRequest():
                self._send(command)
            case _:
                raise AssertionError(f"{command} of a producer without transactions")

    def _answer_metadata(self) -> None:
        process = self.sim.any_process()
        at = process.membership.image.partition(TP) if process is not None else None
        if at is None:
            self.core.on_metadata_failed(BrokerUnreachableError("nobody answers"), self.sim.now_ms)
            return
        found = TopicInfo(TP.topic_id, (at.entry.leader,), leader_epochs=(at.entry.leader_epoch,))
        self._after(self.sim.latency(), lambda: self.core.on_metadata({TOPIC: found}, self.sim.now_ms))

    def _answer_id(self, command: RequestProducerId) -> None:
        granted = self._identities.init_producer_id(command.current)
        if not self.sim.is_healing and self.sim.rng.random() < 0.1:
            self.core.on_identity_failed(command, NotReadyError("no coordinator"), self.sim.now_ms)
            return
        self._ids.add(granted.producer_id)
        if command.current.producer_id in self._ids and granted.producer_id == command.current.producer_id:
            self.sim.count("producer: another epoch")
        self.core.on_producer_id(None, granted, self.sim.now_ms)

    def _open(self, command: OpenStream) -> None:
        node_id, hello = command.node_id, command.hello
        machine = self.sim.machines.get(node_id)
        process = machine.process if machine is not None else None
        if process is None:
            error = BrokerUnreachableError("connection refused")
            self._after(self.sim.latency(), lambda: self.core.on_stream_lost(node_id, hello.incarnation, error, self.sim.now_ms))
            return
        stream = self._streams[hello.incarnation] = _Stream(process, hello)

        def arrives() -> None:
            with suppress(InvalidRequestError):  # a later stream arrived first
                stream.instance = process.fence.hello("producer", *hello, now_ms=self.sim.now_ms)
                opened = partial(self.core.on_stream_open, node_id, hello.incarnation, _LIMITS)
                self._after(self.sim.latency(), lambda: opened(self.sim.now_ms))

        self._after(self.sim.latency(), lambda: process.enter(arrives))

    def _send(self, command: SendRequest) -> None:
        ((_, sent),) = command.batches.items()
        stream = self._streams[command.incarnation]
        batch = raw_batch(
            self._payload(sent),
            count=sent.record_count,
            producer=sent.identity,
            sequence=sent.base_sequence,
            timestamp_ms=self.sim.wall_ms,
        )
        asked = Produced(batch, sent.leader_epoch, is_heard=lambda: stream.is_heard)
        self.sim.ask(self, command.incarnation, stream.process, asked, partial(self._answered, self.core, command))
        if stream.process.is_dead and self.sim.rng.random() < 0.7:
            self._after(self.sim.latency(), partial(self._lose, command.node_id, command.incarnation))

    def _lose(self, node_id: int, incarnation: int) -> None:
        self.core.on_stream_lost(node_id, incarnation, BrokerUnreachableError("the connection was lost"), self.sim.now_ms)

    def _answered(
        self, core: ProducerCore, command: SendRequest, header: BatchHeader, base_offset: int, error: WireError | None
    ) -> None:
        if error is None:
            self.sim.promises[TP].promise(base_offset, identity(header))
            self.sim.count("acknowledged")
        else:
            self.sim.count(f"producer: {type(error).__name__}")
        stream = self._streams.get(command.incarnation)
        if core is self.core and stream is not None:
            result = PartitionResult(TP, base_offset, -1, error)
            response = ProduceResponse(command.correlation_id, None, [result])
            core.on_response(command.node_id, command.incarnation, response, self.sim.now_ms)
            self._run()

    def _payload(self, batch: ProducerBatch) -> bytes:
        """The record numbers followed by random bytes."""
        if batch not in self._payloads:
            numbers = b"".join(map(_NUMBER.pack, self._records[batch]))
            self._payloads[batch] = numbers + self.sim.payload()
        return self._payloads[batch]

    def _split(self, batch: ProducerBatch, _size_max: int) -> list[Piece]:
        raise AssertionError(f"{batch} is not too large")

    # --- the core's results

    def _note_ended(self) -> None:
        ended, self.core.ended = self.core.ended, []
        for batch in ended:
            self._payloads.pop(batch, None)
            numbers = self._records.pop(batch)
            if batch.error is None:
                at = batch.base_offset
                self._offsets.update((number, at + place if at != NO_OFFSET else at) for place, number in enumerate(numbers))
            elif "they are not in the log" in str(batch.error):
                self._unwritten.update(numbers)
            if isinstance(batch.error, DeliveryTimeoutError):
                self.sim.count("producer: given up")

    def check(self, log: Partition) -> None:
        """Checks the producer's results against a fully committed log."""
        start, found = log.ends.log_start_offset, dict[int, int]()
        last = self._first
        for batch in batches(log, start, below=LogEnd.LOG_END):
            header = batch.header
            if header.producer_id not in self._ids:
                continue
            numbers = [_NUMBER.unpack_from(batch.payload, place * _NUMBER.size)[0] for place in range(header.record_count)]
            for place, number in enumerate(numbers):
                assert number > last, f"record {number} of the producer follows {last}"
                last = number
                found[number] = header.base_offset + place
        assert self._unwritten.isdisjoint(found), f"said not to be written: {sorted(self._unwritten & found.keys())}"
        for number, offset in self._offsets.items():
            if offset >= start or (offset == NO_OFFSET and not start):
                assert number in found, f"record {number} is acknowledged, at {offset}, and not in the log"
                assert offset in (NO_OFFSET, found[number]), f"record {number} is at {found[number]}, not at {offset}"
