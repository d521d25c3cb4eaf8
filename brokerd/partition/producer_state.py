"""Decides which batches of idempotent producers one partition accepts: the table in ARCHITECTURE.md ("Producer state").

Pure: `prepare` decides on immutable entries and changes nothing; `commit` puts the new entry in once the batch is
written. `replay` applies a batch that the log already holds, without judging it. Snapshots of the state are in snapshots.py.

The state is the fold of all batches in their order, without producers that were silent for producer.id.expiration.ms, and without
all but the max.producer.ids.per.partition that wrote last: for a new producer the one is forgotten that has been silent longest.
This depends on the order of batches alone, so every replay forgets the same producers.

A forgotten producer must not write anything twice. At a later sequence it is unknown; but every producer begins at sequence 0, so a
retry of its first batch would be accepted. Therefore the largest number among the forgotten ids is kept (`forgotten_number`), and
an unknown producer whose number is not larger is refused at sequence 0 too. Numbers only rise, so new producers are above it, and
so is a producer that requests another id. Producers that expired do not count there: no retry is that old.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.errors import (
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from brokerd.ids import producer_number
from brokerd.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from brokerd.partition.markers import Marker
from brokerd.record.header import SEQUENCE_MAX, BatchHeader, add_sequence

WINDOW_BATCHES = 5  # as many as Kafka remembers, and as many as a producer has in flight
NO_OFFSET = -1
NO_NUMBER = -1
_HALF_RING = (SEQUENCE_MAX + 1) // 2


class BatchMetadata(NamedTuple):
    """One accepted batch. Sequences are inclusive; `timestamp` is the append's, ms."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerStateEntry(NamedTuple):
    """One producer id: its epoch and its last batches, oldest first (at least one)."""

    epoch: int
    batches: tuple[BatchMetadata, ...]
    has_wrapped: bool  # the sequence went past 2^31-1 in this epoch: every smaller number has been used
    txn_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record accepted."""
        return self.batches[-1].last_sequence

    @property
    def last_timestamp(self) -> int:
        """The time when the last batch was appended, ms since 1970."""
        return self.batches[-1].timestamp


class ProducerStates:
    """All producers of one partition."""

    def __init__(self, name: str, *, limit: int) -> None:
        self._name = name
        self._limit = limit
        self.entries: OrderedDict[int, ProducerStateEntry] = OrderedDict()  # the last one to write at the end
        self.forgotten_number = NO_NUMBER
        # First offsets by producer id, in their order: a transaction opens at the log end.
        self.open_transactions: dict[int, int] = {}
        self.aborted = AbortedTransactions()

    def __len__(self) -> int:
        return len(self.entries)

    def prepare(self, header: BatchHeader, base_offset: int, timestamp: int) -> ProducerStateEntry | BatchMetadata:
        """The entry to commit after the append of this batch, or the batch that it repeats. Changes nothing.

        Raises the errors of section "Producer state" of ARCHITECTURE.md, all with fate NOT_APPENDED but
        DuplicateSequenceError, whose batch is in the log.
        """
        last_sequence, is_transactional = header.last_sequence, header.is_transactional
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
            repeated = self._check_sequence(header, entry, last_sequence)
            if repeated is not None:
                return repeated
        return _extended(entry, header, last_sequence, base_offset, timestamp, is_transactional=is_transactional)

    def commit(self, producer_id: int, entry: ProducerStateEntry) -> None:
        """Puts the entry in that `prepare` has returned."""
        self.entries[producer_id] = entry
        self.entries.move_to_end(producer_id)
        if entry.txn_first_offset >= 0:
            self.open_transactions.setdefault(producer_id, entry.txn_first_offset)
        while len(self.entries) > self._limit and self._forget_oldest():
            pass

    def restore(
        self, entries: Mapping[int, ProducerStateEntry], forgotten_number: int, aborted: Iterable[AbortedTransaction]
    ) -> None:
        """Begins with the state of a snapshot."""
        self.entries.update(entries)
        self.forgotten_number = forgotten_number
        opened = [(entry.txn_first_offset, producer_id) for producer_id, entry in entries.items() if entry.txn_first_offset >= 0]
        self.open_transactions = {producer_id: first_offset for first_offset, producer_id in sorted(opened)}
        self.aborted = AbortedTransactions(aborted)

    def replayed(self, header: BatchHeader) -> ProducerStateEntry | None:
        """The entry after a batch of the log, accepted as it is; None if it is of no idempotent producer. Changes nothing."""
        if header.producer_id < 0 or header.is_control:
            return None
        entry = self.entries.get(header.producer_id)
        # Only a producer that was forgotten begins again within an epoch.
        begins_again = entry is not None and header.base_sequence != add_sequence(entry.last_sequence, 1)
        return _extended(
            entry,
            header,
            header.last_sequence,
            header.base_offset,
            header.log_time,
            is_transactional=header.is_transactional,
            begins_again=begins_again,
        )

    def replay(self, header: BatchHeader, marker: Marker | None) -> None:
        """Applies a batch of the log, accepted as it is. `marker`: of a control batch that can be read."""
        entry = self.replayed(header)
        if entry is not None:
            self.commit(header.producer_id, entry)
        if marker is not None:
            self.end_transactions(marker, header.base_offset)

    def end_transactions(self, marker: Marker, marker_offset: int) -> None:
        """Forgets the members of a marker that is in the log: their ids are never used again. Of aborted ones with records here it
        notes the range.
        """
        begun = {producer_id: self.open_transactions.pop(producer_id, NO_OFFSET) for producer_id in marker.producer_ids}
        for producer_id in begun:
            self.entries.pop(producer_id, None)
        stable = next(iter(self.open_transactions.values()), marker_offset + 1)
        aborted = [(begun[producer_id], producer_id) for producer_id in marker.aborted_ids if begun[producer_id] >= 0]
        self.aborted.add(AbortedTransaction(producer_id, first, marker_offset, stable) for first, producer_id in sorted(aborted))

    def expire(self, before_ms: int) -> int:
        """Forgets producers silent since before `before_ms` that have no open transaction; returns how many."""
        silent = [pid for pid, entry in self.entries.items() if entry.last_timestamp < before_ms and entry.txn_first_offset < 0]
        for producer_id in silent:
            del self.entries[producer_id]
        return len(silent)

    def _check_unknown(self, header: BatchHeader) -> None:
        if header.base_sequence != 0:
            raise UnknownProducerIdError(
                f"{self._subject(header)} begins at sequence {header.base_sequence}, but nothing is known of that producer here: "
                "it was silent for longer than producer.id.expiration.ms, or its records are gone",
                fate=Fate.NOT_APPENDED,
            )
        if producer_number(header.producer_id) <= self.forgotten_number:
            raise UnknownProducerIdError(
                f"{self._subject(header)} is not known here, and may be one that was forgotten for newer ones "
                "(max.producer.ids.per.partition), so its records may be here already: ask for another id with InitProducerId",
                fate=Fate.NOT_APPENDED,
            )

    def forget_all(self, free_number: int) -> None:
        """Forgets all producers, because batches are missing: any producer with a number below `free_number` may have written them,
        so neither a known state nor being unknown proves anything.
        """
        while self._forget_oldest():
            pass
        self.forgotten_number = max(self.forgotten_number, free_number - 1)

    def _forget_oldest(self) -> bool:
        """Forgets the producer that was silent longest and has no open transaction; False if there is none."""
        if len(self.open_transactions) >= len(self.entries):
            return False
        oldest = next(iter(self.entries))
        while oldest in self.open_transactions:
            # It stays until its marker removes it, whatever its place is: at the end it is not met again soon.
            self.entries.move_to_end(oldest)
            oldest = next(iter(self.entries))
        del self.entries[oldest]
        self.forgotten_number = max(self.forgotten_number, producer_number(oldest))
        return True

    def _check_sequence(self, header: BatchHeader, entry: ProducerStateEntry, last: int) -> BatchMetadata | None:
        first = header.base_sequence
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        expected = entry.batches[-1].last_sequence + 1 & SEQUENCE_MAX
        if first == expected:
            return None
        # How far behind the expected number it begins. More than half the ring back is a gap ahead instead: to call that a
        # duplicate would lose the batch. Before the first wrap there are no numbers below 0.
        behind = (expected - first) & SEQUENCE_MAX
        is_used = behind <= _HALF_RING and (entry.has_wrapped or behind <= entry.last_sequence + 1)
        if is_used and header.last_offset_delta < behind:
            raise DuplicateSequenceError(
                f"{self._subject(header)} sent sequences {first} to {last} again; they are in the log, "
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


def _extended(
    entry: ProducerStateEntry | None,
    header: BatchHeader,
    last: int,
    base_offset: int,
    timestamp: int,
    *,
    is_transactional: bool,
    begins_again: bool = False,
) -> ProducerStateEntry:
    """The entry with this batch, of last sequence `last`, at its end; a new one if the producer is unknown or its epoch rose."""
    first = header.base_sequence
    batch = BatchMetadata(first, last, base_offset, base_offset + header.last_offset_delta, timestamp)
    txn_first_offset = base_offset if is_transactional else NO_OFFSET
    if entry is not None and entry.txn_first_offset >= 0:
        txn_first_offset = entry.txn_first_offset  # open until its marker, in any epoch
    if entry is None or begins_again or entry.epoch != header.producer_epoch:
        return ProducerStateEntry(header.producer_epoch, (batch,), last < first, txn_first_offset)
    has_wrapped = entry.has_wrapped or last < first or first < entry.batches[-1].last_sequence
    return ProducerStateEntry(entry.epoch, (*entry.batches[1 - WINDOW_BATCHES :], batch), has_wrapped, txn_first_offset)
