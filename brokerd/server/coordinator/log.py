"""The coordinator's log: the single partition of an internal topic, in the same storage engine as all others. It holds the
decisions on transactions and on group offsets, in one order.

Records appended together form one batch, so a crash keeps all of them or none, and no batch without all earlier ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from brokerd.clock import Clock
from brokerd.coordinator.records import decode, record_of
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.retention import Retention
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import (
    CorruptMessageError,
    DataDirectoryError,
    Fate,
    LogDamagedError,
    NotCoordinatorError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.purgatory import TimedPurgatory
from brokerd.record.batch import RecordBatch, values_of, walk_batches
from brokerd.record.header import decode_header, encode_header, new_header
from brokerd.record.schema import SCHEMA_0, encode_payload
from brokerd.server.admin import Admin
from brokerd.server.delayed_produce import Appended, wait_durable
from brokerd.sharing import CALLER
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord, MembersAborted

logger = logging.getLogger(__name__)

COMPACTION_MIN_BYTES = 524_288  # about 1,000 records; a start reads 10,000 per second
_LATE_MAX = 100  # records deferred to the next batch, which is encoded in one step
_UNSYNCED_MAX_BYTES = 4 * 1_048_576  # while writing a state: all producers share the budget of unsynced bytes
_READ_BYTES = 1_048_576


class CoordinatorLog:
    """See the module docstring. Belongs to the event loop, except `read`."""

    def __init__(
        self,
        partitions: PartitionTable,
        create: Callable[[], Awaitable[None]],
        retention: Retention,
        time: DirectoryTime,
        *,
        purgatory: TimedPurgatory,
        admin: Admin,
        clock: Clock,
        unusable: str = "",
        is_current: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`create` creates the log's partition. `unusable`: why the existing log may lack records at its end. `is_current`: True if
        certainly no node led the log in a later epoch than the given one at the time of the call."""
        self._partitions = partitions
        self._create = create
        self._retention = retention
        self._time = time
        self._purgatory = purgatory
        self._admin = admin
        self._clock = clock
        self._unusable = unusable
        self._is_current = is_current
        self._making = asyncio.Lock()
        self._partition: Partition | None = None
        self.leader_epoch = 0  # in which the log was opened; this object is valid in no other; 0 = no log
        self._end_offset = 0  # after the last append
        self._size_bytes = 0  # from the log start
        self._state_bytes = 0  # of the newest state in the log; 0 = unknown
        self._retry_bytes = 0  # after a failed compaction: the log size at which to retry
        self._late: list[CoordinatorRecord] = []  # see append_late
        self._find()

    def _find(self) -> None:
        self._partition = self._partitions.coordinator_log
        if self._partition is not None:
            self.leader_epoch = self._partition.leader_epoch
            self._end_offset = self._partition.ends.log_end_offset

    async def make(self) -> None:
        """Creates the log if there is none, durable on return. Raises StorageError, NotReadyError."""
        if self._partition is not None:
            return
        async with self._making:
            if self._partition is None:
                await self._create()
                self._find()

    def read(self) -> Iterator[CoordinatorRecord | None]:
        """All records, oldest first; None stands for records lost to damage that an operator accepted. May run in any thread and
        more than once. Raises DataDirectoryError if the log has other damage, or its beginning was removed meanwhile."""
        size_bytes, is_new = 0, not self._size_bytes
        try:
            for batch in self._batches():
                yield from map(decode, self._values_of(batch)) if batch is not None else (None,)
                size_bytes += batch.header.size if batch is not None else 0
            if is_new:  # else later appends are counted already
                self._size_bytes = size_bytes
        except (
            LogDamagedError,
            NotLeaderError,
            CorruptMessageError,
            UnsupportedVersionError,
            StorageError,
            OffsetOutOfRangeError,
            OSError,
        ) as error:
            raise DataDirectoryError(f"{COORDINATOR.name}: {error}") from error

    @property
    def start_offset(self) -> int:
        """The offset of the first record. Records before it were replaced by a state."""
        return self._partition.ends.log_start_offset if self._partition is not None else 0

    def _values_of(self, batch: RecordBatch) -> list[bytes]:
        try:
            return values_of(batch)
        except CorruptMessageError:
            if self._partition is not None:  # if this is damage, the log stops, and another in-sync replica leads
                self._partition.read_checked(batch.header.base_offset, below=LogEnd.LOG_END, max_bytes=1)
            raise

    def _batches(self) -> Iterator[RecordBatch | None]:
        """All batches; None stands for lost ones."""
        log = self._partition
        if log is None:
            return
        if log.damage or self._unusable:
            raise StorageError(str(log.damage or self._unusable))
        offset, end = log.ends.log_start_offset, log.ends.log_end_offset
        while offset < end:
            try:
                found = log.read(offset, below=LogEnd.LOG_END, max_bytes=_READ_BYTES, cached_only=False)
            except LogDamagedError as error:
                if log.damage or error.resume_offset <= offset:
                    raise  # found by this read, so no operator has accepted it
                logger.warning("%s: offsets %d to %d are lost, as was accepted", log.name, offset, error.resume_offset - 1)
                offset = error.resume_offset
                yield None
                continue
            if not found.chunks:
                raise StorageError(f"it ends at offset {offset} instead of {end}")
            for chunk in found.chunks:
                yield from walk_batches(pa.py_buffer(chunk))
            offset = found.next_offset

    def append(self, records: Sequence[CoordinatorRecord]) -> None:
        """Appends records, all or none; a later `durable` makes them durable. Raises StorageError, NotEnoughReplicasError and
        others; the records must then not be applied."""
        self._append([*self._late, *records])
        self._late = []

    def append_late(self, record: CoordinatorRecord) -> None:
        """Defers a record to the front of the next batch: saves a write and a flush. A crash may lose it even after `durable`."""
        self._late.append(record)
        if len(self._late) >= _LATE_MAX:
            with contextlib.suppress(WireError):
                self.append_rest()

    def append_rest(self) -> None:
        """Appends the records that `append_late` has deferred. Raises as `append` does; they stay deferred then."""
        if self._late:
            self.append(())

    def _append(self, records: Sequence[CoordinatorRecord]) -> None:
        partition = self._partition
        assert partition is not None, "made before"
        self._check_leads()
        partition.check_enough_in_sync()
        batch = _batch(records, partition.crc_seed, self._clock.wall_ms())
        now_ms, ahead_ms = self._time.stamp_ms()
        info = partition.append(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms, caller=CALLER.get())
        self._end_offset = info.last_offset + 1
        self._size_bytes += batch.header.size

    async def durable(self) -> None:
        """Returns once everything appended before the call is durable. Raises StorageError if the log has stopped, NotReadyError at
        a stop, NotCoordinatorError if this node no longer leads the log, RequestTimedOutError."""
        partition, end_offset = self._partition, self._end_offset
        if partition is None:
            return
        self._check_leads()
        if partition.ends.high_watermark >= end_offset:
            return
        errors = await wait_durable(self._purgatory, [Appended(partition, end_offset - 1, self.leader_epoch)])
        if errors:
            self._check_leads()
            raise errors[0]

    async def confirmed(self) -> None:
        """Like `durable`, for a response that another coordinator could make wrong: a read, or a refusal, which rests on the
        absence of a record. Confirms that this node was the coordinator at the call: even while registered, it may have been
        replaced by a move that it has not learned of. It asks etcd, which needs neither disk nor followers, or else appends an
        entry: followers accept none from a replaced leader. Raises as `append` and `durable` do."""
        if self._partition is not None and self._partition.may_be_succeeded and not await self._is_current(self.leader_epoch):
            self.append([record_of("", "", self._clock.wall_ms(), MembersAborted())])
        await self.durable()

    def check_not_cut_off(self) -> None:
        """Raises NotReadyError while this node reaches neither etcd nor another replica, and could not learn of a successor."""
        if self._partition is not None:
            self._partition.check_not_cut_off()

    @property
    def is_led(self) -> bool:
        """True if this node leads the log in the epoch in which it was opened, or there is no log yet."""
        return self._partition is None or self._partition.leads_in(self.leader_epoch)

    def _check_leads(self) -> None:
        """Raises NotCoordinatorError unless `is_led`."""
        if not self.is_led:
            text = "this node is the coordinator no longer: whether what was asked is done is not known here"
            raise NotCoordinatorError(text, fate=Fate.UNKNOWN)

    @contextlib.asynccontextmanager
    async def settled(self) -> AsyncIterator[None]:
        """For responses that show decisions in the log: on exit, and before it re-raises a WireError, waits until everything
        appended so far is durable, and this node is confirmed as the coordinator. Raises as `confirmed` does."""
        try:
            yield
        except WireError:
            await self.confirmed()
            raise
        await self.confirmed()

    def has_grown(self) -> bool:
        """True if `compact` is due."""
        return self._size_bytes >= max(COMPACTION_MIN_BYTES, 2 * self._state_bytes, self._retry_bytes)

    async def compact(self, pieces: Iterable[Sequence[CoordinatorRecord]]) -> None:
        """Appends `pieces`, which repeat the complete state, then drops all records before them. Each piece is produced when it is
        appended. Other records may be appended in between, and a crash at any point must leave a log with the same meaning. One
        call at a time. Raises as `append` and `durable` do; nothing is dropped then."""
        log = self._partition
        assert log is not None, "it has grown"
        try:
            self.append_rest()  # a state must begin its batch
            begin, before_bytes = self._end_offset, self._size_bytes
            state_bytes = await self._write(pieces)
            error = await self._admin.run(self._retention.give_up_below(log, begin))
            if error is not None:
                raise error
        except BaseException:
            self._retry_bytes = 2 * self._size_bytes  # otherwise each retry would fill a full disk again
            raise
        self._size_bytes -= before_bytes
        self._state_bytes, self._retry_bytes = state_bytes, 0
        logger.debug("%s: %d bytes of records became a state of %d bytes", log.name, before_bytes, state_bytes)

    async def _write(self, pieces: Iterable[Sequence[CoordinatorRecord]]) -> int:
        """Appends the pieces, durable on return. Returns their size in bytes."""
        written_bytes = unsynced_bytes = 0
        for piece in pieces:
            before_bytes = self._size_bytes
            self.append(piece)
            written_bytes += self._size_bytes - before_bytes
            unsynced_bytes += self._size_bytes - before_bytes
            if unsynced_bytes >= _UNSYNCED_MAX_BYTES:
                await self.durable()
                unsynced_bytes = 0
            await asyncio.sleep(0)
        await self.durable()
        return written_bytes


def _batch(records: Sequence[CoordinatorRecord], seed: int, now_wall_ms: int) -> RecordBatch:
    count = len(records)
    columns = [
        pa.array([(record.transactional_id or record.group_id).encode() for record in records], pa.binary()),
        pa.array([record.SerializeToString() for record in records], pa.binary()),
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
    data = encode_header(header, seed) + payload.data.to_pybytes()
    return RecordBatch(decode_header(data), pa.py_buffer(data))
