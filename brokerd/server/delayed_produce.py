"""A produce request with acks=all: its response waits until its batches are durable. Independent of gRPC and the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.errors import Fate, NotLeaderError, NotReadyError, RequestTimedOutError, StorageError, UnknownTopicIdError, WireError
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.purgatory import Completion, DelayedOperation, TimedPurgatory

WAIT_MAX_MS = 30_000


class Appended(NamedTuple):
    """One appended batch (or recognised duplicate): durable once the high watermark is above `last_offset`."""

    partition: Partition
    last_offset: int
    leader_epoch: int  # in which it was appended


class DelayedProduce(DelayedOperation):
    """Waits for all batches of one request. A batch is settled when one of these holds, checked in this order:

    A. This node no longer leads in the epoch of the append: NOT_LEADER, fate unknown. A high watermark of another epoch may have
       passed another node's batch instead.
    B. The high watermark has passed it: acknowledged.
    C. A flush of its log failed: STORAGE_ERROR, fate unknown.
    D. Its topic was deleted: UNKNOWN_TOPIC_ID, fate unknown (it is gone with the topic).

    The operation completes when every batch is settled. A batch not settled at the deadline gets REQUEST_TIMED_OUT, or NOT_READY
    if the broker is stopping; in both cases its fate is unknown: it is in the log, but perhaps not yet on disk.
    """

    __slots__ = ("_unsettled", "errors", "settled")

    def __init__(self, expiry_ms: int, batches: Mapping[int, Appended], settled: asyncio.Future[None]) -> None:
        """`batches`: by index in the request, at least one. `settled` is done once the operation is complete; not if it is
        cancelled."""
        super().__init__(expiry_ms, [batch.partition.waiters[LogEnd.HIGH_WATERMARK] for batch in batches.values()])
        self._unsettled = dict(enumerate(batches.items()))
        self.settled = settled
        self.errors: dict[int, WireError] = {}  # by index in the request

    def is_satisfied(self, place: int) -> bool:
        """Settles the batch at `place` if possible; True if none is left."""
        unsettled = self._unsettled.get(place)
        if unsettled is not None and self._settle(*unsettled):
            del self._unsettled[place]
        return not self._unsettled

    def on_complete(self, completion: Completion) -> None:
        """Gives the remaining batches their error."""
        for index, _ in self._unsettled.values():
            self.errors[index] = _unsettled(completion)
        self._unsettled = {}
        if not self.settled.done():  # the task waiting for it was cancelled
            self.settled.set_result(None)

    def _settle(self, index: int, batch: Appended) -> bool:
        partition = batch.partition
        if not partition.leads_in(batch.leader_epoch):  # case A
            self.errors[index] = NotLeaderError(
                f"{partition.name} has another leader, or none, since the batch was appended",
                fate=Fate.UNKNOWN,
                current_leader_epoch=partition.leader_epoch,
            )
            return True
        if partition.ends.high_watermark > batch.last_offset:  # case B
            return True
        if partition.health.failure is not None:  # case C
            self.errors[index] = StorageError(
                "the disk refused to make the batch durable; the log stopped until the broker's next start", fate=Fate.UNKNOWN
            )
            return True
        if partition.health.is_deleted:  # case D
            self.errors[index] = UnknownTopicIdError(f"topic {partition.topic} was deleted meanwhile", fate=Fate.UNKNOWN)
            return True
        return False


def _unsettled(completion: Completion) -> WireError:
    if completion is Completion.EXPIRED:
        return RequestTimedOutError("the batch is written, but was not durable in time (timeout_ms)", fate=Fate.UNKNOWN)
    return NotReadyError("the broker stopped before the batch was durable", fate=Fate.UNKNOWN)


def watch_durable(purgatory: TimedPurgatory, batches: Mapping[int, Appended], wait_ms: int) -> DelayedProduce:
    """Watches batches, at least one, until they are durable or `wait_ms` have passed."""
    settled = asyncio.get_running_loop().create_future()
    operation = DelayedProduce(purgatory.clock.monotonic_ms() + wait_ms, batches, settled)
    purgatory.watch(operation)
    return operation


async def wait_durable(purgatory: TimedPurgatory, batches: Sequence[Appended]) -> dict[int, WireError]:
    """Waits as a produce request with acks=all does, for code that awaits it. Returns once the fate of all batches is known, or
    after 30 s, with the errors of those that are not durable, by index. All are retriable except UnknownTopicIdError (the topic
    was deleted).
    """
    if not batches:
        return {}
    operation = watch_durable(purgatory, dict(enumerate(batches)), WAIT_MAX_MS)
    await operation.settled
    return operation.errors
