"""Hostile batches with correct CRCs: typed errors only, no crash, no memory beyond the limits.

Goal: neither the broker's check nor a reader's decoding trusts what a client claims. Method: thousands of seeded mutations
of good batches in a child process (a crash inside Arrow would end it), and decompression bombs whose length prefixes lie.
BROKERD_TEST_SCALE multiplies the mutations.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import CorruptMessageError
from brokerd.record.arrow_metadata import read_arrow_metadata, uncompressed_lengths
from brokerd.record.batch import RecordBatch, check_produced
from brokerd.record.schema import SCHEMA_0
from tests.support.hostile_records import UNCOMPRESSED_LIMIT_BYTES, good_batches, mutate
from tests.support.records import HEADER_BYTES, MAX_BYTES, SEED, body_at, header_of, key_values, new_batch, reseal
from tests.support.scale import TEST_SCALE

MUTATIONS = 10_000
BOMB_BYTES = 64 * 1_048_576
VALUE_BUFFER = 5


@pytest.mark.parametrize("seed", [20_001, 20_002])
def test_mutated_batches_never_crash_and_never_outgrow_the_limits(seed: int, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.hostile_records", str(seed), str(MUTATIONS * TEST_SCALE)]
    child = subprocess.run([*command, str(progress)], capture_output=True, text=True, check=False)
    assert child.returncode == 0, f"seed {seed}, mutation {progress.read_text()}: status {child.returncode}\n{child.stderr[-4000:]}"
    told = json.loads(child.stdout)
    # The run proves nothing unless mutations got past the shallow checks, into Arrow and through it.
    for outcome in ("broker passed, reader refused in Arrow", "broker passed, reader passed", "broker refused, reader refused"):
        assert told["outcomes"].get(outcome, 0) > MUTATIONS // 50, told
    assert told["arrow_bytes_max"] <= 2 * UNCOMPRESSED_LIMIT_BYTES
    assert told["rss_bytes_max"] < 300_000_000


def test_the_same_seed_makes_the_same_mutations() -> None:
    def some() -> list[bytes]:
        rng = random.Random(7)
        return [mutate(rng, rng.choice(good_batches())).to_pybytes() for _ in range(50)]

    assert some() == some()


def decode_in_child(batches: list[pa.Buffer], directory: Path) -> list[dict[str, Any]]:
    """The outcomes of each batch in a new process, and Arrow's peak memory so far."""
    files = [directory / f"{number}.batch" for number in range(len(batches))]
    for file, data in zip(files, batches, strict=True):
        file.write_bytes(data.to_pybytes())
    command = [sys.executable, "-m", "tests.support.decode_batches", str(UNCOMPRESSED_LIMIT_BYTES), *map(str, files)]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in child.stdout.splitlines()]


def bomb(codec: str, prefix: int | None, *, agreeing: bool) -> pa.Buffer:
    """A batch whose value buffer decompresses to BOMB_BYTES. `prefix` replaces its length prefix (None: unchanged). The header's
    uncompressed_bytes is the sum of all prefixes if `agreeing`, otherwise half the limit.
    """
    data = new_batch(key_values([bytes(BOMB_BYTES)]), codec)
    payload = bytearray(data.to_pybytes()[HEADER_BYTES:])
    metadata = read_arrow_metadata(memoryview(payload))
    if prefix is not None:
        struct.pack_into("<q", payload, metadata.body_at + metadata.buffers[VALUE_BUFFER][0], prefix)
    claimed = UNCOMPRESSED_LIMIT_BYTES // 2
    if agreeing:
        claimed = sum(uncompressed_lengths(metadata, memoryview(payload))) % 2**32
    return reseal(header_of(data)._replace(uncompressed_bytes=claimed), bytes(payload))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_bombs_are_refused_within_the_reader_s_limit(codec: str, tmp_path: Path) -> None:
    half = UNCOMPRESSED_LIMIT_BYTES // 2
    prefixes = [None, 0, 1, 1_000, half, BOMB_BYTES - 1, 2**31, 2**62, 2**63 - 1]
    bombs = [bomb(codec, prefix, agreeing=agreeing) for prefix in prefixes for agreeing in (True, False)]
    assert max(data.size for data in bombs) < BOMB_BYTES / 100
    for told in decode_in_child(bombs, tmp_path):
        assert told["reader"] == "CORRUPT_MESSAGE"
        assert told["bytes_max"] <= UNCOMPRESSED_LIMIT_BYTES


def test_the_broker_never_decompresses_and_the_reader_is_seen_to(tmp_path: Path) -> None:
    rows = key_values([bytes(UNCOMPRESSED_LIMIT_BYTES // 2)])
    for told in decode_in_child([new_batch(rows, "lz4")], tmp_path):
        assert (told["broker"], told["reader"]) == ("passed", "passed")
        assert told["broker_bytes_max"] < 10_000
        assert told["bytes_max"] >= UNCOMPRESSED_LIMIT_BYTES // 2


def legacy_message(codec: str) -> bytes:
    """A payload compressed as by Arrow 0.17: metadata version 4, the codec in the message's custom metadata."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA_0.arrow)
    writer.write_batch(key_values([b"x" * 64]), custom_metadata={"ARROW:experimental_compression": codec})
    schema_bytes = SCHEMA_0.arrow.serialize().size
    payload = bytearray(sink.getvalue().to_pybytes()[schema_bytes:])
    message = 8 + struct.unpack_from("<I", payload, 8)[0]
    vtable = message - struct.unpack_from("<i", payload, message)[0]
    version_at = message + struct.unpack_from("<H", payload, vtable + 4)[0]
    assert struct.unpack_from("<h", payload, version_at)[0] == 4
    struct.pack_into("<h", payload, version_at, 3)
    value_at = payload.find(b"x" * 64, body_at(bytes(payload)))
    struct.pack_into("<q", payload, value_at, 3 << 30)
    return bytes(payload)


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD", "lz4"])
def test_a_codec_hidden_in_custom_metadata_is_refused(codec: str) -> None:
    payload = legacy_message(codec)
    header = header_of(new_batch(key_values([b"x"])))
    data = reseal(header, payload)
    with pytest.raises(CorruptMessageError, match="metadata version 4"):
        check_produced(data, SEED, max_message_bytes=MAX_BYTES)
    with pytest.raises(CorruptMessageError, match="metadata version 4"):
        RecordBatch(header_of(data), data).to_arrow(max_uncompressed_bytes=UNCOMPRESSED_LIMIT_BYTES)


def test_custom_metadata_is_refused() -> None:
    payload = bytearray(legacy_message("ZSTD"))
    message = 8 + struct.unpack_from("<I", payload, 8)[0]
    vtable = message - struct.unpack_from("<i", payload, message)[0]
    struct.pack_into("<h", payload, message + struct.unpack_from("<H", payload, vtable + 4)[0], 4)
    with pytest.raises(CorruptMessageError, match="custom metadata"):
        read_arrow_metadata(memoryview(payload))


def test_more_records_than_the_buffers_can_hold_are_refused_by_the_broker() -> None:
    data = new_batch(key_values([None]))
    payload = data.to_pybytes()[HEADER_BYTES:]
    claimed = 2**31 - 1
    # Raises every count of 1 to 2^31-1: the message's length and its nodes.
    hollow = payload[: body_at(payload)].replace(struct.pack("<q", 1), struct.pack("<q", claimed)) + payload[body_at(payload) :]
    header = header_of(data)._replace(record_count=claimed, last_offset_delta=claimed - 1)
    with pytest.raises(CorruptMessageError, match="Arrow"):
        check_produced(reseal(header, hollow), SEED, max_message_bytes=MAX_BYTES)
