"""Transactions and their members as plain values, which Spark sends between processes.

A transaction is one version of one transactional id. Its members write, each with a producer id of its own that is used for this
transaction only. A TransactionEnd that lists the members commits or aborts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from brokerd.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicIdPartition

TRANSACTION_TIMEOUT_MS = 900_000
HASH_SUM_MODULUS = 2**64
ONE_WRITE_KEPT_MS = 3_600_000  # a broker remembers the id of a one-write transaction at least this long after its commit


class Membership(NamedTuple):
    """One member of a transaction: the request for its producer id. Texts have at most 249 characters."""

    transactional_id: str
    txn_version: int  # rises from one transaction of the id to the next
    execution_id: str  # one attempt at that version, compared for equality only
    run_id: str
    owner: str  # display text
    member_id: bytes  # 16 random bytes; a repeated request returns the same producer id
    timeout_ms: int = TRANSACTION_TIMEOUT_MS  # the execution expires this long after the last heartbeat of any member


class MemberReport(NamedTuple):
    """The records that a member wrote; a TransactionEnd lists the reports of its members."""

    producer_id: int = NO_PRODUCER_ID  # if none was granted (no row came): nothing to commit or abort
    epoch: int = NO_PRODUCER_EPOCH
    records: int = 0  # acknowledged, over all partitions
    partitions: tuple[TopicIdPartition, ...] = ()


class Totals(NamedTuple):
    """Sums over all rows of a transaction, to tell a replay from another batch."""

    rows: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    key_hash_sum: int = 0  # modulo 2^64

    def plus(self, other: Totals) -> Totals:
        """The sum of both."""
        return Totals(
            self.rows + other.rows,
            self.key_bytes + other.key_bytes,
            self.value_bytes + other.value_bytes,
            (self.key_hash_sum + other.key_hash_sum) % HASH_SUM_MODULUS,
        )


class GroupOffset(NamedTuple):
    """The offset of a group in one partition once the transaction commits."""

    offset: int  # the next one to read
    metadata: str  # free text
    leader_epoch: int  # of the last record read; -1 = unknown
    expected: int  # the group's offset when the input was read, -1 = none; if it differs at the commit, nothing is committed
    leader_epoch_id: int = 0  # of the epoch of the last record read; 0 = unknown


class GroupOffsets(NamedTuple):
    """Offsets of a group to commit with a transaction."""

    group_id: str
    offsets: Mapping[TopicIdPartition, GroupOffset]


class TransactionEnd(NamedTuple):
    """The commit or abort of one execution of a transaction."""

    transactional_id: str
    txn_version: int
    execution_id: str
    run_id: str
    is_commit: bool  # False = abort
    members: Sequence[MemberReport] = ()
    partitions: Collection[TopicIdPartition] = ()  # of all members
    totals: Totals = Totals()
    any_skipped: bool = False  # some member got ALREADY_COMMITTED and sent nothing
    is_one_write: bool = False  # the transactional id is used once, so the broker forgets it an hour after the commit
    group_offsets: GroupOffsets | None = None  # only of a commit
