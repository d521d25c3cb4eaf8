"""A topic in memory, for tests of the source's planning: batches with sizes, an undecided tail, added partitions.

`ModelClient` answers OffsetReader without a process, a port or a thread. No assertions here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from brokerd.client.metadata import Metadata
from brokerd.client.offsets import (
    READ_COMMITTED,
    AfterBytes,
    GivenOffset,
    OffsetAndTimestamp,
    OffsetSpec,
    Wanted,
)
from brokerd.errors import UnsupportedVersionError
from brokerd.ids import TopicIdPartition, TopicInfo

TOPIC_ID = bytes(range(16))
TOPIC = "events"


class ModelPartition:
    """Batches as (base offset, next offset, bytes)."""

    def __init__(self, log_start_offset: int = 0) -> None:
        self.batches: list[tuple[int, int, int]] = []
        self.log_start_offset = log_start_offset
        self.last_stable_offset = log_start_offset  # read_committed readers see offsets below it

    @property
    def end_offset(self) -> int:
        """The log end."""
        return self.batches[-1][1] if self.batches else self.log_start_offset

    def append(self, records: int, size_bytes: int) -> None:
        """Appends one batch, undecided."""
        self.batches.append((self.end_offset, self.end_offset + records, size_bytes))

    def decide(self) -> None:
        """Decides all batches: the last stable offset moves to the log end."""
        self.last_stable_offset = self.end_offset

    def bytes_between(self, begin: int, until: int) -> list[int]:
        """Sizes of the batches that a read of this range fetches."""
        return [size for base, after, size in self.batches if after > begin and base < until]

    def reach(self, wanted: AfterBytes) -> tuple[int, int]:
        """The broker's answer to AfterBytes: an offset, and the size in bytes up to it."""
        end = size_bytes = 0
        for base, after, size in self.batches:
            if after > wanted.from_offset and base < wanted.until_offset:
                if size_bytes and size_bytes + size > wanted.max_bytes:
                    return end, size_bytes
                end, size_bytes = min(after, wanted.until_offset), size_bytes + size
        return wanted.until_offset, size_bytes


class ModelClient:
    """The calls of BlockingClient that planning makes."""

    def __init__(self, partitions: Sequence[ModelPartition]) -> None:
        self.partitions = list(partitions)
        self.while_waiting: Callable[[], None] = lambda: None  # called while a query is idle
        self.loop_thread = SimpleNamespace(submit=_recorded)
        self.broker_client = SimpleNamespace()

    @contextlib.contextmanager
    def lease(self, _config: object) -> Iterator[ModelClient]:
        """Replaces lease_client."""
        yield self

    def metadata(self, _topics: Sequence[str] | None = None, _known: object = None) -> Metadata:
        """Metadata of the one topic."""
        return Metadata({}, {TOPIC: TopicInfo(TOPIC_ID, (0,) * len(self.partitions), name=TOPIC)})

    def list_offsets(
        self, wanted: Mapping[TopicIdPartition, Wanted], isolation: str = READ_COMMITTED, _positions: object = None
    ) -> dict[TopicIdPartition, OffsetAndTimestamp]:
        """Log starts and ends, given offsets, and answers to AfterBytes."""
        return {tp: self._offset(self.partitions[tp.partition], one, isolation) for tp, one in wanted.items()}

    def wait_for_records(self, _ends: object, _isolation: str, *, timeout_ms: int) -> None:
        """Calls `while_waiting`."""
        self.while_waiting()

    def _offset(self, partition: ModelPartition, wanted: Wanted, isolation: str) -> OffsetAndTimestamp:
        if wanted is OffsetSpec.EARLIEST:
            return OffsetAndTimestamp(partition.log_start_offset)
        if wanted is OffsetSpec.LATEST:
            latest = partition.last_stable_offset if isolation == READ_COMMITTED else partition.end_offset
            return OffsetAndTimestamp(latest, log_start_offset=partition.log_start_offset)
        if isinstance(wanted, GivenOffset):
            return OffsetAndTimestamp(wanted.offset)
        if isinstance(wanted, AfterBytes):
            offset, size_bytes = partition.reach(wanted)
            return OffsetAndTimestamp(offset, size_bytes=size_bytes)
        raise UnsupportedVersionError(f"{wanted} is not in this model")


def _recorded(commit: Coroutine[Any, Any, Any]) -> SimpleNamespace:
    commit.close()
    return SimpleNamespace(has_ended=True, outcome=dict)
