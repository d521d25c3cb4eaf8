"""An in-memory broker behind the producer's transport interface, with faults on request. It validates requests as a broker does
(bytes, CRCs, producer state) and stores what it accepts. Each produce request takes the next fault from a queue. It works in any
event loop; only the loop's thread changes its state, which a test may read once the producer is flushed or closed."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerUnreachableError,
    Fate,
    InvalidRequestError,
    InvalidTxnStateError,
    NotLeaderError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import NO_LEADER, ProducerIdAndEpoch, TopicIdPartition, TopicInfo, TopicPartition, new_topic_id
from brokerd.producer.core.membership import Membership, TransactionEnd
from brokerd.producer.core.transport import (
    BATCH_OVERHEAD_BYTES,
    Hello,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    RequestLimits,
)
from brokerd.record.batch import check_produced
from brokerd.record.header import crc_seed
from tests.support.broker_model import IdentityModel, PartitionModel
from tests.support.transaction_model import NO_VERSION, TransactionsModel

NODE = 0


@dataclass(frozen=True)
class Fault:
    """The fate of one produce request. Fields may be combined."""

    drop_request: bool = False  # the request never arrives
    drop_answer: bool = False  # the request is processed, the response is lost
    kill_before: bool = False  # the stream breaks before the request is processed
    kill_after: bool = False  # the stream breaks after the request is processed
    answer_twice: bool = False
    hold_answer: bool = False  # sent after the next response: out of order
    error: WireError | None = None  # result of every batch; with fate UNKNOWN the batches are appended nevertheless
    refusal: WireError | None = None  # error of the whole request


NO_FAULT = Fault()
NO_LIMITS = RequestLimits(1_000, 16 * 1024 * 1024)


@dataclass
class TopicDouble:
    """A topic: its id, partitions and leaders (-1: no leader now)."""

    topic_id: bytes
    partitions: list[PartitionModel]
    leaders: list[int]
    epochs: tuple[int, ...] = ()  # of the leaders, in metadata only


@dataclass
class BrokerDouble:
    """The broker's state. `transport` is a producer's `transport_factory`."""

    topics: dict[str, TopicDouble] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    identities: IdentityModel = field(default_factory=IdentityModel)
    metadata_errors: deque[Exception] = field(default_factory=deque)
    topic_errors: dict[str, WireError] = field(default_factory=dict)  # metadata errors by topic, whether it exists or not
    identity_errors: deque[Exception] = field(default_factory=deque)
    open_errors: deque[Exception] = field(default_factory=deque)
    heartbeat_errors: deque[Exception] = field(default_factory=deque)
    transactions: TransactionsModel = field(default_factory=TransactionsModel)
    inits: list[Membership] = field(default_factory=list)
    is_next_grant_lost: bool = False  # the next member's producer id never arrives
    heartbeats: list[Membership] = field(default_factory=list)
    requests: list[ProduceRequest] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    limits: RequestLimits = NO_LIMITS
    transactional_ids: set[int] = field(default_factory=set)  # producer ids of members
    append_timestamp: int = -1  # for topics with LogAppendTime
    max_message_bytes: int = 16 * 1024 * 1024

    def create_topic(self, name: str, partitions: int) -> TopicDouble:
        """Creates a topic, or re-creates it with another id."""
        topic = TopicDouble(new_topic_id(), [PartitionModel() for _ in range(partitions)], [NODE] * partitions)
        self.topics[name] = topic
        return topic

    def transport(self, _config: ProducerConfig) -> TransportDouble:
        """A transport to this broker."""
        return TransportDouble(self)

    def records(self, topic: str, partition: int) -> list[dict[str, Any]]:
        """The records of a partition's log, as rows."""
        return self.topics[topic].partitions[partition].records

    def values(self, topic: str, partition: int) -> list[bytes]:
        """Values of a partition's records."""
        return [row["value"] for row in self.records(topic, partition)]

    # --- the broker's side of a request

    def produce(self, request: ProduceRequest) -> list[PartitionResult]:
        """Validates and appends each batch."""
        assert len(request.batches) <= self.limits.partitions_max
        sizes = [len(batch.header) + batch.payload.size + BATCH_OVERHEAD_BYTES for batch in request.batches]
        assert sum(sizes) <= self.limits.bytes_max
        self.requests.append(request)
        return [self._produce(batch.tp, batch.header, batch.payload, request.membership) for batch in request.batches]

    def _check_member(self, producer_id: int, named: Membership | None, *, is_transactional: bool) -> None:
        """Raises InvalidTxnStateError unless the batch is transactional exactly if its producer id is an open member's, and the
        request names that member."""
        member = self.transactions.open_member(producer_id)
        is_named_right = named is None if member is None else named is not None and named.member_id == member.member_id
        if is_transactional != (member is not None) or not is_named_right:
            raise InvalidTxnStateError("not an open member's batch, or not named as such")
        if is_transactional:
            self.transactional_ids.add(producer_id)

    def held_records(self, producer_id: int) -> int:
        """Number of records of a producer id, over all partitions."""
        partitions = [partition for topic in self.topics.values() for partition in topic.partitions]
        entries = [partition.producers[producer_id] for partition in partitions if producer_id in partition.producers]
        return sum(entry.last_sequence + 1 for entry in entries)

    def committed_values(self, topic: str) -> list[bytes]:
        """The values in all partitions that readers of committed records see."""
        return [
            row["value"]
            for partition in self.topics[topic].partitions
            for row, producer_id in zip(partition.records, partition.writers, strict=True)
            if producer_id not in self.transactional_ids or producer_id in self.transactions.committed
        ]

    def _produce(self, tp: TopicIdPartition, header: bytes, payload: pa.Buffer, member: Membership | None) -> PartitionResult:
        try:
            topic = next((topic for topic in self.topics.values() if topic.topic_id == tp.topic_id), None)
            if topic is None:
                raise UnknownTopicIdError("no topic of this id", fate=Fate.NOT_APPENDED)
            if tp.partition >= len(topic.partitions):
                raise UnknownTopicOrPartitionError("no such partition", fate=Fate.NOT_APPENDED)
            if topic.leaders[tp.partition] != NODE:
                raise NotLeaderError("this node does not lead it", fate=Fate.NOT_APPENDED)
            data = pa.py_buffer(header + payload.to_pybytes())
            batch = check_produced(data, crc_seed(tp), max_message_bytes=self.max_message_bytes)
            identity = ProducerIdAndEpoch(batch.header.producer_id, batch.header.producer_epoch)
            self._check_member(identity.producer_id, member, is_transactional=batch.header.is_transactional)
            rows = batch.to_arrow(max_uncompressed_bytes=2**30).to_pylist()
            offset = topic.partitions[tp.partition].append(identity, batch.header.base_sequence, rows)
            return PartitionResult(tp, offset, self.append_timestamp)
        except WireError as error:
            error.fate = Fate.NOT_APPENDED  # as the broker does for every error before the append
            return PartitionResult(tp, -1, -1, error)


class StreamDouble:
    """A produce stream. Requests are processed when sent; responses wait in order."""

    def __init__(self, broker: BrokerDouble, hello: Hello) -> None:
        self.limits = broker.limits
        self._broker = broker
        self._hello = hello
        self._answers: asyncio.Queue[ProduceResponse | None] = asyncio.Queue()
        self._held: list[ProduceResponse] = []
        self._is_broken = False

    async def send(self, request: ProduceRequest) -> None:
        """Processes a request with the next fault."""
        if self._is_broken:
            raise BrokerUnreachableError("the double's stream is broken")
        fault = self._broker.faults.popleft() if self._broker.faults else NO_FAULT
        if fault.kill_before:
            self._break()
        if fault.kill_before or fault.drop_request or not self._broker.identities.is_current(self._hello):
            return
        response = self._answer(request, fault)
        if fault.kill_after:
            self._break()
            return
        if fault.drop_answer or request.acks == 0:
            return
        if fault.hold_answer:
            self._held.append(response)
            return
        for answer in (response, *([response] if fault.answer_twice else []), *self._held):
            self._answers.put_nowait(answer)
        self._held.clear()

    def _answer(self, request: ProduceRequest, fault: Fault) -> ProduceResponse:
        if fault.refusal is not None:
            return ProduceResponse(request.correlation_id, fault.refusal)
        error = fault.error
        if error is None or error.fate is Fate.UNKNOWN:
            results = self._broker.produce(request)
        if error is not None:
            results = [PartitionResult(batch.tp, -1, -1, error) for batch in request.batches]
        return ProduceResponse(request.correlation_id, None, results)

    def _break(self) -> None:
        self._is_broken = True
        self._answers.put_nowait(None)

    async def receive(self) -> ProduceResponse:
        """The next response."""
        answer = await self._answers.get()
        if answer is None:
            self._answers.put_nowait(None)
            raise BrokerUnreachableError("the double's stream is broken")
        return answer

    async def close(self) -> None:
        """Breaks the stream."""
        self._break()


class TransportDouble:
    """A ProduceTransport to a BrokerDouble."""

    def __init__(self, broker: BrokerDouble) -> None:
        self._broker = broker
        self._opened = itertools.count()

    async def metadata(self, topics: Sequence[str]) -> Mapping[str, TopicInfo | WireError]:
        """TopicInfo for each topic, or its error."""
        _raise_next(self._broker.metadata_errors)
        answer: dict[str, TopicInfo | WireError] = {}
        for name in topics:
            topic = self._broker.topics.get(name)
            if name in self._broker.topic_errors:
                answer[name] = self._broker.topic_errors[name]
            elif topic is None:
                answer[name] = UnknownTopicOrPartitionError(f"no topic '{name}'")
            else:
                leaderless = [number for number, leader in enumerate(topic.leaders) if leader == NO_LEADER]
                problems = {number: f"{name}-{number} has no leader at present" for number in leaderless}
                answer[name] = TopicInfo(topic.topic_id, tuple(topic.leaders), problems, topic.epochs)
        return answer

    async def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """A new producer id, or a raised epoch."""
        _raise_next(self._broker.identity_errors)
        return self._broker.identities.init_producer_id(current)

    async def init_member(self, membership: Membership) -> ProducerIdAndEpoch:
        """A member's producer id, the same for each call."""
        self._broker.inits.append(membership)
        _raise_next(self._broker.identity_errors)
        granted = self._broker.transactions.init(membership, self._broker.identities.next_id)
        if self._broker.is_next_grant_lost:
            self._broker.is_next_grant_lost = False
            await asyncio.Event().wait()
        return granted

    async def heartbeat(self, membership: Membership) -> None:
        """Records the heartbeat."""
        self._broker.heartbeats.append(membership)
        _raise_next(self._broker.heartbeat_errors)
        self._broker.transactions.heartbeat(membership)

    async def open_stream(self, node_id: int, hello: Hello) -> StreamDouble:
        """Opens a stream; its Hello fences older ones."""
        _raise_next(self._broker.open_errors)
        if node_id != NODE:
            raise BrokerUnreachableError(f"no node {node_id}")
        if not self._broker.identities.hello(hello):
            raise InvalidRequestError("a newer stream of this instance has spoken")
        self._broker.hellos.append(hello)
        return StreamDouble(self._broker, hello)

    async def close(self) -> None:
        """Nothing to free."""


def double_of(partitions: int, **state: Any) -> BrokerDouble:
    """A double with topic t."""
    double = BrokerDouble(**state)
    double.create_topic("t", partitions)
    return double


def _raise_next(errors: deque[Exception]) -> None:
    if errors:
        raise errors.popleft()


class CoordinatorDouble:
    """The producer's Coordinator on a BrokerDouble. The next `lost_before` ends are lost before they take effect, then `lost_after`
    ends lose their response."""

    def __init__(self, broker: BrokerDouble) -> None:
        self._broker = broker
        self.ends: list[TransactionEnd] = []
        self.lost_before = 0
        self.lost_after = 0

    def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """The last committed version."""
        known = self._broker.transactions.ids.get(transactional_id)
        return known.last_version if known is not None else NO_VERSION

    def partition_ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, TopicIdPartition]:
        """Ids derived from the topics' names."""
        return {tp: TopicIdPartition(tp.topic.encode().ljust(16), tp.partition) for tp in tps}

    def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts."""
        assert timeout_ms > 0
        self.ends.append(end)
        if self.lost_before:
            self.lost_before -= 1
            raise BrokerUnreachableError("lost before it arrived")
        self._broker.transactions.end(end, self._broker.held_records)
        if self.lost_after:
            self.lost_after -= 1
            raise BrokerUnreachableError("lost after it was done")
