"""Message ids given by senders, and the window of ids of messages handled without an error. Pure."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from brokerd.consumer.core.records import ConsumerRecord

# Longer ids are replaced by their digests, to bound the bytes of a window.
ID_MAX_BYTES = 64
_DIGEST_BYTES = 32
_DIGEST_PREFIX = b"blake2b of a longer id, 32 bytes: "  # makes it longer than any id kept as it is


class MessageId(NamedTuple):
    """A message's id, unique within its topic."""

    topic: str
    value: bytes


def message_id(record: ConsumerRecord, header: str) -> MessageId | None:
    """The id in the last header of this name; None if there is none, or it is empty."""
    for name, value in reversed(record.headers):
        if name == header:
            if not value:
                return None
            if len(value) > ID_MAX_BYTES:
                value = _DIGEST_PREFIX + hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
            return MessageId(record.topic, value)
    return None


class Window:
    """The newest handled ids, at most `limit`, numbered in the order of handling."""

    def __init__(self, limit: int, numbered: Iterable[tuple[int, MessageId]] = ()) -> None:
        """`numbered`: ids handled before, in ascending order of their numbers."""
        self._limit = limit
        self._numbers: dict[MessageId, int] = {}  # oldest first
        self._last_number = 0
        for number, one in numbered:
            self._keep(number, one)
        self._unwritten: deque[tuple[int, MessageId]] = deque(maxlen=limit)

    def __contains__(self, one: MessageId) -> bool:
        return one in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, one: MessageId) -> None:
        """Adds the id of a handled record."""
        if one not in self._numbers:
            self._keep(self._last_number + 1, one)
            self._unwritten.append((self._last_number, one))

    def _keep(self, number: int, one: MessageId) -> None:
        self._numbers[one] = self._last_number = number
        if len(self._numbers) > self._limit:
            del self._numbers[next(iter(self._numbers))]

    def limit_to(self, limit: int) -> None:
        """Changes the limit."""
        self._limit = limit
        excess = max(0, len(self._numbers) - limit)
        for one in list(itertools.islice(self._numbers, excess)):
            del self._numbers[one]
        self._unwritten = deque(self._unwritten, maxlen=limit)

    def unwritten(self) -> list[tuple[int, MessageId]]:
        """The ids added and not yet `written`, with their numbers."""
        return list(self._unwritten)

    def written(self, numbered: Iterable[tuple[int, MessageId]]) -> None:
        """Marks ids from `unwritten` as durable."""
        last = max((number for number, _ in numbered), default=0)
        while self._unwritten and self._unwritten[0][0] <= last:
            self._unwritten.popleft()
