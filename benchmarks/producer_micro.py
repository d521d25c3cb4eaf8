"""The cost of the producer alone: µs per `send`, rows/s of `send_batch` and of each step of an Arrow batch. Nothing is sent: the
transport acknowledges requests at once. Measures CPU time, which other load on the machine affects little.

    python -m benchmarks.producer_micro
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.ids import ProducerIdAndEpoch, TopicInfo
from brokerd.producer import columns
from brokerd.producer.columns import encode_pieces
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.partitioner import partition_for_keys
from brokerd.producer.core.transport import Hello, PartitionResult, ProduceRequest, ProduceResponse, RequestLimits
from brokerd.producer.producer import Producer

ROWS = 10_000
VALUE_BYTES = 100
PARTITIONS = 8
BATCHES = 200
SMALL_ROWS = 100  # of a small batch
SMALL_BATCHES = 3_000
RECORDS = 300_000
REPEATS = 5


class NullStream:
    """A produce stream that acknowledges every request."""

    limits = RequestLimits(1_000, 16 * 1024 * 1024)

    def __init__(self) -> None:
        self._responses: asyncio.Queue[ProduceResponse] = asyncio.Queue()

    async def send(self, request: ProduceRequest) -> None:
        """Takes a request."""
        results = [PartitionResult(batch.tp, 0, 1) for batch in request.batches]
        self._responses.put_nowait(ProduceResponse(request.correlation_id, results=results))

    async def receive(self) -> ProduceResponse:
        """The next acknowledgement."""
        return await self._responses.get()

    async def close(self) -> None:
        """Nothing to free."""


class NullTransport:
    """A transport without a broker."""

    async def metadata(self, topics: Sequence[str]) -> Mapping[str, TopicInfo | WireError]:
        """Reports every topic as existing."""
        return dict.fromkeys(topics, TopicInfo(bytes(16), (0,) * PARTITIONS))

    async def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """Always the same id."""
        return ProducerIdAndEpoch(1, 0)

    async def init_member(self, membership: Membership) -> ProducerIdAndEpoch:
        """Always the same id."""
        return ProducerIdAndEpoch(1, 0)

    async def heartbeat(self, membership: Membership) -> None:
        """Accepts the heartbeat."""

    async def open_stream(self, node_id: int, hello: Hello) -> NullStream:
        """A new stream."""
        return NullStream()

    async def close(self) -> None:
        """Nothing to free."""


def best_s(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """The shortest of several runs."""
    taken = []
    for _ in range(REPEATS):
        start = clock()
        work()
        taken.append(clock() - start)
    return min(taken)


def steps(arrow_batch: pa.RecordBatch) -> dict[str, float]:
    """Nanoseconds per row of each step, in one thread."""
    rows = columns.normalize(arrow_batch)
    partitions = partition_for_keys(rows.column(0), PARTITIONS)

    def split() -> list[columns.PartitionPiece]:
        return columns.split(rows, partitions, PARTITIONS, batch_size=1_048_576, timestamp_ms=1).pieces

    pieces = [part.piece for _ in range(PARTITIONS) for part in split() if part.partition == 0]
    encoded_rows = sum(piece.record_count for piece in pieces)
    taken = {
        "hash and modulo": best_s(lambda: partition_for_keys(rows.column(0), PARTITIONS), time.thread_time) / ROWS,
        "sort, take, copy": best_s(split, time.thread_time) / ROWS,
        "concat, encode, CRC": best_s(lambda: encode_pieces(pieces, "none"), time.thread_time) / encoded_rows,
    }
    return {name: seconds * 1e9 for name, seconds in taken.items()}


def small_batches(producer: Producer, rows: pa.RecordBatch) -> float:
    """Milliseconds of CPU time of all threads per small `send_batch`."""

    def send() -> None:
        for _ in range(SMALL_BATCHES):
            producer.send_batch("t", rows)
        producer.flush()

    return best_s(send, time.process_time) * 1e3 / SMALL_BATCHES


def main() -> None:
    """Measures and prints."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    keys = [b"%08d" % (row * 7919 % 1_000_000) for row in range(ROWS)]
    arrow_batch = pa.RecordBatch.from_pydict({"key": keys, "value": [os.urandom(VALUE_BYTES) for _ in range(ROWS)]})
    value = arrow_batch.column(1)[0].as_py()
    by_step = steps(arrow_batch)
    for name, nanoseconds in by_step.items():
        print(f"{name:32} {nanoseconds:8.1f} ns/row")
    print(f"{'partition and encode, one core':32} {1e3 / sum(by_step.values()):8.2f} M rows/s")
    with Producer({}, transport_factory=lambda _config: NullTransport()) as producer:

        def send_batches() -> None:
            for _ in range(BATCHES):
                producer.send_batch("t", arrow_batch)
            producer.flush()

        def send_records(with_key: bool) -> None:
            if with_key:
                for row in range(RECORDS):
                    producer.send("t", value, key=keys[row % ROWS])
            else:
                for _ in range(RECORDS):
                    producer.send("t", value)
            producer.flush()

        send_batches()
        seconds = best_s(send_batches, time.process_time)
        print(f"{'send_batch, all threads CPU':32} {BATCHES * ROWS / seconds / 1e6:8.2f} M rows/s")
        small = arrow_batch.slice(0, SMALL_ROWS)
        print(f"{'send_batch of 100 rows':32} {small_batches(producer, small):8.3f} ms CPU a batch")
        keyless = small_batches(producer, small.select(["value"]))
        print(f"{'send_batch of 100 without keys':32} {keyless:8.3f} ms CPU a batch")
        for with_key in (False, True):
            name = "send with key" if with_key else "send without key"
            caller = best_s(lambda: send_records(with_key), time.thread_time)  # noqa: B023
            both = best_s(lambda: send_records(with_key), time.process_time)  # noqa: B023
            print(f"{name + ', caller':32} {caller / RECORDS * 1e6:8.2f} µs a call, {RECORDS / caller / 1e6:.2f} M/s")
            print(f"{name + ', all threads CPU':32} {both / RECORDS * 1e6:8.2f} µs a call, {RECORDS / both / 1e6:.2f} M/s")


if __name__ == "__main__":
    main()
