"""A transaction as its members and its owner name it to the broker: plain values, which Spark sends between processes.

A transaction is one version of one transactional id. Its members write; each is a producer id that serves this transaction only.
One decision, with the members that count, commits or aborts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from brokerd.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicIdPartition, TopicPartition

TRANSACTION_TIMEOUT_MS = 900_000
HASH_SUM_MODULUS = 2**64
ONE_WRITE_KEPT_MS = 3_600_000  # for so long after its commit, at least, a broker knows an id that serves one write


class Membership(NamedTuple):
    """One member of a transaction, as it asks for its producer id. Texts have at most 249 characters."""

    transactional_id: str
    txn_version: int  # rises from one transaction of the id to the next
    execution_id: str  # one attempt at that version, compared for equality only
    run_id: str
    owner: str  # free text for people
    member_id: bytes  # 16 random bytes; the same member gets the same producer id again
    timeout_ms: int = TRANSACTION_TIMEOUT_MS  # the execution expires after so long without a sign of life of any member


class MemberReport(NamedTuple):
    """The records that a member wrote."""

    producer_id: int = NO_PRODUCER_ID  # NO_PRODUCER_ID: no row came, so it never asked for one, and is no member to the broker
    epoch: int = NO_PRODUCER_EPOCH
    records: int = 0  # acknowledged, over all partitions
    partitions: tuple[TopicIdPartition, ...] = ()
    rows_per_partition: dict[TopicPartition, int] = {}  # noqa: RUF012 (never changed)


class Totals(NamedTuple):
    """Sums over all rows of a transaction, to tell a replay from another batch."""

    rows: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    key_hash_sum: int = 0  # modulo 2^64

    def plus(self, other: Totals) -> Totals:
        """The sums over the rows of both."""
        return Totals(
            self.rows + other.rows,
            self.key_bytes + other.key_bytes,
            self.value_bytes + other.value_bytes,
            (self.key_hash_sum + other.key_hash_sum) % HASH_SUM_MODULUS,
        )


class TransactionMember(NamedTuple):
    """A member that takes part in a decision."""

    producer_id: int
    epoch: int
    records: int  # as in MemberReport


class GroupOffset(NamedTuple):
    """How far a group has read one partition, if the transaction commits."""

    offset: int  # the next one to read
    metadata: str  # free text
    leader_epoch: int  # of the last record read; -1 = unknown
    expected: int  # offset that the group had when the input was read, -1 = none: else nothing is committed
    leader_epoch_id: int = 0  # of the epoch of the last record read; 0 = unknown


class GroupOffsets(NamedTuple):
    """Offsets of a group that are committed with a transaction."""

    group_id: str
    offsets: Mapping[TopicIdPartition, GroupOffset]


class TransactionEnd(NamedTuple):
    """A decision about one execution of a transaction."""

    transactional_id: str
    txn_version: int
    execution_id: str
    run_id: str
    is_commit: bool  # else: abort
    members: Sequence[TransactionMember] = ()
    partitions: Collection[TopicIdPartition] = ()  # of all members
    totals: Totals = Totals()
    any_skipped: bool = False  # some member was told ALREADY_COMMITTED, and sent nothing
    is_one_write: bool = False  # the transactional id serves no other: the broker forgets it an hour after the commit
    group_offsets: GroupOffsets | None = None  # of a commit
