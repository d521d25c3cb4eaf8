"""The window of handled message ids of one `Consumer.process`, in memory and optionally in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from brokerd.arguments import checked_int
from brokerd.consumer.core.message_ids import MessageId, Window, message_id

if TYPE_CHECKING:
    from brokerd.consumer.processing.id_file import IdFile

WINDOW_MAX = 10_000_000
HEADER_MAX_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class DedupOptions:
    """How duplicate messages are recognised. Raises TypeError and ValueError."""

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


class Dedup:
    """The handled messages that one call knows; without a header, no message has an id. Only its creating thread may use it."""

    def __init__(self, options: DedupOptions, group_id: str, before: Dedup | None) -> None:
        """`before`: of an earlier call of this consumer; its window is kept if the header is the same and there is no file. Raises
        DedupFileError."""
        self.options = options
        self._file: IdFile | None = None
        self.id_of = None if options.header is None else partial(message_id, header=options.header)
        self.window = Window(options.window)
        if options.path is not None:
            from brokerd.consumer.processing.id_file import IdFile  # imports sqlite3, which not every Python has

            self._file = IdFile(os.fspath(options.path), group_id)
            self.window = Window(options.window, self._file.load(options.window))
        elif before is not None and before.options.header == options.header:
            self.window = before.window
            self.window.limit_to(options.window)

    @property
    def is_in_file(self) -> bool:
        """True if a message counts as handled only once its id is written."""
        return self._file is not None

    def write(self, numbered: Sequence[tuple[int, MessageId]]) -> None:
        """Makes these ids durable, if there is a file. Raises DedupFileError."""
        if self._file is not None:
            self._file.write(numbered, self.options.window)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
