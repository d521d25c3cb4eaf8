"""Message ids given by senders, and the window of ids of messages handled by `Consumer.process`, in memory and maybe in a file."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from brokerd.arguments import checked_int
from brokerd.consumer.core.records import ConsumerRecord

if TYPE_CHECKING:
    from brokerd.consumer.processing.id_file import IdFile

WINDOW_MAX = 10_000_000
HEADER_MAX_CHARACTERS = 1_000
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


class DedupWindow:
    """The newest handled ids, at most `limit`, numbered in the order of handling."""

    def __init__(self, limit: int, numbered: Iterable[tuple[int, MessageId]] = ()) -> None:
        """`numbered`: ids handled before, in ascending order of their numbers."""
        self._limit = limit
        self._numbers: OrderedDict[MessageId, int] = OrderedDict()  # oldest first
        self._last_number = 0
        for number, one in numbered:
            self._keep(number, one)
        self._last_written = self._last_number

    def __contains__(self, one: MessageId) -> bool:
        return one in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, one: MessageId) -> None:
        """Adds the id of a handled record."""
        if one not in self._numbers:
            self._keep(self._last_number + 1, one)

    def _keep(self, number: int, one: MessageId) -> None:
        self._numbers[one] = self._last_number = number
        if len(self._numbers) > self._limit:
            self._numbers.popitem(last=False)  # a dict would search past all ids removed before

    def limit_to(self, limit: int) -> None:
        """Changes the limit."""
        self._limit = limit
        excess = max(0, len(self._numbers) - limit)
        for one in list(itertools.islice(self._numbers, excess)):
            del self._numbers[one]

    def unwritten(self) -> list[tuple[int, MessageId]]:
        """The ids added and not yet `written`, with their numbers."""
        # Numbers rise in the order of the ids, so the unwritten ids are at the end.
        newest_first = ((number, one) for one, number in reversed(self._numbers.items()))
        return list(itertools.takewhile(lambda numbered: numbered[0] > self._last_written, newest_first))[::-1]

    def written(self, numbered: Sequence[tuple[int, MessageId]]) -> None:
        """Marks ids from `unwritten` as durable."""
        if numbered:
            self._last_written = numbered[-1][0]


def check_dedup(header: str | None, window: int, path: str | os.PathLike[str] | None) -> None:
    """Checks how duplicate messages are to be recognised; `header` None = not at all. Raises TypeError and ValueError."""
    checked_int(window, "dedup_window", minimum=1, maximum=WINDOW_MAX)
    if header is None:
        if path is not None:
            raise ValueError("dedup_path needs dedup_header: the name of the header that holds the ids of messages")
        return
    if not isinstance(header, str):
        raise TypeError(f"dedup_header must be the name of a header, not {header!r:.200}")
    if not 0 < len(header) <= HEADER_MAX_CHARACTERS:
        raise ValueError(f"dedup_header must have 1 to {HEADER_MAX_CHARACTERS} characters, it has {len(header)}")
    if path is not None and not isinstance(os.fspath(path), str):
        raise TypeError(f"dedup_path must be a path of text, not {path!r:.200}")


class Dedup:
    """The handled messages that one call knows; without a header, no message has an id. Only its creating thread may use it."""

    def __init__(
        self, header: str | None, limit: int, path: str | os.PathLike[str] | None, group_id: str, before: Dedup | None
    ) -> None:
        """`before`: of an earlier call of this consumer; its window is kept if the header is the same and there is no file. Raises
        DedupFileError."""
        self.header = header
        self._limit = limit
        self._file: IdFile | None = None
        self.id_of = None if header is None else partial(message_id, header=header)
        self.window = DedupWindow(limit)
        if path is not None:
            from brokerd.consumer.processing.id_file import IdFile  # imports sqlite3, which not every Python has

            self._file = IdFile(os.fspath(path), group_id)
            self.window = DedupWindow(limit, self._file.load(limit))
        elif before is not None and before.header == header:
            self.window = before.window
            self.window.limit_to(limit)

    @property
    def is_in_file(self) -> bool:
        """True if a message counts as handled only once its id is written."""
        return self._file is not None

    def write(self, numbered: Sequence[tuple[int, MessageId]]) -> None:
        """Makes these ids durable, if there is a file. Raises DedupFileError."""
        if self._file is not None:
            self._file.write(numbered, self._limit)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
