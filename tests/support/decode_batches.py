"""Decodes batches in its own process, to measure the memory that decoding takes:

    python -m tests.support.decode_batches LIMIT_BYTES FILE...

Prints a JSON line per file: the outcomes, and Arrow's peak memory so far."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.record.batch import RecordBatch, check_produced
from tests.support.records import MAX_BYTES, SEED, header_of


def main() -> int:
    """Checks each batch as the broker does, then decodes it as a reader does."""
    limit_bytes = int(sys.argv[1])
    pool = pa.default_memory_pool()
    for name in sys.argv[2:]:
        data = pa.py_buffer(Path(name).read_bytes())
        try:
            check_produced(data, SEED, max_message_bytes=MAX_BYTES)
            broker = "passed"
        except WireError as error:
            broker = error.code.name
        broker_bytes = pool.max_memory()
        try:
            RecordBatch(header_of(data), data).to_arrow(max_uncompressed_bytes=limit_bytes)
            reader = "passed"
        except WireError as error:
            reader = error.code.name
        print(json.dumps({"broker": broker, "broker_bytes_max": broker_bytes, "reader": reader, "bytes_max": pool.max_memory()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
