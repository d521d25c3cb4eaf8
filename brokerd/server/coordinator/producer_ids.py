"""The producer ids of one coordinator, which are never given twice: the log reserves a block of numbers before the first of it is
given, and the next coordinator begins above all that is reserved. In a cluster, each coordinator takes a range of its own from
the store: a log that was restored from a backup would give some twice, and partitions on other nodes would take the batches of the
second producer for duplicates.

If the log has lost its last reservation to damage, nothing tells what was given. Ids then go on far above every number that the log
or a partition of this node still knows. A partition that knows a number that is not reserved shows such a loss too.
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
    """See the module."""

    def __init__(self, log: CoordinatorLog, partitions: PartitionTable, numbers: Numbers) -> None:
        """`numbers` gives a range that nobody else is given, from a number on or above: its first number, and its end."""
        self._numbers = numbers
        self._ceiling = 0  # the end of the range
        self._filling = asyncio.Lock()
        self._log = log
        self._partitions = partitions
        self._is_limit_lost = False
        self.limit = 0  # every number below is reserved, but by a record that may not be durable yet
        self.next_id = 0  # the next to be given
        self._durable_limit = 0

    def load(self, record: CoordinatorRecord | None) -> None:
        """Takes the next record of the log; None where some are lost."""
        if record is None:
            self._is_limit_lost = True
        elif record.HasField("producer_ids_reserved"):  # reservations rise, so this one covers all that are lost before it
            self.limit = max(self.limit, record.producer_ids_reserved.limit)
            self._is_limit_lost = False

    def loaded(self) -> None:
        """Call it after the last record."""
        known = self._partitions.highest_producer_number()
        if self._is_limit_lost or known >= self.limit:
            above = max(self.limit, known + 1) + MARGIN
            self.limit = max(self.limit, min(above, PRODUCER_NUMBERS - MARGIN))  # clients can make up any number
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
        """Takes a range if none is left. Raises NotReadyError."""
        async with self._filling:
            if self.next_id == self.limit and self.limit + BLOCK > self._ceiling:
                first, self._ceiling = await self._numbers(self.limit)
                self.next_id = self.limit = self._durable_limit = first

    async def reserve(self) -> None:
        """Durably reserves a block once the last one is used up; makes the log if there is none. Others may have used up the block
        before the caller runs again. Raises StorageError if all numbers are used up, and what CoordinatorLog and `fill` raise.
        """
        await self._log.make()
        await self.fill()
        if self.limit == self.next_id:  # else a block is on its way, or was left by a caller that has gone
            if self.limit + BLOCK > PRODUCER_NUMBERS:
                raise StorageError(f"all {PRODUCER_NUMBERS} producer ids are used up")
            self._log.append([producer_ids_reserved(self.limit + BLOCK)])
            self.limit += BLOCK  # at once: a snapshot that is written meanwhile replaces the record
        limit = self.limit
        await self._log.durable()
        self._durable_limit = max(self._durable_limit, limit)

    def pieces(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """What a snapshot must hold of them."""
        if self.limit:
            yield [producer_ids_reserved(self.limit)]
