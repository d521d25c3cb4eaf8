"""The cost of going over batches, as recovery, doctor and every fetch do: nanoseconds a batch, one thread's CPU time, of the walk
over bytes, of a client's walk over what it fetched, and of a scan of a file that is cached, without and with its payloads' CRCs.

    python -m benchmarks.walks
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pyarrow as pa

from brokerd.ids import TopicIdPartition
from brokerd.record.batch import walk_batches
from brokerd.record.header import crc_seed, encode_header, new_header, stamp
from brokerd.record.whole import NO_OFFSET_LIMIT, walk_whole
from brokerd.storage.files import File, RealFiles
from brokerd.storage.scan import Scan

PAYLOADS = {200: 4_000, 4_096: 1_000, 65_536: 64, 1_048_576: 20}  # bytes: batches
REPEATS = 9
_SEED = crc_seed(TopicIdPartition(bytes(16), 0))


def batches(payload: bytes, count: int) -> bytes:
    """So many batches of a record each, as they lie in a segment."""
    header = new_header(
        batch_length=len(payload),
        payload_crc=google_crc32c.value(payload),
        record_count=1,
        base_timestamp=1,
        max_timestamp=1,
        uncompressed_bytes=len(payload),
    )
    encoded = encode_header(header, _SEED)
    return b"".join(
        stamp(encoded, base_offset=offset, append_timestamp=1, leader_epoch=1, is_log_append_time=False, seed=_SEED) + payload
        for offset in range(count)
    )


def scan(file: File, end: int, payload_from: int) -> None:
    """Every header of the file."""
    for _ in Scan(file, _SEED, position=0, end=end, next_offset=0, payload_from=payload_from):
        pass


def best_ns(work: Callable[[], object]) -> int:
    """The shortest of some runs."""
    taken = []
    for _ in range(REPEATS):
        start = time.thread_time_ns()
        work()
        taken.append(time.thread_time_ns() - start)
    return min(taken)


def main() -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory(prefix="brokerd-bench-") as directory:
        files = RealFiles(directory)
        for payload_bytes, count in PAYLOADS.items():
            data = batches(os.urandom(payload_bytes), count)
            (Path(directory) / "segment").write_bytes(data)
            file = files.open("segment")
            works: dict[str, Callable[[], object]] = {
                "walk": lambda: walk_whole(data, 0, len(data), _SEED, 0),  # noqa: B023
                "walk, decoded": lambda: list(walk_batches(pa.py_buffer(data), _SEED)),  # noqa: B023
                "scan": lambda: scan(file, len(data), NO_OFFSET_LIMIT),  # noqa: B023
                "scan with payloads": lambda: scan(file, len(data), 0),  # noqa: B023
            }
            for name, work in works.items():
                print(f"{payload_bytes:9} bytes, {name:20} {best_ns(work) / count:10.0f} ns a batch")
            file.close()
        files.close()


if __name__ == "__main__":
    main()
