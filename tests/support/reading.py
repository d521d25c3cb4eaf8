"""Reads of a topic under read_committed, and a reader that polls all the time. Only what was read is asserted."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.errors import BrokerdError, WireError
from brokerd.ids import TopicIdPartition

Rows = dict[tuple[int, int], tuple[bytes | None, bytes | None]]  # (partition, offset) -> (key, value)
_PAUSE_S = 0.02


def committed_rows(servers: str, topic: str) -> Rows:
    """All rows of a topic that are committed now."""
    config = ClientConfig(bootstrap_servers=servers)
    with BlockingClient(config) as client:
        return _read(client, servers, topic, {})


def _read(client: BlockingClient, servers: str, topic: str, starts: dict[int, int]) -> Rows:
    """The committed rows from `starts`, which is advanced."""
    view = client.metadata([topic]).topics[topic]
    tps = [TopicIdPartition(view.topic_id, number) for number in range(len(view.leaders))]
    ends = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    ranges = []
    for tp, end in ends.items():
        if isinstance(end, WireError):
            raise end
        start = starts.get(tp.partition, 0)
        if end.offset > start:
            ranges.append(FetchRange(tp, start, end.offset))
            starts[tp.partition] = end.offset
    rows: Rows = {}
    if ranges:
        with PartitionFetcher(client, ranges, ConsumerConfig(bootstrap_servers=servers)) as fetcher:
            for batch in fetcher:
                keys, values = (batch.arrow_batch.column(name).to_pylist() for name in ("key", "value"))
                for offset, key, value in zip(batch.offsets.to_pylist(), keys, values, strict=True):
                    rows[batch.tp.partition, offset] = (key, value)
    return rows


def committed_values(servers: str, topic: str) -> dict[int, list[bytes | None]]:
    """The values of each non-empty partition, in log order."""
    values: dict[int, list[bytes | None]] = {}
    for (partition, _), (_, value) in sorted(committed_rows(servers, topic).items()):
        values.setdefault(partition, []).append(value)
    return values


def by_key(rows: Rows) -> dict[bytes | None, list[bytes | None]]:
    """Values of each key in log order."""
    found: dict[bytes | None, list[bytes | None]] = {}
    for place in sorted(rows):
        key, value = rows[place]
        found.setdefault(key, []).append(value)
    return found


def values_of(rows: Rows) -> Counter[bytes | None]:
    """The number of occurrences of each value."""
    return Counter(value for _, value in rows.values())


class EagerReader:
    """Reads everything as soon as it is committed, in its own thread, through kills of the broker."""

    def __init__(self, servers: str, topic: str, *, pause_s: float = _PAUSE_S) -> None:
        self._servers = servers
        self._topic = topic
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eager reader")
        self.seen: Rows = {}
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        config = ClientConfig(bootstrap_servers=self._servers, api_timeout_ms=2_000)
        with BlockingClient(config) as client:
            starts: dict[int, int] = {}
            while not self._is_over.wait(self._pause_s):
                reached = dict(starts)
                with contextlib.suppress(BrokerdError):  # the broker is down
                    self.seen |= _read(client, self._servers, self._topic, reached)
                    starts = reached
                    self.looks += 1
