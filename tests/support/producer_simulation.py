"""The real ProducerCore against a simulated broker, network and clock: single-threaded, no waiting, replayed from a seed.

A schedule is a list of operations. Every operation is legal at any time (it does nothing if it does not apply), so any part of a
schedule is a schedule, and a failing one can be shrunk by leaving operations out. After the schedule the simulation heals: faults
end, messages flow, and time moves only to when the core asked to be called. Then all results are checked; some invariants are
checked throughout."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from brokerd.config.client import ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    DuplicateSequenceError,
    Fate,
    FencedLeaderEpochError,
    MessageTooLargeError,
    NotLeaderError,
    NotReadyError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import PRODUCER_EPOCH_MAX, ProducerIdAndEpoch, TopicIdPartition, TopicInfo, TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS, Piece, ProducerBatch
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.metrics import ProducerMetrics
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
from brokerd.producer.core.transport import PartitionResult, ProduceResponse, RequestLimits
from brokerd.record.header import SEQUENCE_MAX
from tests.support.broker_model import IdentityModel, PartitionModel, ProducerEntry
from tests.support.member_operations import MemberOperations
from tests.support.producer_trace import command_text, ended_text, records_of, split_text
from tests.support.simulated_network import ALL_ERRORS, Record, Sent, SentBatch, Stream

TOPIC = "t"
TOPIC_ID = b"0123456789abcdef"
RECORD_BYTES = 100
NODES = 2
HEAL_STEPS_MAX = 3_000
NO_LIMIT = 1_000

Op = tuple[Any, ...]


@dataclass(eq=False)
class WaitingAppend:
    """An append that waits for memory."""

    partition: int
    count: int
    is_over: bool = False


class Led(NamedTuple):
    """A partition at a node that believes it leads it."""

    epoch: int
    log: PartitionModel
    copied: int  # acknowledges below this offset only: a deposed leader's later appends are not replicated


class SimulationError(AssertionError):
    """An invariant was broken."""


class Simulation(MemberOperations):
    """Runs one schedule."""

    def __init__(self, seed: int, start: str = "fresh", *, trace: list[str] | None = None, **settings: Any) -> None:
        super().__init__()
        given: dict[str, object] = {
            "linger.ms": 5,
            "batch.size": 3 * RECORD_BYTES,
            "buffer.memory": 30 * RECORD_BYTES,
            "max.request.size": 1500,
            "delivery.timeout.ms": 3_000,
            "request.timeout.ms": 400,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
        } | settings
        # Shorter than a user may set it, so that topics are forgotten within a schedule.
        self.config = dataclasses.replace(from_mapping(ProducerConfig, given), metadata_max_idle_ms=600)
        self.acks = ACKS[self.config.acks]
        self.partition_count = 3
        self.topic_id = TOPIC_ID
        self.log = [PartitionModel() for _ in range(self.partition_count)]
        self.logs = {self.topic_id: self.log}  # also of deleted topics
        self.listed = self.partition_count  # partitions that the topic has so far
        self.now_ms = 1_000
        metrics = ProducerMetrics(self.now_ms)
        self.core = ProducerCore(self.config, instance_id=b"i" * 16, rng=random.Random(seed), metrics=metrics, splitter=self.split)
        self.identities = IdentityModel()
        self.fences: list[dict[bytes, int]] = [{} for _ in range(NODES)]
        self.partitions_max = 2
        self.limits = [NO_LIMIT] * self.partition_count  # largest batch, in records
        self.leaders = [0] * self.partition_count
        self.epochs = [1] * self.partition_count
        self.deposed: dict[tuple[TopicIdPartition, int], Led] = {}  # by node
        self.views: list[TopicInfo | WireError] = []  # stale metadata that lagging nodes return: the state before each change
        self.streams: list[Stream] = []
        self.calls: list[Command] = []
        self.records: list[dict[int, Record]] = [{} for _ in range(self.partition_count)]
        self.waiting: deque[WaitingAppend] = deque()
        self.flushes: list[list[ProducerBatch]] = []
        self.throttled_until_ms: dict[int, int] = {}  # by node
        self.numbers: dict[ProducerBatch, tuple[bytes, ProducerIdAndEpoch, int]] = {}  # as last sent, with the topic id
        self.sent_to: dict[ProducerBatch, bytes] = {}  # id of the topic that it was last sent to
        self.next_id = 0
        self.next_ms = 0
        self.trace = trace  # filled unless None
        self.core.topics.want(TOPIC, self.now_ms)
        if start != "fresh":
            self.begin_late(start)
        self.step()

    def begin_late(self, start: str) -> None:
        """Starts as if much had been sent: "wrap" three records before the sequence wraps to 0, "last epoch" one epoch before they
        are exhausted."""
        identity = ProducerIdAndEpoch(500, PRODUCER_EPOCH_MAX - 1 if start == "last epoch" else 0)
        self.core.identity.on_granted(identity, self.now_ms)
        for partition, log in enumerate(self.log):
            tp = TopicPartition(TOPIC, partition)
            batch = ProducerBatch(tp, self.now_ms)
            batch.record_count = SEQUENCE_MAX - 2
            self.core.identity.assign(batch)
            self.core.identity.on_written(batch, is_news=False)
            entry = log.producers[identity.producer_id] = ProducerEntry(identity.epoch)
            entry.batches.append((0, batch.record_count - 1, -1))

    # --- running

    def run(self, ops: list[Op]) -> None:
        """Runs the schedule, heals, checks. Raises SimulationError, or an exception of the core."""
        for op in ops:
            self.note("at {} ms: {}", self.now_ms, op)
            getattr(self, "do_" + op[0])(*op[1:])
            self.step()
        self.heal()
        self.do_commit()
        probes = [self.probe(partition) for partition in range(self.partition_count)]
        self.heal()
        for probe in probes:
            self.expect(probe.batch.error is None, f"nothing gets through after healing: {probe.batch.error}")
        self.check()

    def note(self, line: str | Callable[..., str], *what: Any) -> None:
        """Adds a line to the trace, if there is one."""
        if self.trace is not None:
            self.trace.append(line.format(*what) if isinstance(line, str) else line(*what))

    def step(self) -> None:
        """Steps the core and executes its commands until there are none."""
        while True:
            step = self.core.step(self.now_ms)
            self.next_ms = step.next_ms
            self.note_ended()
            self.grant()
            if not step.commands:
                return
            for command in step.commands:
                self.note(command_text, command)
                self.act(command)

    def act(self, command: Command) -> None:
        """Executes one command."""
        if isinstance(command, (FetchMetadata, RequestProducerId, SendHeartbeat)):
            self.calls.append(command)
        elif isinstance(command, OpenStream):
            self.streams.append(Stream(command.node_id, command.hello))
        elif isinstance(command, CloseStream):
            for stream in self.streams:
                if (stream.node_id, stream.hello.incarnation) == (command.node_id, command.incarnation):
                    stream.is_broken = True
        else:
            self.send(command)

    def send(self, command: SendRequest) -> None:
        """Checks a request against the protocol's rules and puts it on its stream."""
        stream = next(s for s in self.streams if s.hello.incarnation == command.incarnation)
        self.expect(stream.is_open and not stream.is_broken, "a request goes to a stream that is not open")
        until_ms = self.throttled_until_ms.get(stream.node_id, 0)
        self.expect(self.now_ms >= until_ms, f"sent at {self.now_ms} in spite of a throttle until {until_ms}")
        self.expect(len(command.batches) <= self.partitions_max, "a request names more partitions than the broker takes")
        self.check_member(command)
        sent = Sent(command.correlation_id, [], command.membership)
        for tp_id, batch in command.batches.items():
            tp = TopicPartition(TOPIC, tp_id.partition)
            self.expect(batch.tp == tp, "a batch goes to another partition")
            records = records_of(batch)
            sent.batches.append(SentBatch(tp, batch.identity, batch.base_sequence, records, batch.leader_epoch, tp_id))
            self.sent_to[batch] = tp_id.topic_id
        numbers = {one: (tp_id.topic_id, one.identity, one.base_sequence) for tp_id, one in command.batches.items()}
        under_way = [
            batch for s in self.core.streams.by_node.values() for r in s.in_flight.values() for batch in r.batches.values()
        ]
        for partition in range(self.partition_count):
            same = [batch for batch in under_way if batch.tp.partition == partition]
            self.expect(len(same) <= self.config.max_in_flight_batches, f"{len(same)} batches of partition {partition} under way")
            for batch in same:
                if batch in numbers and self.numbers.get(batch) == numbers[batch]:
                    own = [other for other in same if other.membership == batch.membership]  # batches of another member are void
                    first = min(own, key=lambda other: other.pieces[0].data[0])
                    self.expect(batch is first, "a retry is sent behind a batch that is still under way")
        self.numbers |= numbers
        stream.requests.append(sent)
        if self.acks == 0:
            self.core.on_sent(command.node_id, command.correlation_id, self.now_ms)
            self.note_ended()

    def split(self, batch: ProducerBatch, size_max: int) -> list[Piece]:
        """Splits a batch for the core."""
        records = records_of(batch)
        self.expect(len(records) > 1, "a single record is to be split")
        each = max(1, min(size_max // RECORD_BYTES, len(records) - 1))
        parts = [records[at : at + each] for at in range(0, len(records), each)]
        self.note(split_text, batch.tp, parts)
        return [Piece(part, len(part), len(part) * RECORD_BYTES, 0) for part in parts]

    def note_ended(self) -> None:
        """Counts the results of records."""
        batches, self.core.ended = self.core.ended, []
        for batch in batches:
            ended = [number for number, record in self.records[batch.tp.partition].items() if record.batch is batch]
            self.note(ended_text, batch, ended)
            for number in ended:
                self.records[batch.tp.partition][number].ends += 1

    def grant(self) -> None:
        """Appends for waiting calls that can get memory."""
        while self.waiting and self.take_memory(self.waiting[0].count, self.waiting[0]):
            first = self.waiting.popleft()
            first.is_over = True
            self.note("memory is granted for {} records of {}-{}", first.count, TOPIC, first.partition)
            self.append(first.partition, first.count)
        for late in list(self.waiting)[1:]:
            self.expect(not self.core.pool.admits(late.count * RECORD_BYTES, late), "memory is granted out of turn")

    def take_memory(self, count: int, call: WaitingAppend | None = None) -> bool:
        """Reserves memory for some records; False if there is not enough."""
        if not self.core.pool.admits(count * RECORD_BYTES, call):
            return False
        self.core.pool.used_bytes += count * RECORD_BYTES
        return True

    def append(self, partition: int, count: int) -> None:
        """Appends records whose memory is reserved."""
        ids = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        piece = Piece(ids, count, count * RECORD_BYTES, 0)
        batch, at = self.core.accumulator.append(TopicPartition(TOPIC, partition), piece, self.now_ms)
        for place, record in enumerate(ids, at):
            self.records[partition][record] = Record(batch, place)
            self.member_of[record] = self.membership
        self.core.fail_stopped(self.now_ms)

    def probe(self, partition: int) -> Record:
        """Sends one more record, once all faults are over."""
        self.now_ms = max(self.now_ms, self.next_probe_ms())
        self.expect(self.take_memory(1), "memory is not free after healing")
        self.append(partition, 1)
        return next(reversed(self.records[partition].values()))

    def next_probe_ms(self) -> int:
        """The end of the last throttle, in ms."""
        return max([0, *self.throttled_until_ms.values()])

    def expect(self, condition: bool, message: str) -> None:
        """Raises SimulationError unless `condition`."""
        if not condition:
            raise SimulationError(message)

    # --- operations: the application and time

    def do_append(self, partition: int, count: int) -> None:
        """The application sends records, or waits for memory."""
        if self.core.stopped_by is not None:
            return
        if self.take_memory(count):
            self.append(partition, count)
        elif len(self.waiting) < 3:
            self.waiting.append(WaitingAppend(partition, count))
            self.grant()  # puts it in the pool's queue

    def do_tick(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms

    def do_flush(self) -> None:
        """A flush must cover every record without a result."""
        batches = self.core.accumulator.begin_flush()
        pending = {id(r.batch) for rs in self.records for r in rs.values() if r.ends == 0}
        self.expect(pending == {id(batch) for batch in batches}, "a flush does not wait for all that is incomplete")
        self.flushes.append(batches)

    def do_abort(self) -> None:
        """The application aborts everything under way."""
        self.core.abort("by the test", self.now_ms)

    # --- operations: the broker and the network

    def stream(self, k: int) -> Stream | None:
        """The k-th stream that is unbroken or still holds requests."""
        self.streams = [s for s in self.streams if not s.is_broken or s.requests]
        return self.streams[k % len(self.streams)] if self.streams else None

    def do_open(self, k: int) -> None:
        """A stream opens."""
        stream = self.stream(k)
        if stream is not None and not stream.is_open and not stream.is_broken:
            stream.is_open = True
            limits = RequestLimits(self.partitions_max, self.config.max_request_size)
            self.core.on_stream_open(stream.node_id, stream.hello.incarnation, limits, self.now_ms)

    def do_serve(self, node_id: int) -> None:
        """A node opens its streams, reads its requests, and its responses arrive."""
        for stream in [stream for stream in self.streams if stream.node_id == node_id]:
            for move in (self.do_open, *(self.do_request, self.do_answer) * 3):
                self.stream(0)  # drops finished streams
                if stream in self.streams and not stream.is_broken:
                    move(self.streams.index(stream))
                    self.step()

    def do_ask(self) -> None:
        """Answers all unary calls."""
        while self.calls:
            self.do_call(0)
            self.step()

    def do_request(self, k: int, error: int = -1, is_appended: bool = True, is_whole: bool = False) -> None:
        """The broker reads a request. `error` refuses its first batch, or with `is_whole` all of them."""
        stream = self.stream(k)
        if stream is None or not stream.requests:
            return
        sent = stream.requests.popleft()
        fence = self.fences[stream.node_id]
        if not stream.has_spoken:
            stream.has_spoken = True
            fence[stream.hello.instance_id] = max(fence.get(stream.hello.instance_id, 0), stream.hello.incarnation)
        if fence[stream.hello.instance_id] != stream.hello.incarnation:
            self.note("the broker passes over a request of an older stream")
            return
        if stream.throttle_ms or (is_whole and error >= 0):
            refusal = NotReadyError("stopping", fate=Fate.NOT_APPENDED, retry_after_ms=stream.throttle_ms)
            answer = ProduceResponse(sent.correlation_id, refusal)
        else:
            results = []
            for sent_batch in sent.batches:
                result = self.produce(stream.node_id, sent_batch, error, is_appended, sent.membership)
                if result is None:
                    return
                results.append(result)
                error = -1
            answer = ProduceResponse(sent.correlation_id, None, results)
        stream.throttle_ms = 0
        if not stream.is_broken and self.acks:
            stream.answers.append(answer)

    def produce(
        self, node_id: int, sent: SentBatch, error: int, is_appended: bool, membership: Membership | None
    ) -> PartitionResult | None:
        """The broker's result for one batch; None if a deposed leader never gets it replicated."""
        tp, identity, sequence, records, _, tp_id = sent
        fault = ALL_ERRORS[error % len(ALL_ERRORS)] if error >= 0 else None
        try:
            epoch, log, copied = self.led_by(node_id, tp_id)
            is_known = copied < sys.maxsize or sent.leader_epoch <= epoch
            self.expect(is_known, f"a batch names epoch {sent.leader_epoch} of a topic whose last one is {epoch}")
            self.check_epoch(sent, node_id, epoch)
            if isinstance(fault, NotLeaderError):
                fault = NotLeaderError("it resigns", fate=Fate.NOT_APPENDED, current_leader_epoch=epoch)
            if fault is not None and (fault.fate is Fate.NOT_APPENDED or not is_appended):
                raise fault
            if len(records) > self.limits[tp.partition]:
                raise MessageTooLargeError("more than this broker takes", fate=Fate.NOT_APPENDED)
            self.check_open(sent, membership)
            end = len(log.records)
            offset = log.append(identity, sequence, records)
            if offset >= copied:
                return None
            self.note("broker: {} {} at offset {}", sent, "written" if len(log.records) > end else "written before", offset)
            if fault is not None:
                raise fault
            return PartitionResult(tp_id, offset, self.now_ms)
        except WireError as refused:
            if isinstance(refused, DuplicateSequenceError) and copied < sys.maxsize:
                return None  # DUPLICATE_SEQUENCE would acknowledge the batch
            self.note("broker: {} refused, {}: {}", sent, type(refused).__name__, refused)
            return PartitionResult(tp_id, -1, -1, refused)

    def led_by(self, node_id: int, tp_id: TopicIdPartition) -> Led:
        """The partition at a node that believes it leads it. Raises NotLeaderError, UnknownTopicIdError."""
        topic_id, partition = tp_id
        if topic_id == self.topic_id and self.leaders[partition] == node_id:
            return Led(self.epochs[partition], self.log[partition], sys.maxsize)
        if (tp_id, node_id) in self.deposed:
            return self.deposed[tp_id, node_id]
        if topic_id != self.topic_id:
            raise UnknownTopicIdError("it was deleted", fate=Fate.NOT_APPENDED)
        raise NotLeaderError("another node leads it", fate=Fate.NOT_APPENDED)

    def check_epoch(self, sent: SentBatch, node_id: int, epoch: int) -> None:
        """Refuses a batch with an epoch other than the leader's. With acks=0, batches carry none."""
        known = {"fate": Fate.NOT_APPENDED, "current_leader": node_id, "current_leader_epoch": epoch}
        if 0 <= sent.leader_epoch < epoch:
            raise FencedLeaderEpochError("of an older epoch", **known)  # type: ignore[arg-type]
        if sent.leader_epoch > epoch:
            raise UnknownLeaderEpochError("of a newer epoch", fate=Fate.NOT_APPENDED)

    def do_answer(self, k: int, times: int = 1) -> None:
        """The producer receives a response, perhaps twice."""
        stream = self.stream(k)
        if stream is None or not stream.answers or stream.is_broken:
            return
        answer = stream.answers.popleft()
        if answer.error is not None and answer.correlation_id in self.core.streams.by_node[stream.node_id].in_flight:
            self.throttled_until_ms[stream.node_id] = self.now_ms + answer.error.retry_after_ms
        for _ in range(times):
            self.core.on_response(stream.node_id, stream.hello.incarnation, answer, self.now_ms)

    def do_drop_request(self, k: int) -> None:
        """A request never arrives."""
        stream = self.stream(k)
        if stream is not None and stream.requests:
            stream.requests.popleft()

    def do_drop_answer(self, k: int) -> None:
        """A response never arrives."""
        stream = self.stream(k)
        if stream is not None and stream.answers:
            stream.answers.popleft()

    def do_swap(self, k: int) -> None:
        """Responses arrive out of order."""
        stream = self.stream(k)
        if stream is not None and len(stream.answers) > 1:
            stream.answers.rotate(1)

    def do_cut(self, k: int) -> None:
        """A connection breaks. The broker may still read what it has not read yet."""
        stream = self.stream(k)
        if stream is not None and not stream.is_broken:
            stream.is_broken = True
            self.core.on_stream_lost(stream.node_id, stream.hello.incarnation, BrokerUnreachableError("cut"), self.now_ms)

    def do_throttle(self, k: int, ms: int) -> None:
        """The stream's next response refuses the request and throttles."""
        stream = self.stream(k)
        if stream is not None:
            stream.throttle_ms = ms

    def do_leader(self, partition: int, node_id: int) -> None:
        """Another node becomes a partition's leader, or none does."""
        self.views.append(self.view())
        self.leaders[partition] = node_id
        self.epochs[partition] += 1
        self.deposed.pop((TopicIdPartition(self.topic_id, partition), node_id), None)

    def do_depose(self, partition: int, node_id: int) -> None:
        """Elects another node; the old leader does not know."""
        old = self.leaders[partition]
        if old not in (-1, node_id):
            log = copy.deepcopy(self.log[partition])
            self.deposed[TopicIdPartition(self.topic_id, partition), old] = Led(self.epochs[partition], log, len(log.records))
        self.do_leader(partition, node_id)

    def do_recreate(self, node_id: int, partitions: int) -> None:
        """Deletes and recreates the topic. The old topic's leaders do not know and acknowledge batches."""
        self.views += [self.view(), UnknownTopicOrPartitionError("deleted")]
        for partition, old in enumerate(self.leaders):
            led = Led(self.epochs[partition], self.log[partition], sys.maxsize)
            self.deposed[TopicIdPartition(self.topic_id, partition), old] = led
        self.topic_id = len(self.logs).to_bytes(16)
        self.log = self.logs[self.topic_id] = [PartitionModel() for _ in self.leaders]
        self.leaders = [node_id] * self.partition_count
        self.epochs = [0] * self.partition_count
        self.listed = partitions

    def do_hear(self) -> None:
        """All deposed leaders, and leaders of deleted topics, learn of it."""
        self.deposed.clear()

    def view(self) -> TopicInfo:
        """The current metadata."""
        return TopicInfo(self.topic_id, tuple(self.leaders[: self.listed]), leader_epochs=tuple(self.epochs[: self.listed]))

    def do_old_metadata(self, age: int) -> None:
        """A lagging node answers a metadata request."""
        asked = next((call for call in self.calls if isinstance(call, FetchMetadata)), None)
        if asked is not None and self.views:
            self.calls.remove(asked)
            self.core.on_metadata({TOPIC: self.views[-1 - age % len(self.views)]}, self.now_ms)

    def do_limit(self, partition: int, count: int) -> None:
        """Changes a partition's largest batch."""
        self.limits[partition] = count

    def do_forget(self, partition: int) -> None:
        """The broker's producer state of a partition expires. Not while batches are under way: the expiry time far exceeds the
        delivery timeout."""
        if all(record.ends for record in self.records[partition].values()) and not any(
            batch.tp.partition == partition for s in self.streams for sent in s.requests for batch in sent.batches
        ):
            self.log[partition].producers.clear()

    def do_push_out(self, partition: int) -> None:
        """The broker evicts a partition's producers to make room for others, at any moment."""
        self.log[partition].push_out()

    def do_call(self, k: int, is_answered: bool = True) -> None:
        """A unary call completes or fails."""
        if not self.calls:
            return
        command = self.calls.pop(k % len(self.calls))
        lost = BrokerUnreachableError("no response")
        if isinstance(command, FetchMetadata):
            if is_answered:
                self.core.on_metadata({TOPIC: self.view()}, self.now_ms)
            else:
                self.core.on_metadata_failed(lost, self.now_ms)
        elif isinstance(command, RequestProducerId):
            granted = self.granted(command)
            if not is_answered:
                self.core.on_identity_failed(command, lost, self.now_ms)
            elif isinstance(granted, WireError):
                self.core.on_identity_failed(command, granted, self.now_ms)
            else:
                self.core.on_producer_id(command.membership, granted, self.now_ms)
        elif isinstance(command, SendHeartbeat):
            self.respond_to_heartbeat(command, None if is_answered else lost)

    # --- the end

    def heal(self) -> None:
        """Ends all faults: every message arrives, and time moves only to when the core asked. The topic gets its missing
        partitions."""
        for partition in [partition for partition, node in enumerate(self.leaders) if node < 0]:
            self.do_leader(partition, 0)
        self.do_hear()
        self.listed = self.partition_count
        self.limits = [max(1, count) for count in self.limits]
        self.core.topics.request_refresh()
        self.step()
        for _ in range(HEAL_STEPS_MAX):
            if not self.waiting and not self.core.accumulator.incomplete and not self.core.streams.requests_in_flight:
                return
            if self.calls or any((not s.is_open and not s.is_broken) or s.requests or s.answers for s in self.streams):
                for k in range(len(self.streams)):
                    for move in (self.do_open, self.do_request, self.do_answer):
                        move(k)
                while self.calls:
                    self.do_call(0)
            else:
                self.expect(self.next_ms < NEVER_MS, "stuck: something is incomplete, and nothing will ever happen")
                self.now_ms = max(self.now_ms, self.next_ms)
            self.step()
        raise SimulationError("not done after healing")

    def check(self) -> None:
        """Checks the final state."""
        self.expect(self.core.fatal_error is None, f"the producer gave up: {self.core.fatal_error}")
        self.expect(self.core.pool.used_bytes == 0, f"{self.core.pool.used_bytes} bytes are still accounted")
        self.expect(all(batch.is_notified for batches in self.flushes for batch in batches), "a flush never ends")
        for partition, records in enumerate(self.records):
            logs = [log[partition].records for log in self.logs.values()]
            written = [number for log in logs for number in log]
            there = set(written)
            self.expect(len(there) == len(written), f"partition {partition} has duplicates: {logs}")
            self.expect(all(log == sorted(log) for log in logs), f"partition {partition} is out of order: {logs}")
            for number, record in records.items():
                self.expect(record.ends == 1, f"record {number} ended {record.ends} times")
                self.check_record(partition, number, record, number in there)

    def check_record(self, partition: int, number: int, record: Record, is_there: bool) -> None:
        """Checks the result reported for a record."""
        batch = record.batch
        error: BrokerdError | None = batch.error
        if error is None:
            log = self.logs[self.sent_to[batch]][partition].records
            self.expect(
                number in log or self.acks == 0, f"record {number} of partition {partition} is acknowledged, its topic lacks it"
            )
            if batch.base_offset >= 0:
                offset = batch.base_offset + record.place
                self.expect(log[offset : offset + 1] == [number], f"record {number} is not at its offset {offset}")
        elif "they are not in the log" in str(error) or (isinstance(error, WireError) and error.fate is Fate.NOT_APPENDED):
            self.expect(not is_there, f"record {number} of partition {partition} is in the log, its error says it is not")
