"""Two clients of a simulated partition with possibly stale metadata. They send the highest leader epoch that they have seen.

The honest producer sends in order and, after a change of leader, resends everything unacknowledged from the first batch. So a
partition must never report an out-of-order sequence or an unknown producer id to it. The reader continues from its position;
OFFSET_OUT_OF_RANGE is allowed only if the log start has passed that position. The latest offset that it is told must not be below
what it has read or what was promised before the current epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from brokerd.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.log_ends import LogEnd
from brokerd.record.batch import walk_batches
from brokerd.server.delayed_produce import DelayedProduce
from tests.support.build import raw_batch
from tests.support.partition_replica import SEED, TP, Replica

if TYPE_CHECKING:
    from brokerd.partition.partition import Partition
    from tests.support.partition_simulation import Simulation

HONEST = ProducerIdAndEpoch(50, 0)
_IN_FLIGHT_MAX = 5
_REFUSALS = (NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError)


class _Client:
    """Sends to the leader in its metadata, with that leader's epoch."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.replica: Replica | None = None
        self.epoch = 0

    def _partition(self) -> Partition | None:
        """The leader's partition, or None if it refuses; new metadata may help next time."""
        if self.sim.rng.random() < 0.15:
            self.replica = self.sim.rng.choice(self.sim.replicas)  # another broker, perhaps a former leader
        if self.sim.rng.random() < 0.3:
            self._refresh()
        if self.epoch == 0 or self.replica is None or not self.replica.is_up:
            self._refresh()
            return None
        try:
            return self.replica.table.leader(TP, self.epoch)
        except _REFUSALS as error:
            self.sim.count(f"client: {type(error).__name__}")
            if self.sim.rng.random() < 0.7:
                self._refresh()
            return None

    def _refresh(self) -> None:
        sim = self.sim
        if sim.leader is not None:
            self.replica = sim.leader
            if sim.epoch > self.epoch:
                self.epoch = sim.epoch
                self._begin_epoch()

    def _begin_epoch(self) -> None:
        pass


class _Sent:
    """An unacknowledged batch and the request that waits for its acknowledgement."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.count = count
        self.operation: DelayedProduce | None = None


class HonestProducer(_Client):
    """See the module."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._unacknowledged: list[_Sent] = []
        self._sent_count = 0  # of these, in the current epoch
        self._next_number = 0

    def step(self) -> None:
        """Processes acknowledgements, then sends a batch."""
        self._take_answers()
        if self._partition() is None:
            return
        replica = self.replica
        assert replica is not None
        if replica.log.is_stopped:
            return
        if self._sent_count == len(self._unacknowledged):
            if self._sent_count == _IN_FLIGHT_MAX:
                return
            count = self.sim.rng.randint(1, 3)
            self._unacknowledged.append(_Sent(self._next_number, count))
            self._next_number += count
        one = self._unacknowledged[self._sent_count]
        batch = raw_batch(self.sim.rng.randbytes(60), count=one.count, producer=HONEST, sequence=one.number)
        expected = replica.oracle.answer(*HONEST, one.number, one.count)
        info = self.sim.append(replica, batch, expected, epoch=self.epoch)
        assert not isinstance(expected, type), f"an honest producer is told {expected} at sequence {one.number}"
        if not isinstance(info, WireError):
            one.operation = self.sim.wait(replica, info, replica.log.leader_epoch)
            self._sent_count += 1

    def _take_answers(self) -> None:
        ended = [one for one in self._unacknowledged if one.operation is not None and one.operation.is_completed]
        for one in ended:
            assert one.operation is not None
            if one.operation.errors:
                self._refresh()
                return
            self._unacknowledged.remove(one)
            self._sent_count -= 1

    def _begin_epoch(self) -> None:
        self._sent_count = 0
        self._unacknowledged = [one for one in self._unacknowledged if not _is_acknowledged(one)]
        for one in self._unacknowledged:
            one.operation = None


def _is_acknowledged(one: _Sent) -> bool:
    return one.operation is not None and one.operation.is_completed and not one.operation.errors


class HonestReader(_Client):
    """See the module."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._position = 0

    def step(self) -> None:
        """Asks for the latest offset, or reads."""
        log = self._partition()
        if log is None:
            return
        if self.sim.rng.random() < 0.3:
            self._ask_latest(log)
            return
        try:
            log.check_in_range(self._position)
            until = log.ends.high_watermark
            if self._position < until:
                found = log.read(self._position, below=LogEnd.HIGH_WATERMARK, max_bytes=600, cached_only=False)
                for chunk in found.chunks:
                    for batch in walk_batches(pa.py_buffer(chunk), SEED):
                        self.sim.promises.acknowledge(batch.header._replace(header_crc=0))
                self._position = found.next_offset
                self.sim.count("read on")
        except OffsetOutOfRangeError:
            start = log.ends.log_start_offset
            assert self._position < start, f"a reader at {self._position} is told that there is no such offset"
            self._position = start

    def _ask_latest(self, log: Partition) -> None:
        try:
            latest = log.latest_offset()
        except OffsetNotAvailableError:
            self.sim.count("client: OffsetNotAvailableError")
            return
        known = max(self._position, self.sim.promises.end_before[self.epoch])
        assert latest >= known, f"the latest offset is said to be {latest}, and {known} was known"
        self.sim.count("latest")
