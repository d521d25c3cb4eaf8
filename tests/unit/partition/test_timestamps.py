"""Which producer timestamps are accepted: one far in the future would hide all later records from look-ups by time."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from brokerd.errors import CorruptMessageError, Fate, InvalidConfigError, InvalidTimestampError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition import look_up
from brokerd.partition.core import TIMESTAMP_MAX_MS
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import AbortedTransaction, AbortedTransactions
from brokerd.record.arrow_metadata import read_arrow_metadata
from brokerd.record.batch import RecordBatch
from brokerd.record.header import HEADER_SIZE, Attributes, crc_seed, decode_header, encode_header
from brokerd.record.schema import decode_timestamps, encode_payload
from tests.support.build import append, arrow_batch, first_log, open_manager, raw_batch
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.records import key_values
from tests.support.transactions import append_marker

HOUR_MS = 3_600_000
INT64_MAX = 2**63 - 1
PRODUCER = ProducerIdAndEpoch(5, 0)


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    return open_manager(files)[0]


@pytest.fixture
def log(manager: LogManager) -> Partition:
    return first_log(manager)


def _append(log: Partition, timestamp_ms: int, now_ms: int = START_WALL_MS) -> int:
    return log.append(arrow_batch([b"v"], [timestamp_ms]), now_wall_ms=now_ms).base_offset


@pytest.mark.parametrize("timestamp_ms", [0, 1, START_WALL_MS, START_WALL_MS + HOUR_MS])
def test_the_past_is_welcome_however_long_ago_and_an_hour_of_the_future(log: Partition, timestamp_ms: int) -> None:
    _append(log, timestamp_ms)
    log.flush()
    assert log.look_ups.offset_for_timestamp(timestamp_ms) == (0, timestamp_ms)


def test_a_time_too_far_ahead_is_refused_and_leaves_no_trace(log: Partition) -> None:
    ahead = raw_batch(b"x", timestamp_ms=START_WALL_MS + HOUR_MS + 1, producer=PRODUCER, sequence=0)
    with pytest.raises(
        InvalidTimestampError, match=r"3600001 ms ahead .*message\.timestamp\.after\.max\.ms \(3600000\)"
    ) as refused:
        log.append(ahead, now_wall_ms=START_WALL_MS)
    assert refused.value.fate is Fate.NOT_APPENDED
    assert (log.ends.log_end_offset, len(log.core.producers), log.core.flushes.dirty_bytes) == (0, 0, False)
    append(log, b"x", producer=PRODUCER, sequence=0)
    _append(log, START_WALL_MS + 7)
    log.flush()
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 1) == (1, START_WALL_MS + 7)


def test_the_limit_is_the_topics_own(manager: LogManager, log: Partition) -> None:
    manager.alter_topic("t", {"message.timestamp.after.max.ms": "10"}, [])
    _append(log, START_WALL_MS + 10)
    with pytest.raises(InvalidTimestampError):
        _append(log, START_WALL_MS + 11)
    with pytest.raises(InvalidConfigError, match=r"message\.timestamp\.after\.max\.ms"):
        manager.alter_topic("t", {"message.timestamp.after.max.ms": "-1"}, [])


def test_with_the_brokers_time_the_producers_does_not_matter(manager: LogManager, log: Partition) -> None:
    manager.alter_topic("t", {"message.timestamp.type": "LogAppendTime"}, [])
    append(log, b"x", timestamp_ms=INT64_MAX)
    log.flush()
    assert log.look_ups.offset_for_timestamp(START_WALL_MS) == (0, START_WALL_MS)
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 1) is None


def test_without_a_limit_times_end_where_microseconds_do(manager: LogManager, log: Partition) -> None:
    manager.alter_topic("t", {"message.timestamp.after.max.ms": str(INT64_MAX)}, [])
    _append(log, TIMESTAMP_MAX_MS)
    with pytest.raises(InvalidTimestampError, match="is no record's time"):
        append(log, b"x", timestamp_ms=TIMESTAMP_MAX_MS + 1)
    log.flush()
    assert log.look_ups.offset_for_timestamp(TIMESTAMP_MAX_MS) == (0, TIMESTAMP_MAX_MS)
    assert log.look_ups.offset_for_timestamp(TIMESTAMP_MAX_MS + 1) is None
    assert log.look_ups.offset_for_timestamp(INT64_MAX) is None


def test_what_was_accepted_once_is_answered_so_after_the_clock_was_set_back(log: Partition) -> None:
    batch = raw_batch(b"x", timestamp_ms=START_WALL_MS, producer=PRODUCER, sequence=0)
    log.append(batch, now_wall_ms=START_WALL_MS)
    again = log.append(batch, now_wall_ms=START_WALL_MS - 10 * HOUR_MS)
    assert (again.base_offset, again.is_duplicate) == (0, True)


def test_a_time_that_an_older_log_holds_breaks_no_look_up(files: MemoryFiles, log: Partition) -> None:
    _append(log, START_WALL_MS)
    _append(log, START_WALL_MS + 5)
    log.flush()
    path = log.segments[0].path
    data = files.read_file(path)
    header = decode_header(data[:HEADER_SIZE])._replace(max_timestamp=INT64_MAX)
    files.write_file(path, encode_header(header, crc_seed(log.tp)) + data[HEADER_SIZE:])
    files.kill()
    log = first_log(open_manager(files)[0])
    assert log.ends.log_end_offset == 2
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 6) is None, "the header lies: no record has that time"
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 1) == (1, START_WALL_MS + 5)


def _promising(count: int, claimed_ms: int) -> RecordBatch:
    """A batch whose header claims a max_timestamp that none of its records has."""
    batch = arrow_batch([b"v"] * count, [0] * count)
    header = batch.header._replace(max_timestamp=claimed_ms)
    return RecordBatch(header, pa.py_buffer(encode_header(header, 0) + batch.data.to_pybytes()[HEADER_SIZE:]))


def test_a_look_up_reads_the_records_of_one_batch_whatever_headers_promise(log: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counting(data: pa.Buffer, **claims: int) -> pa.Array:
        decoded.append(claims["record_count"])
        return decode_timestamps(data, **claims)

    monkeypatch.setattr(look_up, "decode_timestamps", counting)
    wanted = START_WALL_MS + 5
    for _ in range(50):
        log.append(_promising(10, wanted), now_wall_ms=START_WALL_MS)
    _append(log, wanted)
    log.flush()
    # A little early: the first batch is decoded in vain, and the next one's start is returned, so no match is missed.
    assert log.look_ups.offset_for_timestamp(wanted) == (10, wanted)
    assert decoded == [10]


def test_an_honest_log_is_answered_to_the_record(log: Partition) -> None:
    times = [START_WALL_MS + number for number in range(100)]
    for first in range(0, 100, 10):
        log.append(arrow_batch([b"v"] * 10, times[first : first + 10]), now_wall_ms=START_WALL_MS)
    log.flush()
    assert [log.look_ups.offset_for_timestamp(time) for time in times] == list(enumerate(times))


def test_a_marker_has_no_time_however_old_its_rows_are(log: Partition) -> None:
    for producer_id in range(3):
        member = ProducerIdAndEpoch(producer_id, 0)
        batch = raw_batch(b"x", timestamp_ms=producer_id, producer=member, sequence=0, attributes=int(Attributes.TRANSACTIONAL))
        log.append(batch, now_wall_ms=START_WALL_MS, is_open_member=True)
        append_marker(log, committed=[producer_id])
    log.flush()
    found = [log.look_ups.offset_for_timestamp(time_ms, is_committed=True) for time_ms in range(4)]
    assert found == [(0, 0), (2, 1), (4, 2), None]
    assert log.segments[0].max_timestamp == 2, "a look-up of a later time reads no header"


def test_an_aborted_record_has_no_time_for_who_does_not_see_it(log: Partition) -> None:
    for producer_id, timestamp_ms in enumerate((1, 3, 2)):  # the second is a task that failed after its rows; the third its retry
        member = ProducerIdAndEpoch(producer_id, 0)
        batch = raw_batch(b"x", timestamp_ms=timestamp_ms, producer=member, sequence=0, attributes=int(Attributes.TRANSACTIONAL))
        log.append(batch, now_wall_ms=START_WALL_MS, is_open_member=True)
    append_marker(log, committed=[0, 2], aborted=[1])
    log.flush()
    for is_committed, found in ((True, [(0, 1), (2, 2), None]), (False, [(0, 1), (1, 3), (1, 3)])):
        assert [log.look_ups.offset_for_timestamp(time_ms, is_committed=is_committed) for time_ms in (1, 2, 3)] == found


def test_aborted_records_are_passed_over_without_a_search_through_the_others(log: Partition) -> None:
    """One long transaction makes all that were aborted during it overlap: a search for each of 20,000 would take a minute."""

    class Counted(AbortedTransaction):
        looks = 0

        def __getattribute__(self, name: str) -> object:
            Counted.looks += name == "first_offset"
            return super().__getattribute__(name)

    def write(producer_id: int, timestamp_ms: int) -> None:
        member = ProducerIdAndEpoch(producer_id, 0)
        batch = raw_batch(b"x", timestamp_ms=timestamp_ms, producer=member, sequence=0, attributes=int(Attributes.TRANSACTIONAL))
        log.append(batch, now_wall_ms=START_WALL_MS, is_open_member=True)

    write(0, 1)
    for producer_id in range(1, 101):
        write(producer_id, 2)
        append_marker(log, aborted=[producer_id])
    append_marker(log, committed=[0])
    log.flush()
    entries = [Counted(*one) for one in log.producers.aborted.entries]
    log.producers.aborted = AbortedTransactions(entries)
    Counted.looks = 0  # those of the index were made once
    assert log.look_ups.offset_for_timestamp(2, is_committed=True) is None
    assert log.look_ups.newest_offset(1, is_committed=True) == 0
    assert Counted.looks <= 2 * len(entries)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_times_are_read_without_the_other_columns(codec: str) -> None:
    arrow = key_values([bytes(8 * 1_048_576)] * 3)
    payload = encode_payload(arrow, codec)
    claims = {"schema_id": 0, "record_count": 3, "uncompressed_bytes": payload.uncompressed_bytes}
    times = decode_timestamps(payload.data, **claims)
    assert times.equals(arrow.column("timestamp"))


def test_a_column_of_times_that_claims_too_much_is_not_allocated() -> None:
    payload = encode_payload(key_values([b"x"] * 3), "zstd")
    body = bytearray(payload.data.to_pybytes())
    metadata = read_arrow_metadata(memoryview(body))
    at = metadata.body_at + metadata.buffers[16][0]
    (honest,) = struct.unpack_from("<q", body, at)
    claimed = 50_000_000
    struct.pack_into("<q", body, at, claimed)
    honest = 3 * 8 if honest == -1 else honest
    lengths = payload.uncompressed_bytes - honest + claimed
    with pytest.raises(CorruptMessageError, match="for 3 timestamps"):
        decode_timestamps(pa.py_buffer(bytes(body)), schema_id=0, record_count=3, uncompressed_bytes=lengths)
