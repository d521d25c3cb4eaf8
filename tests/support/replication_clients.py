"""Clients of a simulated partition. Each sends to the leader in its metadata, with that leader's epoch, and keeps the highest epoch
it has seen. Metadata come from any node and may be stale. Requests and responses are delayed, in order per connection, and may be
lost.

The honest producer sends in order. After any failure it resends everything unacknowledged, from the first batch, on a new
connection; the broker must therefore never report a sequence error to it. The plain producer is not idempotent and sends each batch
once. A reader continues from its position; OFFSET_OUT_OF_RANGE is allowed only if the log start has passed that position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from brokerd.errors import (
    DuplicateSequenceError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.ids import NO_LEADER, NO_PRODUCER, ProducerIdAndEpoch, TopicIdPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.record.header import BatchHeader
from tests.support.build import raw_batch
from tests.support.replication_nodes import TP, Process, Produced, headers
from tests.support.replication_promises import identity

if TYPE_CHECKING:
    from tests.support.replication_simulation import Simulation

_FIRST_PRODUCER = 50
_IN_FLIGHT_MAX = 5
_RETRY_BACKOFF_MS = 100
_TIMEOUT_MS = 900


class Client:
    """A client and its metadata."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition = TP) -> None:
        self.sim = sim
        self.tp = tp
        self.node_id, self.epoch = NO_LEADER, 0
        self.is_ending = False  # sends nothing new

    def refresh(self) -> None:
        """Refreshes the metadata from any node."""
        process = self.sim.any_process()
        at = process.membership.image.partition(self.tp) if process is not None else None
        if at is not None and at.entry.leader != NO_LEADER and at.entry.leader_epoch >= self.epoch:
            self.node_id, self.epoch = at.entry.leader, at.entry.leader_epoch

    def forget_leader(self) -> None:
        """Forgets the leader and its epoch: after a rollback of the store, epochs below the highest one seen are valid again."""
        self.node_id, self.epoch = NO_LEADER, 0

    def begin_anew(self) -> None:
        """Restarts the client."""
        self.forget_leader()

    def process(self) -> Process | None:
        """The process of the leader in its metadata, or None."""
        return self.sim.machines[self.node_id].process if self.node_id in self.sim.machines else None


class _Batch:
    """A batch in the producer's window."""

    def __init__(self, sequence: int, count: int, payload: bytes) -> None:
        self.sequence, self.count, self.payload = sequence, count, payload
        self.is_done = False


class HonestProducer(Client):
    """See the module."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.producer = ProducerIdAndEpoch(_FIRST_PRODUCER, 0)
        self.window: list[_Batch] = []  # from the first unacknowledged batch
        self.acknowledged: dict[int, int] = {}  # base offsets by sequence
        self.next_sequence = 0
        self._sent = 0  # batches of the window sent on this connection
        self._sent_to: Process | None = None  # the process that the connection leads to; a new process needs a new one
        self._connection = 0

    def begin_anew(self) -> None:
        """Restarts as a new producer: this one's records may be lost."""
        super().begin_anew()
        self.producer = ProducerIdAndEpoch(self.producer.producer_id + 1, 0)
        self.window.clear()
        self.acknowledged.clear()
        self.next_sequence = self._sent = 0
        self._connection += 1

    def step(self) -> None:
        """Sends a batch if the window allows."""
        if self._sent == len(self.window):
            if self._sent >= _IN_FLIGHT_MAX or self.is_ending:
                return
            count = self.sim.rng.randint(1, 3)
            self.window.append(_Batch(self.next_sequence, count, self.sim.payload()))
            self.next_sequence += count
        process = self.process()
        if process is None or (self._sent and process is not self._sent_to):
            self._connect_again()
            return
        self._sent_to = process
        one = self.window[self._sent]
        self._sent += 1
        batch = raw_batch(
            one.payload, count=one.count, producer=self.producer, sequence=one.sequence, timestamp_ms=self.sim.wall_ms
        )
        answer = partial(self._answered, self._connection, one)
        self.sim.ask(self, self._connection, process, Produced(batch, self.epoch), answer)
        self.sim.at(self.sim.now_ms + _TIMEOUT_MS, partial(self._timed_out, self._connection, one))

    def _answered(self, connection: int, one: _Batch, header: BatchHeader, base_offset: int, error: WireError | None) -> None:
        if error is None:
            self.sim.promises[self.tp].promise(base_offset, identity(header))
            if header.producer_id != self.producer.producer_id:
                return  # of the producer before a restart
            known = self.acknowledged.setdefault(one.sequence, base_offset)
            assert known == base_offset, f"sequence {one.sequence} is acknowledged at {known} and at {base_offset}"
            self.sim.count("acknowledged")
            one.is_done = True
            while self.window and self.window[0].is_done:
                del self.window[0]
                self._sent = max(self._sent - 1, 0)
            return
        if connection == self._connection:
            honest = not isinstance(error, OutOfOrderSequenceError | UnknownProducerIdError | DuplicateSequenceError)
            assert honest, f"an honest producer is told: {error}"
            self.sim.count(f"producer: {type(error).__name__}")
            self._connect_again()

    def _timed_out(self, connection: int, one: _Batch) -> None:
        if connection == self._connection and not one.is_done:
            self.sim.count("producer: no answer")
            self._connect_again()

    def _connect_again(self) -> None:
        self.refresh()
        self._sent = 0
        self._connection += 1

    def problem(self) -> str:
        """Describes what is not acknowledged."""
        return "the honest producer has not got all acknowledgements" if self.window else ""

    def check(self, log: Partition) -> None:
        """Checks a fully committed log: the producer's records are there once and in order."""
        there = headers(log, log.ends.log_start_offset, below=LogEnd.LOG_END)
        sent = [(header.base_sequence, header) for header in there if header.producer_id == self.producer.producer_id]
        expected = sent[0][0] if sent else 0
        for sequence, header in sent:
            assert sequence == expected, f"sequence {sequence} follows, not {expected}"
            expected += header.record_count
            at = self.acknowledged.get(sequence)
            assert at in (None, header.base_offset), f"sequence {sequence} is at {header.base_offset}, not at {at}"
        assert not sent or expected == self.next_sequence, f"the log ends with sequence {expected}"


class PlainProducer(Client):
    """Sends batches without idempotence, with acks=all or acks=1."""

    def step(self) -> None:
        """Sends a batch."""
        process = self.process()
        if self.is_ending:
            return
        if process is None or self.sim.rng.random() < 0.1:
            self.refresh()
            return
        is_all = self.sim.rng.random() < 0.7
        batch = raw_batch(self.sim.payload(), count=self.sim.rng.randint(1, 3), producer=NO_PRODUCER, timestamp_ms=self.sim.wall_ms)
        self.sim.ask(self, 0, process, Produced(batch, self.epoch, is_all), self._answered)

    def _answered(self, header: BatchHeader, base_offset: int, error: WireError | None) -> None:
        if error is None:
            self.sim.promises[self.tp].promise(base_offset, identity(header))
            self.sim.count("acknowledged, without numbers")
            return
        if isinstance(error, NotEnoughReplicasError):
            self.sim.count("not enough replicas")
            self.sim.at(self.sim.now_ms + _RETRY_BACKOFF_MS, self.step)
        self.refresh()


class Reader(Client):
    """Reads the partition in order."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._position = 0

    def begin_anew(self) -> None:
        """Restarts from offset 0."""
        super().begin_anew()
        self._position = 0

    def step(self) -> None:
        """Fetches from its position."""
        sim, process = self.sim, self.process()
        is_silent = process is None or process.is_paused or sim.promises[self.tp].is_past(process)
        if process is None or is_silent or sim.rng.random() < 0.1 or self.epoch == 0:
            self.refresh()
            return
        if sim.rng.random() < 0.02:
            self._position = 0  # a new reader starts at the beginning
        try:
            found = process.fetch(self._position, self.epoch)
        except OffsetOutOfRangeError as error:
            self._start_again(error.log_start_offset)
            return
        except WireError:
            self.refresh()
            return
        for header in found:
            sim.promises[self.tp].promise(header.base_offset, identity(header))
            self._position = header.next_offset
            sim.count("read")

    def _start_again(self, log_start_offset: int) -> None:
        assert self._position < log_start_offset, f"a reader at {self._position} is told that there is no such offset"
        self._position = log_start_offset
