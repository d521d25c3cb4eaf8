"""Measures the parts of an exactly-once write of a few rows, without Spark: the member, the rows, the decision, the markers. For
comparison: an empty call, and one synced append to a file.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.core.membership import MemberReport, Membership, TransactionEnd
from brokerd.producer.producer import Producer

CALL = "an empty call"
SYNC = "an append to a file, synced"
ROWS = "rows, acknowledged"
MEMBER_AND_ROWS = "member and rows"
EMPTY_COMMIT = "commit without rows: the decision alone"
COMMIT = "commit: decision and a marker in each partition"
_PARTS = (CALL, SYNC, ROWS, MEMBER_AND_ROWS, EMPTY_COMMIT, COMMIT)
_WARM_TURNS = 20
_APPENDED_BYTES = 512


class Stopwatch:
    """Collects the times of each part, in ms."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {part: [] for part in _PARTS}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times the block."""
        started = time.perf_counter()
        yield
        self._taken[name].append((time.perf_counter() - started) * 1_000)

    def medians(self) -> dict[str, float]:
        """The median of each part, without the first turns."""
        return {part: statistics.median(taken[_WARM_TURNS:]) for part, taken in self._taken.items()}


def measure_parts(servers: str, topic: str, *, rows: int, turns: int) -> dict[str, float]:
    """The median ms of each part over `turns` turns of `rows` rows."""
    name = f"bench-{uuid.uuid4().hex}"
    records = pa.record_batch({"key": [b"%d" % row for row in range(rows)], "value": [b"x" * 100] * rows})
    watch = Stopwatch()
    with (
        BlockingClient(ClientConfig(bootstrap_servers=servers)) as client,
        Producer(ProducerConfig(bootstrap_servers=servers)) as producer,
        tempfile.TemporaryFile() as file,
    ):
        for turn in range(turns + _WARM_TURNS):
            with watch.part(CALL):
                client.metadata([])  # never answered from a cache
            with watch.part(SYNC):
                file.write(b"x" * _APPENDED_BYTES)
                file.flush()
                os.fdatasync(file.fileno())
            with watch.part(ROWS):
                producer.send_batch(topic, records)
                producer.flush()
            with watch.part(MEMBER_AND_ROWS):
                producer.begin_member(Membership(name, 2 * turn, "execution", "run", "benchmark", uuid.uuid4().bytes))
                producer.send_batch(topic, records)
                report = producer.end_member()
            with watch.part(COMMIT):
                client.end_transaction(_commit(name, 2 * turn, report))
            with watch.part(EMPTY_COMMIT):
                client.end_transaction(_commit(name, 2 * turn + 1, None))
    return watch.medians()


def _commit(name: str, version: int, report: MemberReport | None) -> TransactionEnd:
    members = [] if report is None else [report]
    partitions = () if report is None else report.partitions
    return TransactionEnd(name, version, "execution", "run", is_commit=True, members=members, partitions=partitions)
