"""Ids that senders gave to their messages, and the window of those that were handled, each without an error. Pure."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from brokerd.consumer.core.records import ConsumerRecord

# Longer ids are kept as their digests, so that a window has a bound in bytes too.
ID_MAX_BYTES = 64
_DIGEST_BYTES = 32
_DIGEST_PREFIX = b"blake2b of a longer id, 32 bytes: "  # makes it longer than an id that is kept as it is


class MessageId(NamedTuple):
    """Ids of one topic say nothing about those of another."""

    topic: str
    value: bytes


def message_id(record: ConsumerRecord, header: str) -> MessageId | None:
    """The id in a header of that name, the last one if there are several; None if there is none, or an empty one."""
    for name, value in reversed(record.headers):
        if name == header:
            if not value:
                return None
            if len(value) > ID_MAX_BYTES:
                value = _DIGEST_PREFIX + hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
            return MessageId(record.topic, value)
    return None


class Window:
    """The newest ids that were handled, at most `limit`, numbered in the order in which they were."""

    def __init__(self, limit: int, numbered: Iterable[tuple[int, MessageId]] = ()) -> None:
        """`numbered`: ids of before, with rising numbers."""
        self._limit = limit
        self._numbers: dict[MessageId, int] = {}  # the oldest first
        self._last_number = 0
        for number, one in numbered:
            self._keep(number, one)
        self._unwritten: deque[tuple[int, MessageId]] = deque(maxlen=limit)

    def __contains__(self, one: MessageId) -> bool:
        return one in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, one: MessageId) -> None:
        """A record of this id was handled."""
        if one not in self._numbers:
            self._keep(self._last_number + 1, one)
            self._unwritten.append((self._last_number, one))

    def _keep(self, number: int, one: MessageId) -> None:
        self._numbers[one] = self._last_number = number
        if len(self._numbers) > self._limit:
            del self._numbers[next(iter(self._numbers))]

    def limit_to(self, limit: int) -> None:
        """Keeps so many from now on."""
        self._limit = limit
        excess = max(0, len(self._numbers) - limit)
        for one in list(itertools.islice(self._numbers, excess)):
            del self._numbers[one]
        self._unwritten = deque(self._unwritten, maxlen=limit)

    def unwritten(self) -> list[tuple[int, MessageId]]:
        """Those that were added and not `written` yet, with their numbers."""
        return list(self._unwritten)

    def written(self, numbered: Iterable[tuple[int, MessageId]]) -> None:
        """These, which `unwritten` gave, will be known after a death too."""
        last = max((number for number, _ in numbered), default=0)
        while self._unwritten and self._unwritten[0][0] <= last:
            self._unwritten.popleft()
