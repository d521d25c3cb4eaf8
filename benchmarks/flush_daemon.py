"""`brokerd start` with other flushes, to compare with: `python -m benchmarks.flush_daemon HOW SYNC_MS start ...`

    shared   as brokerd is: what arrives during a flush goes with the next one
    each     one fdatasync per batch, as Kafka with flush.messages=1: a partition takes no batch until its last one is synced,
             and a connection's next request is not looked at before

Every flush takes SYNC_MS longer, for a disk slower than this machine's. Nothing of it is in brokerd.
"""

from __future__ import annotations

import asyncio
import sys
import time

from brokerd.cli import main
from brokerd.ids import TopicIdPartition
from brokerd.partition.flush_task import FlushTask
from brokerd.server.handlers.produce import ProduceStream, decode

SHARED = "shared"
EACH = "each"


def flush_each_batch() -> None:
    """Has a stream wait for the flush of each of its batches, one batch of a partition at a time."""
    process = ProduceStream._process  # noqa: SLF001 - the seam of this comparison
    locks: dict[TopicIdPartition, asyncio.Lock] = {}

    async def process_and_flush(self: ProduceStream, data: bytes) -> None:
        partitions = decode(data, partitions_max=self._broker.config.max_partitions_per_request).partitions
        if len(partitions) != 1:
            raise RuntimeError("this comparison is for requests of one batch")
        broker = self._broker
        tp = partitions[0]
        async with locks.setdefault(tp, asyncio.Lock()):
            await process(self, data)
            await broker.flusher.flush(broker.partitions.leader(tp), self.caller)

    ProduceStream._process = process_and_flush  # type: ignore[method-assign]  # noqa: SLF001


def slow_down(sync_ms: float) -> None:
    """Makes each flush take longer, in its thread."""
    run = FlushTask.run

    def run_slowly(self: FlushTask) -> None:
        time.sleep(sync_ms / 1_000)
        run(self)

    FlushTask.run = run_slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    how, given_ms = sys.argv[1:3]
    if how == EACH:
        flush_each_batch()
    if float(given_ms) > 0:
        slow_down(float(given_ms))
    sys.exit(main(sys.argv[3:]))
