"""All code that walks batches agrees on which are whole: reader, client, scan, recovery, doctor, dump, rebuild, and an oracle that
implements the rule a second time. The segments and their damage are random.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pyarrow as pa
import pytest

from brokerd.config.topic import TopicConfig
from brokerd.errors import CorruptMessageError, LogDamagedError, UnsupportedVersionError
from brokerd.ids import NO_PRODUCER, TopicIdPartition
from brokerd.offline.dump import describe_path
from brokerd.partition import reader
from brokerd.partition.core import PartitionCore
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_state import CheckpointEntry, LogState
from brokerd.partition.log_walk import LogWalk, RecoveryInput
from brokerd.partition.producer_state import ProducerStates
from brokerd.partition.reader import PartitionReader
from brokerd.record.batch import Walk, walk_batches, walk_whole
from brokerd.record.control import encode_control
from brokerd.record.header import Attributes, crc_seed, decode_header, header_problem
from brokerd.storage import scan
from brokerd.storage.files import RealFiles
from brokerd.storage.names import LOG_SUFFIX, offset_file
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.refusals import Refusals
from brokerd.storage.scan import Scan
from brokerd.storage.segment import Segment
from brokerd.storage.segment_walk import whole_batches
from brokerd.wire.v1 import control_pb2
from tests.support.build import raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.records import stamped

TP = TopicIdPartition(bytes(range(16)), 3)
SEED = crc_seed(TP)
MAX_EPOCH = 9
FAR = 2**62
SEGMENTS = 400


class Batch(NamedTuple):
    """A batch: its position in the segment and its offsets, [`first`, `next`)."""

    position: int
    first: int
    next: int


class Stored(NamedTuple):
    """Bytes of a segment that begins at offset `base`."""

    base: int
    data: bytes


def stored_batch(offset: int, epoch: int, *, covers: int, payload: bytes, attributes: int = 0, version: int = 1) -> bytes:
    """A batch as a leader stores it, with one record. It covers `covers` offsets; 0 or less is invalid."""
    batch = raw_batch(payload, count=1, attributes=attributes)
    header = bytearray(batch.header_bytes)
    struct.pack_into("<i", header, 56, covers - 1)
    header[4] = version
    head = stamped(bytes(header), SEED, base_offset=offset, append_timestamp=7, leader_epoch=epoch)
    return bytes(head + batch.payload.to_pybytes())


def random_segment(rng: random.Random) -> Stored:
    """Consecutive batches, some of which cover gaps, at times one with correct CRCs that does not follow, and random damage."""
    base = offset = rng.choice((0, 0, 1_000))
    epoch, parts = 1, []
    odd = rng.randrange(40) if rng.random() < 0.5 else -1
    for number in range(rng.randrange(1, 20)):
        epoch += rng.random() < 0.2
        covers = rng.choice((1, 1, 1, 5, 100))
        attributes = rng.choice((0, 0, 0, Attributes.CONTROL))
        payload = rng.randbytes(rng.choice((8, 64, 300, 5_000)))
        wrong: dict[str, int] = {}
        if number == odd:
            wrong = rng.choice(
                (
                    {"offset": offset + 1},
                    {"offset": max(offset - 1, 0)},
                    {"epoch": epoch - 1},
                    {"epoch": 10},
                    {"covers": -3},
                    {"version": 2},
                )
            )
        fields = {"offset": offset, "epoch": epoch, "covers": covers, **wrong}
        parts.append(stored_batch(**fields, payload=payload, attributes=int(attributes)))
        offset += covers
    return Stored(base, _damaged(rng, b"".join(parts), len(parts[0])))


def _damaged(rng: random.Random, data: bytes, first_size: int) -> bytes:
    changed = bytearray(data)
    kind = rng.choice(("none", "bit", "zeros", "cut", "twice", "header bit"))
    at = rng.randrange(len(changed))
    if kind == "bit":
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        changed[at : at + 500] = bytes(len(changed[at : at + 500]))
    elif kind == "cut":
        del changed[at:]
    elif kind == "twice":
        changed += data[:first_size]
    elif kind == "header bit":
        place = data.find(b"\x89bkd", at)
        if place >= 0:
            changed[place + rng.randrange(min(96, len(changed) - place))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def oracle(stored: Stored, *, reads_payloads: bool) -> list[Batch]:
    """The whole batches before the first bad one, by the rule in ARCHITECTURE.md."""
    found, at, offset, epoch = [], 0, stored.base, 0
    data = stored.data
    while at + 96 <= len(data):
        size = 8 * data[at + 5]
        head = data[at : at + size]
        if data[at : at + 4] != b"\x89bkd" or size < 96 or len(head) < size or data[at + 4] != 1:
            break
        length, crc, base = struct.unpack_from("<IIq", data, at + 8)
        own_epoch, payload_crc = struct.unpack_from("<iI", data, at + 32)
        (delta,) = struct.unpack_from("<i", data, at + 56)
        if google_crc32c.extend(SEED, head[:12] + bytes(4) + head[16:]) != crc:
            break
        if base != offset or delta < 0 or not epoch <= own_epoch <= MAX_EPOCH or at + size + length > len(data):
            break
        if reads_payloads and google_crc32c.value(data[at + size : at + size + length]) != payload_crc:
            break
        found.append(Batch(at, base, base + delta + 1))
        at, offset, epoch = at + size + length, base + delta + 1, own_epoch
    return found


def memory_files(stored: Stored) -> MemoryFiles:
    """A partition directory with this one segment."""
    files = MemoryFiles()
    files.mkdir(TP.directory_name)
    files.create(f"{TP.directory_name}/{offset_file(stored.base, LOG_SUFFIX)}").close()
    files.write_file(f"{TP.directory_name}/{offset_file(stored.base, LOG_SUFFIX)}", stored.data)
    return files


def by_scan(stored: Stored, *, payload_from: int) -> list[Batch]:
    file = memory_files(stored).open(f"{TP.directory_name}/{offset_file(stored.base, LOG_SUFFIX)}")
    walk = Scan(
        file, SEED, position=0, end=len(stored.data), next_offset=stored.base, max_epoch=MAX_EPOCH, payload_from=payload_from
    )
    found = [Batch(walk.batch_position, header.base_offset, header.next_offset) for header in walk]
    assert (walk.problem is None) == (walk.position == len(stored.data))
    return found


def by_chunk(stored: Stored) -> int:
    """The position at which the walk of a fetch ends."""
    return walk_whole(stored.data, 0, len(stored.data), SEED, stored.base).end


def by_reader(stored: Stored, max_bytes: int) -> int:
    """Bytes that PartitionReader returns before the first problem, in reads of `max_bytes`."""
    files = memory_files(stored)
    open_files = OpenFiles(files, limit=2)
    segment = Segment(files, open_files, TP.directory_name, stored.base, SEED)
    segment.size_bytes, segment.next_offset = len(stored.data), FAR
    state = LogState([segment], ProducerStates("t-3", limit=1), LeaderEpochs(), stored.base, FAR, stored.base)
    core = PartitionCore("t-3", SEED, TopicConfig(index_interval_bytes=1_000), state)
    log_reader = PartitionReader(core, SEED, open_files, Refusals("", ManualClock()))
    at, taken = stored.base, 0
    while True:
        try:
            got = log_reader.read(at, max_bytes=max_bytes, until_offset=FAR, cached_only=False)
        except LogDamagedError:
            return taken
        if not got.chunks:
            return taken
        taken += got.size_bytes
        at = got.next_offset


def by_client(stored: Stored) -> list[Batch]:
    """The batches that a client reads from these bytes."""
    found, position = [], 0
    try:
        for header, data in walk_batches(pa.py_buffer(stored.data), SEED):
            found.append(Batch(position, header.base_offset, header.next_offset))
            position += data.size
    except (CorruptMessageError, UnsupportedVersionError):
        pass
    return found


def by_rebuild(stored: Stored) -> list[tuple[int, int]]:
    file = memory_files(stored).open(f"{TP.directory_name}/{offset_file(stored.base, LOG_SUFFIX)}")
    return [(header.base_offset, header.next_offset) for _, header in whole_batches(file, SEED, stored.base)]


def by_dump(stored: Stored, root: Path) -> list[Batch]:
    files = RealFiles(str(root))
    path = root / TP.directory_name
    path.mkdir(exist_ok=True)
    (path / offset_file(stored.base, LOG_SUFFIX)).write_bytes(stored.data)
    files.close()
    found = []
    for entry in describe_path(str(path / offset_file(stored.base, LOG_SUFFIX))):
        if entry["type"] == "problem":
            break
        if entry["type"] == "batch":
            found.append(Batch(entry["position"], entry["base_offset"], entry["last_offset"] + 1))
    return found


def by_walk(stored: Stored, durable_end: int) -> LogWalk:
    """The walk of recovery and doctor over a partition that was durable below `durable_end`."""
    files = memory_files(stored)
    entry = CheckpointEntry(stored.base, durable_end, stored.base, MAX_EPOCH)
    given = RecoveryInput(TP, "t-3", 4_096, 100, 0, entry, None, "")
    walk = LogWalk(files, OpenFiles(files, limit=2), given, {stored.base: len(stored.data)}, [], None, is_clean=False)
    walk.run()
    return walk


def disagreement(stored: Stored, rng: random.Random) -> str | None:
    """Name of a walker that disagrees with the oracle; None if all agree."""
    headers, whole_ones = oracle(stored, reads_payloads=False), oracle(stored, reads_payloads=True)
    end = headers[-1].position + _size_at(stored, headers[-1].position) if headers else 0
    if by_scan(stored, payload_from=FAR) != headers:
        return "scan"
    if by_scan(stored, payload_from=0) != whole_ones:
        return "scan with payloads"
    chunk = by_chunk(stored)
    if chunk != end and not _is_epoch_ahead(stored, end):  # a fetch has no maximum epoch
        return "chunk"
    if by_reader(stored, rng.choice((1, 600, 1 << 20))) != end and not _has_odd_epoch(stored, end):  # nor the epoch before
        return "reader"
    if by_client(stored)[: len(headers)] != headers:
        return "client"
    if by_rebuild(stored)[: len(headers)] != [(batch.first, batch.next) for batch in headers]:
        return "rebuild"
    last = whole_ones[-1].next if whole_ones else stored.base
    damaged = [one for one in by_walk(stored, last).damaged if one.reason != "the control batch cannot be read"]
    if any(one.first_offset < last for one in damaged):
        return "recovery and doctor"
    return None


def _size_at(stored: Stored, position: int) -> int:
    return decode_header(stored.data[position : position + 96]).size


def _is_epoch_ahead(stored: Stored, position: int) -> bool:
    head = stored.data[position : position + 96]
    return len(head) == 96 and decode_header(head).leader_epoch > MAX_EPOCH


def _has_odd_epoch(stored: Stored, position: int) -> bool:
    """True if the batch at `position` is bad only because of its leader epoch."""
    before = oracle(Stored(stored.base, stored.data[:position]), reads_payloads=False)
    offset = before[-1].next if before else stored.base
    return bool(oracle(Stored(offset, stored.data[position:]), reads_payloads=False)) or _is_epoch_ahead(stored, position)


def first_disagreement() -> str | None:
    """The first disagreement over SEGMENTS random segments; None if there is none."""
    for number in range(SEGMENTS):
        rng = random.Random(number)
        found = disagreement(random_segment(rng), rng)
        if found is not None:
            return f"segment {number}: {found}"
    return None


def test_all_agree() -> None:
    assert first_disagreement() is None


def test_dump_agrees(tmp_path: Path) -> None:
    for number in range(60):
        stored = random_segment(random.Random(number))
        wanted = oracle(stored, reads_payloads=True)
        found = by_dump(stored, tmp_path)
        assert found[: len(wanted)] == wanted
        assert len(found) == len(wanted) or _is_epoch_ahead(stored, found[len(wanted)].position)


def _without(rule: str) -> Callable[..., Walk]:
    """`walk_whole` without one of its checks."""

    def careless(data: bytes, at: int, end: int, seed: int, offset: int, *epochs: int, **wanted: Any) -> Walk:
        changed: tuple[Any, ...] = {
            "offset": (data, at, end, seed, None, *epochs),
            "epoch": (data, at, end, seed, offset),
            "crc": (data, at, end, None, offset, *epochs),
            "end": (data, at, 2**62, seed, offset, *epochs),
        }[rule]
        return walk_whole(*changed, **wanted)

    return careless


@pytest.mark.parametrize("rule", ["offset", "epoch", "crc"])
def test_a_scan_with_a_rule_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(scan, "walk_whole", _without(rule))
    assert first_disagreement() is not None


@pytest.mark.parametrize("rule", ["offset", "crc"])
def test_a_reader_with_a_rule_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(reader, "walk_whole", _without(rule))
    assert first_disagreement() is not None


def test_a_scan_that_passes_over_missing_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "walk_whole", _without("end"))
    with pytest.raises((AssertionError, struct.error)):
        assert first_disagreement() is None


def test_a_batch_covers_offsets_that_no_record_has() -> None:
    marker = encode_control(control_pb2.ControlRecord(), TP, timestamp_ms=0).payload.to_pybytes()
    parts = [
        stored_batch(0, 1, covers=100, payload=b"two records"),
        stored_batch(100, 1, covers=1, payload=marker, attributes=int(Attributes.CONTROL)),
        stored_batch(101, 1, covers=7, payload=b"one left"),
        stored_batch(108, 1, covers=1, payload=b"dense"),
    ]
    stored = Stored(0, b"".join(parts))
    wanted = [(0, 100), (100, 101), (101, 108), (108, 109)]
    assert [(batch.first, batch.next) for batch in by_scan(stored, payload_from=0)] == wanted
    assert [(batch.first, batch.next) for batch in by_client(stored)] == wanted
    assert by_rebuild(stored) == wanted
    for max_bytes in (1, 200, 1 << 20):
        assert by_reader(stored, max_bytes) == len(stored.data)
    walk = by_walk(stored, 109)
    assert walk.end == 109
    assert not walk.damaged


def test_a_chunk_is_walked_from_any_batch_and_below_any_offset() -> None:
    stored = Stored(0, b"".join(stored_batch(10 * n, 1, covers=10, payload=b"p" * 8) for n in range(5)))
    size = len(stored.data) // 5
    walk = walk_whole(stored.data, 0, len(stored.data), SEED, 0, wanted=25, until_offset=40)
    assert (walk.start, walk.end, walk.first_offset, walk.next_offset, walk.reached_until) == (2 * size, 4 * size, 20, 40, True)


def test_the_rule_s_header_is_the_one_that_produce_checks() -> None:
    rng = random.Random(1)
    good = stored_batch(0, 1, covers=1, payload=b"x" * 8)
    assert NO_PRODUCER.producer_id == decode_header(good).producer_id
    for _ in range(3_000):
        data = bytearray(good[:96])
        data[rng.randrange(96)] ^= 1 << rng.randrange(8)
        head = bytes(data)
        header = decode_header(head)
        refused = header_problem(header, head, SEED)
        walk = walk_whole(head, 0, FAR, SEED, None, -(2**31), only_headers=True)
        if walk.needed:
            assert header.header_size > 96
        else:
            assert (walk.problem is None) == (refused is None)
