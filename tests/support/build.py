"""One-line builders of batches and logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.partition_opening import RecoveryReport
from brokerd.errors import LogDamagedError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicIdPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import FlushTask, Partition
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import crc_seed, encode_header, new_header
from brokerd.record.schema import SCHEMA_0, payload_crc
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import Files
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.log_manager import LogManager
from tests.support.records import TP, header_of, key_values, new_batch
from tests.support.steps import run_here


def raw_batch(
    payload: bytes,
    *,
    count: int = 1,
    producer: ProducerIdAndEpoch = NO_PRODUCER,
    sequence: int = -1,
    timestamp_ms: int = START_WALL_MS,
    attributes: int = 0,
) -> RecordBatch:
    """A batch as a client sends it. The payload is opaque to the log (padded to 8 bytes)."""
    body = payload + bytes(-len(payload) % 8)
    header = new_header(
        batch_length=len(body),
        payload_crc=payload_crc(body),
        record_count=count,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        uncompressed_bytes=len(body),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    return RecordBatch(header, pa.py_buffer(encode_header(header, 0) + body))


def arrow_batch(
    values: list[bytes],
    timestamps_ms: list[int],
    *,
    producer: ProducerIdAndEpoch = NO_PRODUCER,
    sequence: int = -1,
    attributes: int = 0,
    tp: TopicIdPartition = TP,
) -> RecordBatch:
    """A batch as a client sends it, with real columns."""
    times = pa.array([timestamp * 1_000 for timestamp in timestamps_ms], SCHEMA_0.column("timestamp").type)
    data = new_batch(
        key_values(values).set_column(SCHEMA_0.names.index("timestamp"), "timestamp", times),
        "none",
        tp,
        base_timestamp=timestamps_ms[0],
        max_timestamp=max(timestamps_ms),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    return RecordBatch(header_of(data), data)


def open_manager(files: Files, clock: Clock | None = None, **settings: object) -> tuple[LogManager, RecoveryReport]:
    """Opens a log manager; settings by field name (`log_segment_bytes=...`)."""
    config = dataclasses.replace(BrokerConfig(), **settings)  # type: ignore[arg-type]
    manager = LogManager(config, files, clock or ManualClock())
    return manager, manager.open()


def first_log(manager: LogManager, name: str = "t", partition: int = 0) -> Partition:
    """A partition of a topic, creating the topic if needed."""
    if not manager.topics.has(name):
        manager.create_topic(name, partition + 1, {})
    return manager.partitions.leader(TopicIdPartition(manager.topics.by_name(name).id, partition))


def open_log(files: Files, clock: Clock | None = None, **settings: object) -> tuple[LogManager, Partition]:
    """Like `open_manager`, returning topic t's log. Does not check the recovery report."""
    manager, _ = open_manager(files, clock, **settings)
    return manager, first_log(manager)


def append(log: Partition, payload: bytes, *, now_ms: int = START_WALL_MS, clock_ahead_ms: int = 0, **fields: object) -> int:
    """Appends a raw batch; returns its base offset."""
    batch = raw_batch(payload, **fields)  # type: ignore[arg-type]
    return log.append(batch, now_wall_ms=now_ms, clock_ahead_ms=clock_ahead_ms).base_offset


def run_flush(log: Partition, task: FlushTask) -> bool:
    """Runs a prepared flush. Reports a failed sync to the log and returns False."""
    try:
        task.run()
    except OSError as error:
        log.fail_flush(task, error)
        return False
    return True


def delete_records(manager: LogManager, log: Partition, before_offset: int) -> int:
    """Moves the log start durably; returns it. Raises the broker's error."""
    assert manager.partitions.replica(log.tp) is log
    (error,) = run_here(manager.retention.delete_records([(log, before_offset)]))
    if error is not None:
        raise error
    return log.ends.log_start_offset


def damaged_ranges(log: Partition) -> tuple[DamagedRange, ...]:
    """The log's damaged ranges above its start."""
    return tuple(damaged for damaged in log.core.health.damaged if damaged.is_live(log.ends.log_start_offset))


def read_batches(log: Partition, offset: int | None = None, *, max_bytes: int = 1 << 20) -> Iterator[RecordBatch]:
    """All batches visible to readers from `offset` (default: the log start), header CRCs checked."""
    seed = crc_seed(log.tp)
    at = log.ends.log_start_offset if offset is None else offset
    while at < log.ends.high_watermark:
        found = log.read(at, below=LogEnd.HIGH_WATERMARK, max_bytes=max_bytes, cached_only=False)
        assert found.chunks, f"nothing to read at {at} below {log.ends.high_watermark}"
        for chunk in found.chunks:
            yield from walk_batches(pa.py_buffer(chunk), seed)
        at = found.next_offset


def readable(log: Partition) -> dict[int, bytes]:
    """Payloads by base offset of all readable batches. After damage, tries each following offset."""
    found: dict[int, bytes] = {}
    at = log.ends.log_start_offset
    while at < log.ends.high_watermark:
        try:
            for batch in read_batches(log, at):
                found[batch.header.base_offset] = batch.payload.to_pybytes()
                at = batch.header.next_offset
        except LogDamagedError:
            at += 1
    return found


def payloads(log: Partition, offset: int | None = None) -> list[bytes]:
    """Payloads of `read_batches`. Asserts their CRCs."""
    found = []
    for batch in read_batches(log, offset):
        payload = batch.payload.to_pybytes()
        assert payload_crc(payload) == batch.header.payload_crc, f"batch at {batch.header.base_offset} is damaged"
        found.append(payload)
    return found
