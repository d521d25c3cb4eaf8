"""Decides which batches of idempotent producers one partition accepts: the table in ARCHITECTURE.md ("Producer state").

No I/O: `prepare` decides on immutable entries and changes nothing; `commit` stores the new entry once the batch is written.
`replay` applies a batch already in the log, without checks. The index of aborted transactions is derived in the same way. Snapshots
of both are in log_state.py.

The state is derived from the batches in log order. It excludes producers silent for producer.id.expiration.ms, and keeps at most
max.producer.ids.per.partition others: a new producer evicts the one silent longest. Eviction depends on the order of batches alone,
so every replay evicts the same producers.

A forgotten (evicted) producer must not write a batch twice. Its later sequences are refused as unknown, but a retry of its first
batch, at sequence 0, would be accepted. Therefore `forgotten` keeps, per owner, the largest number among the forgotten ids, and an
unknown producer whose number is not larger is refused at sequence 0 too. Numbers only rise, so new producers, and producers that
request another id, are above it. A client that invents numbers can lock out only producers of its own principal. Expired producers
do not raise the number: no retry is that old.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from brokerd.errors import (
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from brokerd.ids import PRODUCER_NUMBERS, producer_number, producer_tag
from brokerd.record.header import SEQUENCE_MAX, BatchHeader, add_sequence

# The five batches that a producer may have in flight, as in Kafka, and the one before: a copy whose log begins above that batch
# (Partition.snapshot_at) needs its sequence if the other five are cut.
WINDOW_BATCHES = 6
NO_OFFSET = -1
NO_NUMBER = -1
ANY_OWNER = -1  # in place of an owner tag
FORGOTTEN_OWNERS = 1_000  # limit of owners with their own entry in `forgotten`; others share ANY_OWNER
_HALF_RING = (SEQUENCE_MAX + 1) // 2
_BLOCK = 256  # aborted transactions that a look-up passes at once
_first_offset, _marker_offset = attrgetter("first_offset"), attrgetter("marker_offset")


class BatchMetadata(NamedTuple):
    """One accepted batch. Sequences are inclusive; `timestamp` is the log time of the append, ms. The last two fields are the
    header's, so that the response to a duplicate carries the original append time.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    clock_ahead_s: int = 0
    is_log_append_time: bool = False

    @property
    def append_timestamp(self) -> int:
        """The wall-clock time of the append, ms since 1970."""
        return self.timestamp + 1_000 * self.clock_ahead_s


class ProducerStateEntry(NamedTuple):
    """One producer id: its epoch and its last batches, oldest first (at least one)."""

    epoch: int
    batches: tuple[BatchMetadata, ...]
    has_wrapped: bool  # the sequence has passed 2^31-1 in this epoch, so every smaller number has been used
    txn_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record accepted."""
        return self.batches[-1].last_sequence

    @property
    def last_timestamp(self) -> int:
        """The log time of the last append, ms since 1970."""
        return self.batches[-1].timestamp


class Marker(NamedTuple):
    """The content of a control batch: the members whose transactions it ends, by producer id."""

    committed_ids: Sequence[int] = ()
    aborted_ids: Sequence[int] = ()

    @property
    def producer_ids(self) -> tuple[int, ...]:
        """The producer ids of both lists."""
        return (*self.committed_ids, *self.aborted_ids)


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` from `first_offset` up to the marker are aborted. Transactions that end later begin at
    `last_stable_offset` or above.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """Index of one partition's aborted transactions, ordered by marker offset. read_committed readers skip their records.

    Look-ups match by overlap: a batch is aborted if it has the producer id and lies between the first offset and the marker.
    Matching the first offset or the marker alone would let aborted records through where a range ends inside a transaction.

    `last_stable_offset` ends a look-up, but not while it is that of a long transaction beside many short ones. So a look-up passes
    blocks whose transactions all begin later: each fetch makes one, in the event loop.
    """

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        """`entries`: in the order of the markers."""
        self._entries = list(entries)
        self._least = _least_offsets(self._entries)  # by block: the lowest first offset

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """The whole index, in the order of the markers."""
        return tuple(self._entries)

    def add(self, entries: Iterable[AbortedTransaction]) -> None:
        """Adds the transactions aborted by a marker at the log end."""
        for entry in entries:
            if len(self._entries) % _BLOCK == 0:
                self._least.append(entry.first_offset)
            self._least[-1] = min(self._least[-1], entry.first_offset)
            self._entries.append(entry)

    def overlapping(self, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        """The transactions whose span, from first record to marker, overlaps [`from_offset`, `until_offset`)."""
        found: list[AbortedTransaction] = []
        entries, at = self._entries, bisect_left(self._entries, from_offset, key=_marker_offset)
        while at < len(entries):
            if at % _BLOCK == 0 and self._least[at // _BLOCK] >= until_offset:
                at += _BLOCK
                continue
            entry = entries[at]
            if entry.first_offset < until_offset:
                found.append(entry)
            at += 1
            is_last_of_marker = at == len(entries) or entries[at].marker_offset != entry.marker_offset
            if is_last_of_marker and entry.last_stable_offset >= until_offset:
                break
        return found

    def forget_below(self, offset: int) -> None:
        """Drops transactions whose marker lies below `offset`, since their records can no longer be read."""
        del self._entries[: bisect_left(self._entries, offset, key=_marker_offset)]
        self._least = _least_offsets(self._entries)


def _least_offsets(entries: Sequence[AbortedTransaction]) -> list[int]:
    return [min(map(_first_offset, entries[at : at + _BLOCK])) for at in range(0, len(entries), _BLOCK)]


class ProducerStates:
    """All producers of one partition."""

    def __init__(self, name: str, *, limit: int) -> None:
        self._name = name
        self._limit = limit
        self.entries: OrderedDict[int, ProducerStateEntry] = OrderedDict()  # least recent writer first
        self.forgotten: dict[int, int] = {}  # owner tag -> number; see the module
        # Producer id -> first offset, ascending by offset, since a transaction opens at the log end.
        self.open_transactions: dict[int, int] = {}
        self.aborted = AbortedTransactions()

    def __len__(self) -> int:
        return len(self.entries)

    def prepare(self, header: BatchHeader) -> ProducerStateEntry | BatchMetadata:
        """The entry to commit once this stamped batch is written, or the earlier batch that it duplicates. Changes nothing.

        Raises the errors listed in ARCHITECTURE.md ("Producer state"), all with fate NOT_APPENDED except DuplicateSequenceError,
        whose batch is in the log.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            self._check_unknown(header)
        elif header.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"{self._subject(header)} has epoch {header.producer_epoch}, but epoch {entry.epoch} has written since: "
                "a newer producer took over",
                fate=Fate.NOT_APPENDED,
                current_epoch=entry.epoch,
            )
        elif header.producer_epoch > entry.epoch:
            if header.base_sequence != 0:
                raise self._out_of_order(header, 0, entry.epoch)
        else:
            repeated = self._check_sequence(header, entry)
            if repeated is not None:
                return repeated
        return _extended(entry, header)

    def commit(self, producer_id: int, entry: ProducerStateEntry) -> None:
        """Stores the entry that `prepare` or `replayed` returned; may evict the producer silent longest."""
        self.entries[producer_id] = entry
        self.entries.move_to_end(producer_id)
        if entry.txn_first_offset >= 0:
            self.open_transactions.setdefault(producer_id, entry.txn_first_offset)
        while len(self.entries) > self._limit and self._forget_oldest():
            pass

    def restore(
        self, entries: Mapping[int, ProducerStateEntry], forgotten: Mapping[int, int], aborted: Iterable[AbortedTransaction]
    ) -> None:
        """Loads the state of a snapshot."""
        self.entries.update(entries)
        self.forgotten = dict(forgotten)
        opened = [(entry.txn_first_offset, producer_id) for producer_id, entry in entries.items() if entry.txn_first_offset >= 0]
        self.open_transactions = {producer_id: first_offset for first_offset, producer_id in sorted(opened)}
        self.aborted = AbortedTransactions(aborted)

    def replayed(self, header: BatchHeader) -> ProducerStateEntry | None:
        """The entry after a batch already in the log; None for a control batch or without a producer id. No checks, no changes."""
        if header.producer_id < 0 or header.is_control:
            return None
        entry = self.entries.get(header.producer_id)
        # A gap within an epoch means that the leader had forgotten the producer, which then started again.
        begins_again = entry is not None and header.base_sequence != add_sequence(entry.last_sequence, 1)
        return _extended(entry, header, begins_again=begins_again)

    def replay(self, header: BatchHeader, marker: Marker | None) -> None:
        """Applies a batch already in the log, without checks. `marker`: the content of a readable control batch."""
        entry = self.replayed(header)
        if entry is not None:
            self.commit(header.producer_id, entry)
        if marker is not None:
            self.end_transactions(marker, header.base_offset)

    def end_transactions(self, marker: Marker, marker_offset: int) -> None:
        """Removes the members that a marker in the log ends, since their ids are never used again. Adds aborted members with
        records in this partition to the index of aborted transactions.
        """
        begun = {producer_id: self.open_transactions.pop(producer_id, NO_OFFSET) for producer_id in marker.producer_ids}
        for producer_id in begun:
            self.entries.pop(producer_id, None)
        stable = next(iter(self.open_transactions.values()), marker_offset + 1)
        aborted = [(begun[producer_id], producer_id) for producer_id in marker.aborted_ids if begun[producer_id] >= 0]
        self.aborted.add(AbortedTransaction(producer_id, first, marker_offset, stable) for first, producer_id in sorted(aborted))

    def first_open_offset(self, producer_ids: Collection[int]) -> int | None:
        """The lowest first offset of these members' open transactions; None if they have none."""
        return next((first for producer_id, first in self.open_transactions.items() if producer_id in producer_ids), None)

    def expire(self, before_ms: int) -> int:
        """Expires producers whose last append is before `before_ms`, except those with an open transaction; returns how many."""
        silent = [pid for pid, entry in self.entries.items() if entry.last_timestamp < before_ms and entry.txn_first_offset < 0]
        for producer_id in silent:
            del self.entries[producer_id]
        return len(silent)

    def _check_unknown(self, header: BatchHeader) -> None:
        if header.base_sequence != 0:
            raise UnknownProducerIdError(
                f"{self._subject(header)} begins at sequence {header.base_sequence}, but this partition has no state of that "
                "producer: it was silent for longer than producer.id.expiration.ms, or its records are gone",
                fate=Fate.NOT_APPENDED,
            )
        if producer_number(header.producer_id) <= max(map(self._forgotten, (ANY_OWNER, producer_tag(header.producer_id)))):
            raise UnknownProducerIdError(
                f"{self._subject(header)} is unknown here and may have been forgotten (max.producer.ids.per.partition), so its "
                "records may already be in the log: request a new id with InitProducerId",
                fate=Fate.NOT_APPENDED,
            )

    def forget_all(self, free_number: int) -> None:
        """Forgets all producers without an open transaction, because batches are missing. Any producer with a number below
        `free_number` may have written them, so neither an entry nor its absence proves anything.
        """
        while self._forget_oldest():
            pass
        self._forget(ANY_OWNER, free_number - 1)

    def bound_forgotten(self, limit: int) -> None:
        """Lowers the `forgotten` numbers below `limit`, the first producer number not issued yet."""
        self.forgotten = {tag: min(number, limit - 1) for tag, number in self.forgotten.items()}

    @property
    def highest_number(self) -> int:
        """The highest producer number seen here, forgotten producers included; NO_NUMBER if there is none."""
        forgotten = (number for number in self.forgotten.values() if number < PRODUCER_NUMBERS - 1)  # the maximum: unknown
        aborted = (entry.producer_id for entry in self.aborted.entries)
        return max(itertools.chain((NO_NUMBER,), forgotten, map(producer_number, itertools.chain(self.entries, aborted))))

    def _forget_oldest(self) -> bool:
        """Forgets the producer silent longest among those without an open transaction; False if there is none."""
        if len(self.open_transactions) >= len(self.entries):
            return False
        oldest = next(iter(self.entries))
        while oldest in self.open_transactions:
            # Kept until its marker, whatever its position. Moved to the end, so that the next search skips it.
            self.entries.move_to_end(oldest)
            oldest = next(iter(self.entries))
        del self.entries[oldest]
        self._forget(producer_tag(oldest), producer_number(oldest))
        return True

    def _forgotten(self, tag: int) -> int:
        return self.forgotten.get(tag, NO_NUMBER)

    def _forget(self, tag: int, number: int) -> None:
        if tag not in self.forgotten and len(self.forgotten) >= FORGOTTEN_OWNERS:
            tag = ANY_OWNER  # without authentication, clients can invent owners too
        self.forgotten[tag] = max(self._forgotten(tag), number)

    def _check_sequence(self, header: BatchHeader, entry: ProducerStateEntry) -> BatchMetadata | None:
        first = header.base_sequence
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == header.last_sequence:
                return batch
        expected = entry.batches[-1].last_sequence + 1 & SEQUENCE_MAX
        if first == expected:
            return None
        # Distance of the first sequence behind the expected one. More than half the ring means a gap ahead: treating that as a
        # duplicate would lose the batch. Before the first wrap there are no sequences below 0.
        behind = (expected - first) & SEQUENCE_MAX
        is_used = behind <= _HALF_RING and (entry.has_wrapped or behind <= entry.last_sequence + 1)
        if is_used and header.last_offset_delta < behind:
            raise DuplicateSequenceError(
                f"{self._subject(header)} sent sequences {first} to {header.last_sequence} again; they are in the log, "
                f"but further back than the last {WINDOW_BATCHES} batches, so their offset is not known",
                expected_sequence=expected,
                current_epoch=entry.epoch,
            )
        raise self._out_of_order(header, expected, entry.epoch)

    def _out_of_order(self, header: BatchHeader, expected: int, epoch: int) -> OutOfOrderSequenceError:
        return OutOfOrderSequenceError(
            f"{self._subject(header)} sent sequence {header.base_sequence} in epoch {header.producer_epoch}, "
            f"but {expected} is expected (current epoch {epoch})",
            fate=Fate.NOT_APPENDED,
            expected_sequence=expected,
            current_epoch=epoch,
        )

    def _subject(self, header: BatchHeader) -> str:
        return f"{self._name}: producer {header.producer_id}"


def _extended(entry: ProducerStateEntry | None, header: BatchHeader, *, begins_again: bool = False) -> ProducerStateEntry:
    """The entry with this batch; a new one if the producer is unknown, starts again or has a new epoch."""
    first, last, epoch = header.base_sequence, header.last_sequence, header.producer_epoch
    batch = BatchMetadata(
        first, last, header.base_offset, header.last_offset, header.log_time, header.clock_ahead_s, header.is_log_append_time
    )
    txn_first_offset = header.base_offset if header.is_transactional else NO_OFFSET
    if entry is not None and entry.txn_first_offset >= 0:
        txn_first_offset = entry.txn_first_offset  # open until its marker, even across epochs
    if entry is None or begins_again or entry.epoch != epoch:
        return ProducerStateEntry(epoch, (batch,), last < first, txn_first_offset)
    has_wrapped = entry.has_wrapped or last < first or first < entry.batches[-1].last_sequence
    return ProducerStateEntry(entry.epoch, (*entry.batches[1 - WINDOW_BATCHES :], batch), has_wrapped, txn_first_offset)
