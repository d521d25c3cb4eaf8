"""Producer ids of one coordinator, never given twice: the log reserves a block of numbers before the first of them is given, and
the next coordinator begins above all reservations. In a cluster, each coordinator also takes a range of its own from etcd: a log
restored from a backup would give some ids twice, and partitions on other nodes would take the second producer's batches for
duplicates.

If damage has destroyed the last reservation, it is unknown which ids were given. New ids then begin MARGIN above every number that
the log or a partition of this node still knows. An unreserved number in a partition also shows such a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from brokerd.coordinator.records import producer_ids_reserved
from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import StorageError
from brokerd.ids import PRODUCER_NUMBERS
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord

BLOCK = 1_000
MARGIN = 1_000_000_000  # producers whose records are gone, or lost, leave no trace

Numbers = Callable[[int], Awaitable[tuple[int, int]]]


class ProducerIds:
    """See the module docstring."""

    def __init__(self, log: CoordinatorLog, partitions: PartitionTable, numbers: Numbers) -> None:
        """`numbers` gives a range that no other coordinator gets, at or above a number: its first number, and its end."""
        self._numbers = numbers
        self._ceiling = 0  # the end of the range
        self._filling = asyncio.Lock()
        self._log = log
        self._partitions = partitions
        self._is_limit_lost = False
        self.limit = 0  # every number below is reserved, perhaps by a record that is not durable yet
        self.next_id = 0  # the next to give
        self._durable_limit = 0

    def load(self, record: CoordinatorRecord | None) -> None:
        """Takes the next record of the log; None stands for lost records."""
        if record is None:
            self._is_limit_lost = True
        elif record.HasField("producer_ids_reserved"):  # reservations only rise, so this covers any lost before it
            self.limit = max(self.limit, record.producer_ids_reserved.limit)
            self._is_limit_lost = False

    def loaded(self) -> None:
        """Call it after the last record."""
        known = self._partitions.highest_producer_number()
        if self._is_limit_lost or known >= self.limit:
            above = max(self.limit, known + 1) + MARGIN
            self.limit = max(self.limit, min(above, PRODUCER_NUMBERS - MARGIN))  # a client can send any number
        self.next_id = self._durable_limit = self.limit

    @property
    def has_next(self) -> bool:
        """True if `take` may be called."""
        return self.next_id < self._durable_limit

    def take(self) -> int:
        """A new number from the reserved block."""
        assert self.has_next
        self.next_id += 1
        return self.next_id - 1

    async def fill(self) -> None:
        """Takes a range from `numbers` if none is left. Raises NotReadyError."""
        async with self._filling:
            if self.next_id == self.limit and self.limit + BLOCK > self._ceiling:
                first, self._ceiling = await self._numbers(self.limit)
                self.next_id = self.limit = self._durable_limit = first

    async def reserve(self) -> None:
        """Durably reserves a block once the last one is used up; creates the log if there is none. Other callers may use up the
        block before this one runs again. Raises StorageError if all numbers are used up, and the errors of CoordinatorLog and
        `fill`."""
        await self._log.make()
        await self.fill()
        if self.limit == self.next_id:  # else a block is being reserved, or a cancelled caller has left one
            if self.limit + BLOCK > PRODUCER_NUMBERS:
                raise StorageError(f"all {PRODUCER_NUMBERS} producer ids are used up")
            self._log.append([producer_ids_reserved(self.limit + BLOCK)])
            self.limit += BLOCK  # now: a snapshot written meanwhile replaces the record
        limit = self.limit
        await self._log.durable()
        self._durable_limit = max(self._durable_limit, limit)

    def pieces(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """The records that a snapshot of the log needs."""
        if self.limit:
            yield [producer_ids_reserved(self.limit)]
