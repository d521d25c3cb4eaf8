"""The coordinator's log: one partition of the broker's own topic, with the same engine as all others.

An entry is a record of schema 0: its key is the transactional id, its value a TransactionLogRecord. Entries that belong together
are one batch, so a crash leaves all of them or none. The state that takes the place of a log that has grown is many batches
(brokerd/transaction/snapshot.py), and what stands before it goes when all of them are durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from brokerd.clock import Clock
from brokerd.datadir.log_manager import LogManager
from brokerd.errors import CorruptMessageError, DataDirectoryError, LogDamagedError, StorageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition_log import PartitionLog
from brokerd.record.batch import MAX_DECOMPRESSED_BYTES, RecordBatch, walk_batches
from brokerd.record.header import crc_seed, decode_header, encode_header, new_header
from brokerd.record.payload import encode_payload
from brokerd.record.schema import SCHEMA_0
from brokerd.server.admin import Admin
from brokerd.server.limits.callers import current_caller
from brokerd.server.replica_manager import Replica, ReplicaManager
from brokerd.server.transactions.durability import wait_durable
from brokerd.server.waiting.pauses import Pauses
from brokerd.transaction.log_records import Record, decode_entry, record_of
from brokerd.transaction.model import EntriesLost, LogEntry, StateBegins, StateEnds
from brokerd.transaction.snapshot import Snapshot

logger = logging.getLogger(__name__)

COMPACTION_MIN_BYTES = 524_288  # some 700 entries; a start reads 10,000 of them in a second
_UNSYNCED_MAX_BYTES = 4 * 1_048_576  # of a state: what is written faster than the disk takes it fills everybody's budget
_ENTRY_PIECES = 2  # an entry of a state takes about so many times as long as what Pauses counts
_READ_BYTES = 1_048_576


class TransactionLog:
    """See the module. Belongs to the event loop, but for `read`."""

    def __init__(self, logs: LogManager, replicas: ReplicaManager, admin: Admin, clock: Clock) -> None:
        self._logs = logs
        self._replicas = replicas
        self._admin = admin
        self._clock = clock
        self._making = asyncio.Lock()
        self._replica: Replica | None = None
        self._end_offset = 0  # of what was appended
        self._size_bytes = 0  # from the log start on
        self._state_bytes = 0  # of the newest state in it, with what stands among its pieces
        self._state_at_bytes = 0  # the size before that one began
        self._retry_bytes = 0  # after a failure: the size at which a state is tried again
        if logs.transaction_state is not None:
            self._attach(logs.transaction_state)

    @property
    def exists(self) -> bool:
        """False until the first transactional request."""
        return self._replica is not None

    async def make(self) -> None:
        """Makes the log, durably on return, if there is none. Raises StorageError, NotReadyError."""
        async with self._making:
            if self._replica is None:
                await self._admin.run(self._logs.changes.create_transaction_state())
                log = self._logs.transaction_state
                assert log is not None
                self._attach(log)

    def _attach(self, log: PartitionLog) -> None:
        self._replica = self._replicas.internal_replica(log)
        self._end_offset = log.log_end_offset

    def read(self) -> Iterator[LogEntry]:
        """All entries, oldest first; in any thread, before anything is appended, also more than once. Raises DataDirectoryError if
        they cannot all be trusted: to go on without some would undo commits, or do them twice.
        """
        if self._replica is None:
            return
        try:
            yield from self._read(self._replica.log)
        except (LogDamagedError, CorruptMessageError, UnsupportedVersionError, StorageError, OSError) as error:
            raise _unusable(str(error)) from error

    def _read(self, log: PartitionLog) -> Iterator[LogEntry]:
        reason = log.damage or log.core.health.read_only_reason
        if reason:
            raise _unusable(str(reason))
        offset, end = log.log_start_offset, log.log_end_offset
        self._size_bytes = 0
        while offset < end:
            try:
                found = log.reader.read(offset, max_bytes=_READ_BYTES, until_offset=end, cached_only=False)
            except LogDamagedError as error:
                if error.resume_offset <= offset:
                    raise
                logger.warning("%s: offsets %d to %d are lost, as was accepted", log.name, offset, error.resume_offset - 1)
                offset = error.resume_offset
                yield LogEntry("", "", 0, EntriesLost())
                continue
            if not found.chunks:
                raise _unusable(f"it ends at offset {offset} instead of {end}")
            for chunk in found.chunks:
                for batch in walk_batches(pa.py_buffer(chunk)):
                    yield from self._entries(batch)
            offset = found.next_offset

    def _entries(self, batch: RecordBatch) -> Iterator[LogEntry]:
        before_bytes, self._size_bytes = self._size_bytes, self._size_bytes + batch.header.size
        for entry in entries_of(batch):
            if isinstance(entry.event, StateBegins):
                self._state_at_bytes = before_bytes
            elif isinstance(entry.event, StateEnds):
                self._state_bytes = self._size_bytes - self._state_at_bytes
            yield entry

    def append(self, entries: Sequence[LogEntry]) -> int:
        """Writes entries, all or none; returns their offset. They are durable once a later `durable` returns. Raises StorageError
        and others, whose entries must not be applied.
        """
        assert self._replica is not None, "made at the first transactional request"
        return self._append([record_of(entry) for entry in entries])

    def _append(self, records: Sequence[Record]) -> int:
        assert self._replica is not None
        batch = _batch(records, self._replica.log.tp, self._clock.wall_ms())
        info = self._replicas.append(self._replica, batch, current_caller())
        self._end_offset = info.last_offset + 1
        self._size_bytes += batch.header.size
        return info.base_offset

    async def durable(self) -> None:
        """Returns once all is durable that was appended before the call. Raises StorageError if the log has stopped, NotReadyError
        at a stop, RequestTimedOutError.
        """
        replica, end_offset = self._replica, self._end_offset
        if replica is None or replica.core.ends.high_watermark >= end_offset:
            return
        errors = await wait_durable(self._replicas, self._clock, [(replica, end_offset - 1)])
        if errors:
            raise errors[0]

    @property
    def has_grown(self) -> bool:
        """True if a state should take the place of what is there."""
        return self._size_bytes >= max(COMPACTION_MIN_BYTES, 2 * self._state_bytes, self._retry_bytes)

    async def compact(self, state: Snapshot) -> None:
        """Appends a state, which is of now, and gives up all that stands before it. Raises as `append` and `durable` do: then
        nothing is given up, and what was written of the state counts for nothing.
        """
        assert self._replica is not None
        log, before_bytes = self._replica.log, self._size_bytes
        try:
            offset = await self._write_state(state)
            state_bytes = self._size_bytes - before_bytes
            error = await self._admin.run(self._logs.give_up_below(log, offset))
            if error is not None:
                raise error
        except BaseException:
            self._retry_bytes = 2 * self._size_bytes  # a disk that is full would be filled again and again
            raise
        self._size_bytes -= before_bytes
        self._state_bytes, self._retry_bytes = state_bytes, 0
        logger.debug("%s: %d bytes of entries became a state of %d bytes", log.name, before_bytes, state_bytes)

    async def _write_state(self, state: Snapshot) -> int:
        """Durable on return; its offset."""
        offset, synced_bytes, pauses = -1, self._size_bytes, Pauses()
        for piece in state.pieces():
            piece_offset = self._append(piece)
            offset = offset if offset >= 0 else piece_offset
            if self._size_bytes - synced_bytes >= _UNSYNCED_MAX_BYTES:
                await self.durable()
                synced_bytes = self._size_bytes
            await pauses.after(_ENTRY_PIECES * len(piece))
        await self.durable()
        return offset


def entries_of(batch: RecordBatch) -> Iterator[LogEntry]:
    """The entries in a batch of the log. Raises CorruptMessageError, UnsupportedVersionError."""
    values = batch.to_arrow(max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES).column("value")
    return (decode_entry(value or b"") for value in values.to_pylist())


def _batch(records: Sequence[Record], tp: TopicIdPartition, now_wall_ms: int) -> RecordBatch:
    count = len(records)
    columns = [
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        SCHEMA_0.column("headers").nulls(count),
        pa.array([now_wall_ms * 1_000] * count, SCHEMA_0.column("timestamp").type),
    ]
    payload = encode_payload(pa.RecordBatch.from_arrays(columns, schema=SCHEMA_0.arrow))
    header = new_header(
        batch_length=payload.data.size,
        payload_crc=payload.crc,
        record_count=count,
        base_timestamp=now_wall_ms,
        max_timestamp=now_wall_ms,
        uncompressed_bytes=payload.uncompressed_bytes,
    )
    data = encode_header(header, crc_seed(tp)) + payload.data.to_pybytes()
    return RecordBatch(decode_header(data), pa.py_buffer(data))


def _unusable(reason: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"the log of the transactions cannot be used: {reason.rstrip('.')}. Without it commits could be lost or done twice, so the "
        "broker does not start; run `brokerd doctor` for advice"
    )
