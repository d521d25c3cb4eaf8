"""Keeps the ids of handled messages in a file, so that they survive a crash. The file is a SQLite database, which stays intact
after a kill or a power loss at any point. Only one connection may have it open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence

from brokerd.consumer.processing.dedup import MessageId
from brokerd.errors import DedupFileError

_APPLICATION_ID = 0x62726B69  # "brki"
_FORMAT = 1
_BUSY_TIMEOUT_S = 1.0  # for a predecessor that is about to exit
_SCHEMA = (
    "CREATE TABLE handled (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, id BLOB NOT NULL)",
    "CREATE TABLE reader (group_id TEXT NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT}",
)


class IdFile:
    """Only its creating thread may use it. All methods raise DedupFileError."""

    def __init__(self, path: str, group_id: str) -> None:
        """Opens or creates the file, which belongs to the consumers of `group_id`."""
        self._path = os.path.abspath(path)
        with self._explained():
            # isolation_level=None: this module begins and ends transactions itself.
            self._database = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        try:
            with self._explained():
                self._prepare(group_id)
            self._files = self._files_now()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self, group_id: str) -> None:
        execute = self._database.execute
        self._refuse_others()  # before any change to the file
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")  # a commit is on disk once it returns
        with self._transaction():  # takes the exclusive lock, held until close
            if self._is_empty():
                for statement in _SCHEMA:
                    execute(statement)
                execute("INSERT INTO reader VALUES (?)", (group_id,))
        (damage,) = execute("PRAGMA quick_check(1)").fetchone()
        if damage != "ok":
            problem = " ".join(f"it is damaged: {damage}".split())
            raise self._error(problem, "delete it: messages recorded in it are handled again if they are redelivered")
        (owner,) = execute("SELECT group_id FROM reader").fetchone()
        if owner != group_id:
            problem = f"it holds what group.id '{owner}' has handled, this consumer's is '{group_id}'"
            raise self._error(problem, "give a path of its own")

    def _refuse_others(self) -> None:
        (application_id,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if application_id != _APPLICATION_ID and not self._is_empty():
            raise self._error("it is another program's file", "give a path of its own")
        if version > _FORMAT:
            raise self._error(f"its format is {version}, and this version reads {_FORMAT}", "use the version that wrote it")

    def _is_empty(self) -> bool:
        (count,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return bool(count == 0)

    def load(self, limit: int) -> list[tuple[int, MessageId]]:
        """The newest ids, in ascending order of their numbers."""
        with self._explained():
            newest = self._database.execute("SELECT number, topic, id FROM handled ORDER BY number DESC LIMIT ?", (limit,))
            return [(number, MessageId(topic, value)) for number, topic, value in newest.fetchall()[::-1]]

    def write(self, numbered: Sequence[tuple[int, MessageId]], limit: int) -> None:
        """Adds ids, durably on return, and deletes all but the newest `limit`. Idempotent for the same numbers. First checks, even
        without ids, that the file still exists: writes to a removed one are lost."""
        if self._files_now() != self._files:
            problem = "it, or its write-ahead log (-wal), was removed or replaced while it was open"
            raise self._error(problem, "restore it: without it, messages recorded in it are handled again if they are redelivered")
        if not numbered:
            return
        rows = [(number, one.topic, one.value) for number, one in numbered]
        with self._explained(), self._transaction():
            self._database.executemany("INSERT OR REPLACE INTO handled VALUES (?, ?, ?)", rows)
            self._database.execute("DELETE FROM handled WHERE number <= ?", (numbered[-1][0] - limit,))

    def _files_now(self) -> list[tuple[int, int]]:
        """Identities of the files now at the paths of the database and its write-ahead log, which holds the newest ids."""
        try:
            found = [os.stat(path) for path in (self._path, os.path.realpath(self._path) + "-wal")]
        except OSError:
            return []
        return [(one.st_dev, one.st_ino) for one in found]

    def close(self) -> None:
        """Closes the file and releases its lock."""
        with self._explained():
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN EXCLUSIVE")  # inside the try: an interrupt may strike right after it
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Compare the low byte only: another process may be recovering the file after a crash (SQLITE_BUSY_RECOVERY).
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise self._error(
                    "another process, or another consumer of this one, has it open", "give each a file of its own"
                ) from None
            advice = "check the disk's free space and the file's permissions; deleting the file forgets which messages were handled"
            raise self._error(str(error), advice) from error

    def _error(self, problem: str, advice: str) -> DedupFileError:
        return DedupFileError(f"dedup_path '{self._path}': {problem}: {advice}")
