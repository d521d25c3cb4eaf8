"""The window of handled message ids of one `Consumer.process`, in memory or also in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from brokerd.arguments import checked_int
from brokerd.config.settings import INT32_MAX
from brokerd.consumer.core.message_ids import MessageId, Window, message_id
from brokerd.consumer.core.records import ConsumerRecord

if TYPE_CHECKING:
    from brokerd.consumer.processing.id_file import IdFile

WINDOW_MAX = 10_000_000
HEADER_MAX_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class DedupOptions:
    """How repeated messages are recognised. Raises TypeError and ValueError."""

    header: str | None = None  # None = not at all
    window: int = 100_000
    path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        checked_int(self.window, "dedup_window", minimum=1, maximum=WINDOW_MAX)
        if self.header is None:
            if self.path is not None:
                raise ValueError("dedup_path needs dedup_header: the name of the header that holds the ids of messages")
            return
        if not isinstance(self.header, str):
            raise TypeError(f"dedup_header must be the name of a header, not {self.header!r:.200}")
        if not 0 < len(self.header) <= HEADER_MAX_CHARACTERS:
            raise ValueError(f"dedup_header must have 1 to {HEADER_MAX_CHARACTERS} characters, it has {len(self.header)}")
        if self.path is not None and not isinstance(os.fspath(self.path), str):
            raise TypeError(f"dedup_path must be a path of text, not {self.path!r:.200}")


class Windows:
    """The ids that a consumer has handled so far: those of one header, the last one that was asked for."""

    def __init__(self) -> None:
        self._header = ""
        self._window = Window(INT32_MAX)

    def of(self, header: str, limit: int) -> Window:
        """The window of a header, with room for so many ids."""
        if header != self._header:
            self._header, self._window = header, Window(limit)
        self._window.limit_to(limit)
        return self._window


IdOf = Callable[[ConsumerRecord], MessageId | None]


class Known(NamedTuple):
    """The messages that were handled, as handlers' threads know them: not the file."""

    window: Window
    id_of: IdOf | None  # None = messages have no ids
    is_in_file: bool = False  # a message counts as handled once its id is written


NOTHING_KNOWN = Known(Window(1), None)


class Dedup:
    """Of one call. For the thread that made it."""

    def __init__(self, options: DedupOptions, windows: Windows, group_id: str) -> None:
        """Raises DedupFileError."""
        assert options.header is not None
        self._limit = options.window
        self._file: IdFile | None = None
        if options.path is None:
            window = windows.of(options.header, options.window)
        else:
            from brokerd.consumer.processing.id_file import IdFile  # brings sqlite3, which not every Python has

            self._file = IdFile(os.fspath(options.path), group_id)
            window = Window(options.window, self._file.load(options.window))
        self.known = Known(window, partial(message_id, header=options.header), self._file is not None)

    def write(self, numbered: Sequence[tuple[int, MessageId]]) -> None:
        """Makes these durable, if there is a file. Raises DedupFileError."""
        if self._file is not None:
            self._file.write(numbered, self._limit)

    def close(self) -> None:
        """Gives the file free."""
        if self._file is not None:
            self._file.close()
