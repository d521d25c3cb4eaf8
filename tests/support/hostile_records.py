"""Makes hostile record batches from good ones: mutated payloads and headers with correct CRCs. Run as a child process, so that a
crash inside Arrow is seen without ending the tests:

    python -m tests.support.hostile_records SEED COUNT PROGRESS_FILE

The progress file holds the number of the current mutation. A seed always gives the same mutations."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from collections import Counter
from typing import Any

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.record.arrow_metadata import read_arrow_metadata, uncompressed_lengths
from brokerd.record.batch import RecordBatch, check_produced, walk_batches
from brokerd.record.header import BatchHeader
from tests.support.child import resident_bytes
from tests.support.records import HEADER_BYTES, MAX_BYTES, SAMPLE, SEED, TP, body_at, header_of, key_values, new_batch, reseal

UNCOMPRESSED_LIMIT_BYTES = 1_048_576
_NUMBERS = (0, 1, -1, 2, 7, 8, 63, 64, 255, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63))


def good_batches() -> list[pa.Buffer]:
    """The batches that mutations start from: every codec, small and larger, with headers."""
    larger = key_values(
        [b"value-%d" % (i % 7) * (i % 5) for i in range(200)],
        keys=[b"k%d" % (i % 3) if i % 4 else None for i in range(200)],
        headers=[[("h", b"x"), ("é", None)] if i % 3 else None for i in range(200)],
    )
    return [new_batch(rows, codec) for rows in (SAMPLE, larger) for codec in ("none", "lz4", "zstd")]


def mutate(rng: random.Random, good: pa.Buffer, tp: TopicIdPartition = TP) -> pa.Buffer:
    """A mutated batch with correct CRCs. Mostly its header agrees with what the payload now claims."""
    header = header_of(good)
    payload = bytearray(good.to_pybytes()[HEADER_BYTES:])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_MUTATIONS)(rng, payload)
    header = header._replace(batch_length=len(payload))
    if rng.random() < 0.8:
        header = _agreeing(header, bytes(payload))
    if rng.random() < 0.1:
        field = rng.choice(("record_count", "last_offset_delta", "uncompressed_bytes", "attributes"))
        changed: dict[str, Any] = {field: rng.choice(_NUMBERS) & 0x7FFF}
        header = header._replace(**changed)
    return reseal(header, bytes(payload), tp)


def _agreeing(header: BatchHeader, payload: bytes) -> BatchHeader:
    """The header with the counts and sizes that the payload claims, so that shallow checks do not end every run."""
    view = memoryview(payload)
    try:
        metadata = read_arrow_metadata(view)
        claimed = sum(uncompressed_lengths(metadata, view))
    except WireError:
        return header
    if not (0 < metadata.rows < 2**31 and claimed < 2**32):
        return header
    return header._replace(record_count=metadata.rows, last_offset_delta=metadata.rows - 1, uncompressed_bytes=claimed)


def _place(rng: random.Random, payload: bytearray, size: int) -> int:
    """Where to change `size` bytes: in the metadata as often as in the body, at a multiple of `size`."""
    end = min(body_at(bytes(payload)), len(payload)) if len(payload) >= 8 and rng.random() < 0.5 else len(payload)
    return rng.randrange(max(1, end // size)) * size


def _flip_bit(rng: random.Random, payload: bytearray) -> None:
    if payload:
        payload[_place(rng, payload, 1)] ^= 1 << rng.randrange(8)


def _set_number(rng: random.Random, payload: bytearray) -> None:
    code, size = rng.choice((("<q", 8), ("<i", 4), ("<h", 2)))
    if len(payload) < size:
        return
    number = rng.choice(_NUMBERS) + rng.choice((0, 0, 1, -1))
    wrapped = (number + 2 ** (8 * size - 1)) % 2 ** (8 * size) - 2 ** (8 * size - 1)
    struct.pack_into(code, payload, min(_place(rng, payload, size), len(payload) - size), wrapped)


def _nudge_number(rng: random.Random, payload: bytearray) -> None:
    if len(payload) >= 4:
        at = min(_place(rng, payload, 4), len(payload) - 4)
        value = struct.unpack_from("<I", payload, at)[0] + rng.choice((-8, -4, -1, 1, 4, 8, 64))
        struct.pack_into("<I", payload, at, value % 2**32)


def _copy_words(rng: random.Random, payload: bytearray) -> None:
    length = 8 * rng.randrange(1, 5)
    if len(payload) > length:
        source, target = (rng.randrange((len(payload) - length) // 8 + 1) * 8 for _ in range(2))
        payload[target : target + length] = payload[source : source + length]


def _cut_or_grow(rng: random.Random, payload: bytearray) -> None:
    """Changes the length, and the body length accordingly, so that Arrow is reached at all."""
    before = len(payload) - body_at(bytes(payload)) if len(payload) >= 8 else 0
    words = rng.choice((-8, -2, -1, 1, 2, 8))
    if words < 0:
        del payload[8 * words :]
    else:
        payload += rng.randbytes(8 * words)
    at = payload.find(struct.pack("<q", before))
    if at >= 0:
        struct.pack_into("<q", payload, at, max(0, before + 8 * words))


_MUTATIONS = (_flip_bit, _flip_bit, _set_number, _set_number, _nudge_number, _nudge_number, _copy_words, _cut_or_grow)


def try_one(data: pa.Buffer) -> str:
    """The verdict of broker and reader on a batch. Raises any error that is not a WireError."""
    broker = "passed"
    try:
        check_produced(data, SEED, max_message_bytes=MAX_BYTES)
    except WireError:
        broker = "refused"
    for batch in walk_batches(data, SEED):
        try:
            columns = RecordBatch(batch.header, batch.data).to_arrow(max_uncompressed_bytes=UNCOMPRESSED_LIMIT_BYTES)
        except WireError as error:
            return f"broker {broker}, reader refused" + (" in Arrow" if "malformed" in error.message else "")
        # Use valid columns as a reader would: touch every value (timestamps as numbers: any int64 is one).
        columns.set_column(3, "timestamp", columns.column(3).cast(pa.int64())).to_pylist()
        columns.take(pa.array([columns.num_rows - 1, 0]))
    return f"broker {broker}, reader passed"


def main() -> int:
    """Runs the mutations; prints the count of each outcome and the peak memory as JSON."""
    seed, count, progress = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rng = random.Random(seed)
    batches = good_batches()
    descriptor = os.open(progress, os.O_WRONLY | os.O_CREAT, 0o600)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        os.pwrite(descriptor, b"%12d" % number, 0)
        outcomes[try_one(mutate(rng, rng.choice(batches)))] += 1
    held = {"arrow_bytes_max": pa.default_memory_pool().max_memory(), "rss_bytes_max": resident_bytes(most=True)}
    print(json.dumps({"outcomes": outcomes, **held}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
