"""One-line transactions in a log, and a reader of committed records on that log that works as a client's does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from brokerd.client.columns import BatchSlice
from brokerd.client.fetching import FetchRange, PartitionResult, RangePosition
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.partition.partition import Partition
from brokerd.record.control import encode_control
from brokerd.record.header import Attributes
from brokerd.wire.v1 import control_pb2, fetch_pb2
from tests.support.build import raw_batch
from tests.support.clock import START_WALL_MS

_EMPTY_ANSWERS_MAX = 3


def append_member(log: Partition, producer_id: int, sequence: int, *, count: int = 1, payload: bytes = b"member!!") -> int:
    """Appends a batch of an open transaction's member; returns its base offset."""
    batch = raw_batch(
        payload,
        count=count,
        producer=ProducerIdAndEpoch(producer_id, 0),
        sequence=sequence,
        attributes=int(Attributes.TRANSACTIONAL),
    )
    return log.append(batch, now_wall_ms=START_WALL_MS, is_open_member=True).base_offset


def append_marker(
    log: Partition,
    *,
    committed: Sequence[int] = (),
    aborted: Sequence[int] = (),
    is_held: bool = False,
    now_ms: int = START_WALL_MS,
) -> int:
    """Appends a control batch that ends these members' transactions; returns its offset. With `is_held`, it takes effect only after
    `release_marker`."""
    first_offset = log.producers.first_open_offset({*committed, *aborted})
    if is_held and first_offset is not None:
        log.core.ends.hold_back(_commit(log.ends.log_end_offset), first_offset)
    record = control_pb2.ControlRecord(
        transactional_id="x", committed_producer_ids=tuple(committed), aborted_producer_ids=tuple(aborted)
    )
    batch = encode_control(record, log.tp, timestamp_ms=now_ms)
    return log.append_marker(batch, now_wall_ms=now_ms).base_offset


def release_marker(log: Partition, offset: int) -> Moved:
    """Makes the held marker at `offset` take effect."""
    return log.core.ends.release(_commit(offset))


def _commit(offset: int) -> str:
    return f"marker {offset}"


def read_committed(log: Partition, start_offset: int, until_offset: int, *, max_bytes: int = 1 << 20) -> list[int]:
    """The offsets in a range that a reader of committed records sees now."""
    slices = committed_slices(log, start_offset, until_offset, max_bytes=max_bytes)
    return [offset for piece in slices for offset in range(piece.from_offset, piece.until_offset)]


def committed_slices(log: Partition, start_offset: int, until_offset: int, *, max_bytes: int = 1 << 20) -> Iterator[BatchSlice]:
    """Like `read_committed`, batch by batch."""
    wanted = FetchRange(log.tp, start_offset, until_offset)
    position = RangePosition(wanted, is_read_committed=True, check_crcs=True)
    empty_answers = 0
    while not position.is_done and empty_answers < _EMPTY_ANSWERS_MAX:
        asked = position.next_offset
        yield from position.accept(*_answer(log, asked, max_bytes))
        empty_answers = empty_answers + 1 if position.next_offset == asked else 0


def _answer(log: Partition, offset: int, max_bytes: int) -> PartitionResult:
    data = log.read(offset, below=LogEnd.LAST_STABLE_OFFSET, max_bytes=max_bytes, cached_only=False)
    aborted = log.core.aborted_transactions(offset, data.next_offset)
    result = fetch_pb2.PartitionFetchResult(
        topic_id=log.tp.topic_id,
        partition=log.tp.partition,
        high_watermark=log.ends.high_watermark,
        last_stable_offset=log.ends.last_stable_offset,
        log_start_offset=log.ends.log_start_offset,
    )
    for entry in aborted:
        result.aborted.add(producer_id=entry.producer_id, first_offset=entry.first_offset, marker_offset=entry.marker_offset)
    return result, [pa.py_buffer(chunk) for chunk in data.chunks]
