"""The transaction log: one of the broker's own (own_log.py). An entry is a TransactionLogRecord under its transactional id, and
what takes the place of a log that has grown is a snapshot (brokerd/transaction/snapshot.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.clock import Clock
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.own_entries import values_of
from brokerd.datadir.topic_store import TRANSACTION_STATE
from brokerd.errors import DataDirectoryError
from brokerd.record.batch import RecordBatch
from brokerd.server.admin import Admin
from brokerd.server.own_log import READ_ERRORS, OwnLog, Record
from brokerd.server.replica_manager import ReplicaManager
from brokerd.transaction.log_records import decode_entry, record_of
from brokerd.transaction.model import EntriesLost, LogEntry, StateBegins, StateEnds
from brokerd.transaction.snapshot import Snapshot


class TransactionLog(OwnLog):
    """See the module. Belongs to the event loop, but for `entries`."""

    def __init__(self, logs: LogManager, replicas: ReplicaManager, admin: Admin, clock: Clock) -> None:
        super().__init__(TRANSACTION_STATE, logs, replicas, admin, clock)

    def entries(self) -> Iterator[LogEntry]:
        """All entries, oldest first; in any thread, before anything is appended, also more than once. Raises DataDirectoryError if
        they cannot all be trusted: to go on without some would undo commits, or do them twice.
        """
        try:
            yield from self._entries()
        except READ_ERRORS as error:
            raise _unusable(str(error)) from error

    def _entries(self) -> Iterator[LogEntry]:
        begin_bytes = 0
        for batch in self.batches():
            if batch is None:
                yield LogEntry("", "", 0, EntriesLost())
                continue
            for entry in entries_of(batch):
                if isinstance(entry.event, StateBegins):
                    begin_bytes = self._size_bytes - batch.header.size
                elif isinstance(entry.event, StateEnds):
                    self._state_bytes = self._size_bytes - begin_bytes
                yield entry

    def append_entry(self, entry: LogEntry) -> None:
        """As `append`."""
        self.append([Record(*record_of(entry))])

    async def compact_to(self, state: Snapshot) -> None:
        """As `compact`. The snapshot is of now: nothing may come between. What was written of it before an error counts for
        nothing.
        """
        await self.compact([Record(*record) for record in piece] for piece in state.pieces())


def entries_of(batch: RecordBatch) -> Iterator[LogEntry]:
    """The entries in a batch of the log. Raises CorruptMessageError, UnsupportedVersionError."""
    return map(decode_entry, values_of(batch))


def _unusable(reason: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"the transaction log cannot be used: {reason.rstrip('.')}. Without it commits could be lost or done twice, so the "
        "broker does not start; run `brokerd doctor` for advice"
    )
