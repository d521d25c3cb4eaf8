"""The index of aborted transactions: look-ups by overlap, storage in snapshots, entries kept while records are readable."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from brokerd.errors import OffsetOutOfRangeError
from brokerd.partition import producer_state
from brokerd.partition.core import OpenData
from brokerd.partition.derived_files import decode_snapshot, encode_snapshot
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_state import Snapshot
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import ANY_OWNER, AbortedTransaction, AbortedTransactions, BatchMetadata, ProducerStateEntry
from brokerd.storage.checksummed_file import DocumentError
from tests.support.build import append, delete_records, open_log
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.transactions import append_marker, append_member, read_committed

SEGMENT_BYTES = 4_096
KNOWN = Snapshot(
    0xDEADBEEF,
    20,
    (EpochEntry(1, 0, 0x15161718), EpochEntry(4, 12, 0x25262728)),
    {
        7: ProducerStateEntry(
            2, (BatchMetadata(0, 2, 10, 12, 1_700_000_000_000), BatchMetadata(3, 3, 14, 14, 1_700_000_000_001, -2, True)), False
        ),
        8: ProducerStateEntry(0, (BatchMetadata(2**31 - 1, 1, 15, 17, 1_700_000_000_002),), True, 15),
    },
)
# KNOWN without the optional parts.
GOLDEN = (
    "efbeadde140000000000000002000000020000000100000000000000000000001817"
    "1615040000000c0000000000000028272625070000000000000002000002ffffffff"
    "ffffffff00000000020000000a000000000000000c000000000000000068e5cf8b01"
    "0000000000000003000000030000000e000000000000000e000000000000000168e5"
    "cf8b010000feffffff010800000000000000000001010f00000000000000ffffff7f"
    "010000000f0000000000000011000000000000000268e5cf8b0100000000000000"
)
ABORTED = (AbortedTransaction(5, 1, 9, 3), AbortedTransaction(6, 3, 13, 14))


def _open(files: MemoryFiles) -> tuple[LogManager, Partition]:
    return open_log(files, log_segment_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize("block", [2, 5, 256])
@pytest.mark.parametrize("seed", range(20))
def test_no_overlap_is_missed_however_transactions_interleave(seed: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "_BLOCK", block)
    rng = random.Random(seed)
    begun: dict[int, int] = {}
    entries: list[AbortedTransaction] = []
    for offset in range(40):
        if rng.random() < 0.6:
            begun[offset] = offset
            continue
        ended = rng.sample(sorted(begun), rng.randint(0, len(begun)))
        aborted = sorted(ended[: rng.randint(0, len(ended))])
        for producer_id in ended:
            del begun[producer_id]
        stable = min(begun.values(), default=offset + 1)
        entries += [AbortedTransaction(producer_id, producer_id, offset, stable) for producer_id in aborted]
    index = AbortedTransactions(entries)
    for first, until in itertools.combinations(range(42), 2):
        expected = [entry for entry in entries if entry.first_offset < until and entry.marker_offset >= first]
        assert index.overlapping(first, until) == expected
    index.forget_below(20)
    entries = [entry for entry in entries if entry.marker_offset >= 20]
    for until in range(42):
        assert index.overlapping(0, until) == [entry for entry in entries if entry.first_offset < until]


class Counting(int):
    """An end of a range that counts the first offsets that it is compared with."""

    compared = 0

    def __gt__(self, other: object) -> bool:
        Counting.compared += 1
        return int(self) > other  # type: ignore[operator]

    def __le__(self, other: object) -> bool:
        Counting.compared += 1
        return int(self) <= other  # type: ignore[operator]


@pytest.mark.parametrize("is_one_marker", [False, True])
def test_a_look_up_does_not_pass_all_that_aborted_beside_a_long_transaction(
    is_one_marker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction was open at offset 0 while 40,000 others were aborted: the last stable offset at their markers is 0."""
    monkeypatch.setattr(Counting, "compared", 0)
    markers = [100_000 if is_one_marker else 2 + 2 * one for one in range(40_000)]
    index = AbortedTransactions(AbortedTransaction(one, 1 + 2 * one, marker, 0) for one, marker in enumerate(markers))
    assert len(index.overlapping(1, Counting(51))) == 25
    assert Counting.compared < 2_000


@pytest.mark.parametrize(
    ("snapshot", "tail"),
    [
        (KNOWN, ""),
        (KNOWN._replace(forgotten={ANY_OWNER: 5, 9: 7}), "02000000ffffffff0500000000000000090000000700000000000000"),
        (
            KNOWN._replace(aborted=ABORTED),
            (
                "0000000002000000"
                "0500000000000000010000000000000009000000000000000300000000000000"
                "060000000000000003000000000000000d000000000000000e00000000000000"
            ),
        ),
    ],
    ids=["neither", "forgotten", "aborted"],
)
def test_a_snapshot_is_written_and_read_as_ever(snapshot: Snapshot, tail: str) -> None:
    body = encode_snapshot(snapshot)
    assert body.hex() == GOLDEN + tail
    assert decode_snapshot(body) == snapshot


@pytest.mark.parametrize("count", [0, 7])
def test_a_producer_without_batches_or_with_too_many_is_damage(count: int) -> None:
    """A broken leader may send such a snapshot. A follower that accepted it could not write it again."""
    body = bytearray(encode_snapshot(KNOWN))
    at = body.index(struct.pack("<qhBB", 7, 2, False, 2)) + 11
    body[at] = count
    with pytest.raises(DocumentError, match=f"a producer has {count} batches in the snapshot, not 1 to 6"):
        decode_snapshot(bytes(body))


def test_a_snapshot_with_fewer_aborted_transactions_than_it_says_is_damaged() -> None:
    body = encode_snapshot(KNOWN._replace(aborted=ABORTED))
    for end in (len(body) - 1, len(body) - 32, len(body) - 65):
        with pytest.raises(DocumentError, match="shorter"):
            decode_snapshot(body[:end])
    with pytest.raises(DocumentError, match="longer"):
        decode_snapshot(body + bytes(8))


def test_what_a_member_holds_is_known_until_its_marker(files: MemoryFiles) -> None:
    manager, log = _open(files)
    append(log, b"plain")
    append_member(log, 5, 0, count=3)
    append_member(log, 9, 0)
    append_member(log, 5, 3, count=2)
    assert log.core.open_data(5) == OpenData(5, 1, 7, False)
    log.flush()
    append_member(log, 5, 5)
    assert log.core.open_data(5) == OpenData(6, 1, 8, False)
    log.flush()
    assert [log.core.open_data(producer_id) for producer_id in (5, 9, 7)] == [
        OpenData(6, 1, 8, True),
        OpenData(1, 4, 5, True),
        None,
    ]
    assert list(log.core.producers.open_transactions) == [5, 9]
    manager.close()
    _, log = _open(files)
    assert list(log.core.producers.open_transactions) == [5, 9], "a start knows it too"
    assert log.core.open_data(5) == OpenData(6, 1, 8, True)
    append_marker(log, committed=[5])
    assert list(log.core.producers.open_transactions) == [9]
    assert log.core.open_data(5) is None


def test_a_marker_for_strangers_changes_nothing(files: MemoryFiles) -> None:
    _, log = _open(files)
    append_member(log, 5, 0)
    append_marker(log, committed=[6], aborted=[7])
    log.flush()
    assert log.core.producers.aborted.entries == ()
    assert (log.ends.last_stable_offset, list(log.core.producers.open_transactions)) == (0, [5])


def test_a_range_that_is_deleted_by_now_is_refused(files: MemoryFiles) -> None:
    manager, log = _open(files)
    append_member(log, 5, 0)
    append_marker(log, aborted=[5])
    log.flush()
    delete_records(manager, log, 1)
    with pytest.raises(OffsetOutOfRangeError, match="starts at offset 1") as caught:
        log.core.aborted_transactions(0, 2)
    assert caught.value.log_start_offset == 1
    assert [entry.marker_offset for entry in log.core.aborted_transactions(1, 2)] == [1]


def _abort_one_and_fill(log: Partition, segments: int) -> None:
    append_member(log, 5, 0)
    append_marker(log, aborted=[5])
    for _ in range(segments + 1):
        append(log, bytes(SEGMENT_BYTES - 500))
    log.flush()


def test_the_index_ends_where_the_log_begins(files: MemoryFiles) -> None:
    manager, log = _open(files)
    _abort_one_and_fill(log, 3)
    delete_records(manager, log, 1)
    assert len(log.core.producers.aborted.entries) == 1, "its segment is there"
    delete_records(manager, log, log.ends.high_watermark)
    assert manager.retention_pass() == 3
    assert not log.core.producers.aborted.entries


def test_a_log_start_that_a_crash_takes_back_shows_no_aborted_record(files: MemoryFiles) -> None:
    _, log = _open(files)
    _abort_one_and_fill(log, 1)
    log.set_log_start(2)  # a snapshot is written, and the daemon dies before the next checkpoint
    append(log, bytes(SEGMENT_BYTES - 500))
    log.flush()
    assert log.core.snapshots.durable[-1] > 2
    files.kill()
    _, restarted = _open(files)
    assert restarted.ends.log_start_offset == 0
    assert read_committed(restarted, 0, restarted.ends.high_watermark) == [2, 3, 4]
