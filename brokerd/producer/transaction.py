"""Transactions of one producer: `with producer.transaction():`. Each has one member, and is committed at the end of the block, or
aborted if an exception leaves the block.

A version is committed at most once, even if several producers try to commit it: a program that numbers the parts of its input and
passes the number as the version writes each part once. Transactions are atomic; an undecided transaction expires.

Consumer group offsets can be committed with a transaction (`send_offsets`), which makes a read-process-write loop exactly-once.
Each offset carries the offset that the group had when the input was read. The broker commits only if the group still has that
offset, so if two programs read the same input, only one of them can commit.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from brokerd.arguments import OffsetAndMetadata, checked_by_partition, checked_offset, checked_offsets, group_id_problem
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    AlreadyCommittedError,
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    DeliveryTimeoutError,
    Fate,
    ProducerFencedError,
    ReplayMismatchError,
    TransactionStateError,
    WireError,
)
from brokerd.ids import NO_PRODUCER_ID, TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import GroupOffset, GroupOffsets, MemberReport, Membership, Totals, TransactionEnd

if TYPE_CHECKING:
    from brokerd.producer.producer import Producer

logger = logging.getLogger(__name__)

# A transaction that is not aborted expires after transaction.timeout.ms, so an abort is not retried for long.
ABORT_TIMEOUT_MS = 5_000
NO_OFFSET = -1  # the group has no offset for the partition


class InputReader(Protocol):
    """The part of a Consumer that a transaction needs."""

    def transaction_input(
        self, offsets: Mapping[TopicPartition, int]
    ) -> tuple[str, Mapping[TopicPartition, tuple[TopicIdPartition, int, int]]]:
        """The group id, and for each partition its id, the group's offset when reading began, and the leader_epoch_id of the record
        before the given offset (0 if this consumer did not read that record)."""

    def transaction_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Notes that the group has these offsets now."""

    def transaction_failed(self, partitions: Collection[TopicPartition]) -> None:
        """Notes that the offsets of these partitions were not committed, or that the outcome is unknown."""


Given = Mapping[TopicPartition, int | OffsetAndMetadata]
Expected = Mapping[TopicPartition, int | OffsetAndMetadata | None]


class NamedOffsets(NamedTuple):
    """Offsets to commit for a group. `expected`: the offsets that the group must have at the commit (NO_OFFSET = none)."""

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    expected: Mapping[TopicPartition, int]


def named_offsets(given: Given, group_id: str, expected: Expected) -> NamedOffsets | None:
    """Checks offsets given with a group id. Returns None if there are none. Raises TypeError, ValueError."""
    offsets = checked_offsets(given)
    problem = group_id_problem(group_id)
    if problem is not None:
        raise ValueError(f"group id {problem}")
    if not offsets:
        return None
    before = {
        tp: NO_OFFSET if one is None else checked_offset(tp, one).offset
        for tp, one in checked_by_partition(expected, "expected", "offsets").items()
    }
    missing = [tp for tp in offsets if tp not in before]
    if missing:
        raise ValueError(f"expected lacks {missing[0]}: give the offset that the group had there when the input was read, or None")
    return NamedOffsets(group_id, offsets, before)


class SentOffsets:
    """The group offsets to commit with one transaction."""

    def __init__(self) -> None:
        self._group_id = ""
        self._offsets: dict[TopicIdPartition, GroupOffset] = {}
        self._readers: list[tuple[InputReader, dict[TopicPartition, int]]] = []

    @property
    def all_of_them(self) -> GroupOffsets | None:
        """All offsets, for TransactionEnd; None if there are none."""
        return GroupOffsets(self._group_id, self._offsets) if self._offsets else None

    def add_read(self, given: Given, reader: InputReader) -> None:
        """Adds offsets up to which a consumer has read. Raises TypeError, ValueError, TransactionStateError, the consumer's
        errors."""
        offsets = checked_offsets(given)
        if not hasattr(reader, "transaction_input"):
            raise TypeError(f"group must be the Consumer that has read the input, or the id of a group, not {reader!r:.200}")
        if not offsets:
            return
        group_id, begun = reader.transaction_input({tp: one.offset for tp, one in offsets.items()})
        offsets = {tp: one._replace(leader_epoch_id=one.leader_epoch_id or begun[tp][2]) for tp, one in offsets.items()}
        expected = {tp: begun[tp][1] for tp in offsets}
        self.add(NamedOffsets(group_id, offsets, expected), {tp: begun[tp][0] for tp in offsets})
        self._readers.append((reader, {tp: offset for tp, (offset, *_) in offsets.items()}))

    def add(self, named: NamedOffsets, ids: Mapping[TopicPartition, TopicIdPartition]) -> None:
        """Adds offsets, given the ids of their partitions. Raises TransactionStateError."""
        group_id, offsets, expected = named
        if self._offsets and group_id != self._group_id:
            raise TransactionStateError(
                f"this transaction already has offsets of group '{self._group_id}', so it cannot take those of '{group_id}': a "
                "transaction has one group"
            )
        self._group_id = group_id
        for tp, one in offsets.items():
            known = self._offsets.get(ids[tp])
            before = known.expected if known is not None else expected[tp]
            self._offsets[ids[tp]] = GroupOffset(one.offset, one.metadata, one.leader_epoch, before, one.leader_epoch_id)

    def tell_readers(self, *, is_committed: bool) -> None:
        """Tells the consumers that the commit succeeded, or that it failed or its outcome is unknown."""
        for reader, offsets in self._readers:
            if is_committed:
                reader.transaction_committed(offsets)
            else:
                reader.transaction_failed(offsets)


class Coordinator(Protocol):
    """The coordinator's calls that commit and abort transactions. Each is retried until its timeout."""

    def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """The last committed version; -1 = none. Retries for `timeout_ms` (default.api.timeout.ms). Raises the broker's error,
        BrokerUnreachableError."""

    def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""

    def partition_ids(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """The ids of partitions. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""


class TransactionBase:
    """One transaction's state and decisions. `version` is set inside the block; `is_committed`, once the commit is confirmed."""

    def __init__(self, config: ProducerConfig, version: int | None) -> None:
        if version is not None and version < 0:
            raise ValueError(f"version {version}: the version of a transaction is at least 0")
        self._config = config
        self._asked_version = version
        self._transactional_id = transactional_id_of(config)
        self._execution_id = uuid.uuid4().hex
        self._offsets = SentOffsets()
        self._is_open = False
        self._is_used = False
        self._membership: Membership | None = None
        self.version = -1
        self.is_committed = False

    def _begin_after(self, last: int) -> Membership:
        """Chooses the version, given the last committed one, and returns the membership. Raises AlreadyCommittedError,
        ProducerFencedError, and TransactionStateError if this object was used before."""
        if self._is_used:  # the next block would inherit its offsets and outcome
            raise TransactionStateError("this transaction was used before: call producer.transaction() for each one")
        version = last + 1 if self._asked_version is None else self._asked_version
        if version == last:
            raise AlreadyCommittedError(
                f"transaction {version} of '{self._transactional_id}' is committed already: continue with {last + 1}"
            )
        if version < last:
            raise ProducerFencedError(
                f"transaction {version} of '{self._transactional_id}' comes after {last}, which is committed: versions only rise. "
                f"This does not say whether {version} is committed too"
            )
        self.version = version
        self._membership = Membership(
            self._transactional_id,
            self.version,
            self._execution_id,
            self._execution_id,  # each attempt is its own run: a replay is recognized by its version alone
            f"producer {self._config.client_id}".strip(),
            uuid.uuid4().bytes,
            self._config.transaction_timeout_ms,
        )
        return self._membership

    def _end_of(self, report: MemberReport, *, is_commit: bool) -> TransactionEnd:
        return TransactionEnd(
            self._transactional_id,
            self.version,
            self._execution_id,
            self._execution_id,
            is_commit=is_commit,
            members=[report] if report.producer_id != NO_PRODUCER_ID else [],
            partitions=report.partitions,
            # The random sum keeps another producer's commit of this version from being taken for a replay of this one.
            totals=Totals(rows=report.records, key_hash_sum=secrets.randbits(64)) if is_commit else Totals(),
            group_offsets=self._offsets.all_of_them if is_commit else None,
        )

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        """Wraps the call that commits. Raises DeliveryTimeoutError if its outcome is unknown."""
        try:
            yield
        except ReplayMismatchError as error:
            if self._offsets.all_of_them is None:
                raise
            # The producer that committed this version owns the input.
            raise ProducerFencedError(error.message, fate=Fate.NOT_APPENDED) from error
        except (BrokerUnreachableError, WireError) as error:
            is_fenced = isinstance(error, ProducerFencedError)
            if isinstance(error, WireError) and not error.retriable and not (is_fenced and error.fate is not Fate.NOT_APPENDED):
                raise
            advice = f"begin it again as version {self.version}, and AlreadyCommittedError says that it is"
            if is_fenced:
                advice = "look for its records in the topic"
            if self._offsets.all_of_them is not None:
                advice = "compare the group's committed offsets, and read again from there"
            raise DeliveryTimeoutError(
                f"whether transaction {self.version} of '{self._transactional_id}' is committed is not known: {advice}; last "
                f"trouble: {error}"
            ) from error
        self.is_committed = True

    def _unread(self, offsets: Given, group: InputReader | str, expected: Expected | None) -> NamedOffsets | None:
        """Adds offsets given with a consumer. Offsets given with a group id lack the ids of their partitions and are returned
        instead; None if there are none. Raises like `send_offsets`."""
        if not self._is_open:
            raise TransactionStateError(
                "call send_offsets() inside the block of its transaction: with producer.transaction() as txn"
            )
        if isinstance(group, str):
            if expected is None:
                raise ValueError(
                    f"group '{group}': send_offsets() needs the consumer that has read the input, or `expected`, the offsets that "
                    "the group had when it was read: without them two programs could commit the same input"
                )
            return named_offsets(offsets, group, expected)
        if expected is not None:
            raise ValueError("expected needs a group id; with a consumer, the offsets at which it began to read are used")
        self._offsets.add_read(offsets, group)
        return None

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        """Wraps the call that aborts. Best effort: an abort has no effect on a committed or expired transaction."""
        try:
            yield
        except AlreadyCommittedError:
            pass  # the commit succeeded, but its response was lost
        except BrokerdError as error:
            logger.warning(
                "transaction %d of '%s' could not be aborted; if it is not committed, it expires in %d ms: %s",
                self.version,
                self._transactional_id,
                self._config.transaction_timeout_ms,
                error,
            )


class Transaction(TransactionBase):
    """One transaction, as a context manager for one block."""

    def __init__(self, producer: Producer, coordinator: Callable[[], Coordinator], version: int | None) -> None:
        super().__init__(producer.config, version)
        self._producer = producer
        self._coordinator = coordinator

    def __enter__(self) -> Self:
        """Fetches the last committed version, for max.block.ms at most, and begins. Raises AlreadyCommittedError if the version is
        committed, ProducerFencedError if a newer version is, TransactionStateError if the producer has an open transaction or this
        object was used before, BrokerUnreachableError."""
        last = self._coordinator().last_version(self._transactional_id, timeout_ms=self._config.max_block_ms)
        membership = self._begin_after(last)
        try:
            self._producer.begin_member(membership)
            self._is_open = self._is_used = True
            return self
        except BrokerdError:
            raise
        except BaseException:  # after an interrupt, the member may have begun
            self._producer.abort_member(only=membership)
            raise

    def send_offsets(self, offsets: Given, group: InputReader | str, *, expected: Expected | None = None) -> None:
        """Commits consumer group offsets atomically with the transaction's records.

        `offsets`: the next offset to read by partition, as numbers or OffsetAndMetadata. `group`: the Consumer that read the input,
        with `enable.auto.commit=false`; or a group id with `expected`, the offset that the group had in each partition when the
        input was read (None if it had none). If the group's offsets differ at the commit, another program has processed the input:
        the block ends with ProducerFencedError, and the transaction is aborted. After a failed transaction, the consumer returns to
        the committed offsets of these partitions. Call it as early in the block as possible, and again after reading more: the last
        offset of each partition counts.

        Raises TransactionStateError outside of the block or for a second group; ConsumerStateError for a consumer that commits
        automatically, has no group, or has not read the partition; GroupAuthorizationFailedError if the consumer has sought and may
        not use the group; TypeError, ValueError; UnknownTopicOrPartitionError and BrokerUnreachableError for a group id.
        """
        named = self._unread(offsets, group, expected)
        if named is not None:
            self._offsets.add(named, self._coordinator().partition_ids(named.offsets))

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        """Commits, or aborts after an exception in the block.

        Raises the first failure of a record; TxnAbortedError if the transaction expired; ReplayMismatchError or ProducerFencedError
        if another producer has committed this version or a newer one; and with `send_offsets` ProducerFencedError if another
        producer has committed the same input. In all these cases nothing becomes visible. Raises DeliveryTimeoutError if the
        outcome is unknown; its text says how to find out.
        """
        self._is_open = False
        try:
            if kind is None:
                report = self._producer.end_member()
                with self._committing():
                    self._coordinator().end(self._end_of(report, is_commit=True), timeout_ms=self._config.delivery_timeout_ms)
        except BaseException:
            if not self.is_committed:
                self._abort()
            raise
        else:
            if kind is not None:
                self._abort()
        finally:
            self._offsets.tell_readers(is_committed=self.is_committed)

    def _abort(self) -> None:
        report = self._producer.abort_member(only=self._membership)
        if report.producer_id != NO_PRODUCER_ID:
            with self._aborting():
                self._coordinator().end(self._end_of(report, is_commit=False), timeout_ms=ABORT_TIMEOUT_MS)


def transactional_id_of(config: ProducerConfig) -> str:
    """Returns the transactional.id. Raises ConfigError if there is none."""
    if not config.transactional_id:
        raise ConfigError("transactions need the producer's setting transactional.id: a name that outlives its restarts")
    return config.transactional_id
