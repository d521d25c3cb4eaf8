"""The values of transactions. None of them changes; times are ms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from brokerd.groups.model import LogEntry as GroupEntry
from brokerd.ids import TopicIdPartition

MEMBER_EPOCH = 0  # of every member, for ever: a producer id serves one transaction


class Execution(NamedTuple):
    """One attempt at a version, of one write. `run_id` is what the write is a part of, and in which every version is written once:
    of Spark's foreachBatch, one execution of the micro-batch. Both ids are compared for equality only; an empty run is none.
    """

    version: int
    execution_id: str
    run_id: str


class Member(NamedTuple):
    """A producer that takes part in an execution."""

    member_id: bytes  # 16
    producer_id: int
    execution: Execution
    owner: str  # free text
    timeout_ms: int


class Totals(NamedTuple):
    """Sums over all rows of a version, by which a replay is told from another batch."""

    rows: int
    key_bytes: int
    value_bytes: int
    key_hash_sum: int  # modulo 2^64


class EarlierCommit(NamedTuple):
    """A committed version that is not the newest any more."""

    version: int
    digest: bytes  # of its execution and totals


class LastCommit(NamedTuple):
    """The newest version that is committed. `timestamp` is the wall clock, ms. Its members are known even when all markers are
    durable, as far as there is room: by that a start can write a marker again that a partition has lost.
    """

    execution: Execution
    totals: Totals
    timestamp: int
    committed_ids: Sequence[int] = ()  # producer ids of the winners
    aborted_ids: Sequence[int] = ()  # and of all others that ended with it
    is_one_write: bool = False  # the id serves no other
    earlier: Sequence[EarlierCommit] = ()  # the commits before it, the oldest first, as many as are remembered
    repeats: Sequence[Execution] = ()  # that were told that it is committed: of other runs, one of each, the newest of them


class HeldBack(NamedTuple):
    """A partition whose last stable offset does not pass `first_offset`, where the members' data begins, before the commit is
    complete.
    """

    tp: TopicIdPartition
    first_offset: int


class PreparedCommit(NamedTuple):
    """A commit whose markers are not all durable."""

    execution: Execution
    committed_ids: Sequence[int]  # producer ids of the winners
    aborted_ids: Sequence[int]  # and of all others that ended with it
    partitions: Sequence[TopicIdPartition]  # that the winners named
    held_back: Sequence[HeldBack] = ()  # all that have data of any of them
    group_offsets: GroupEntry | None = None  # how far a group has read with it


# Requests


class InitMember(NamedTuple):
    """Asks to take part. The same `member_id` again is the same question."""

    transactional_id: str
    principal: str
    execution: Execution
    member_id: bytes
    owner: str
    timeout_ms: int


class MemberReport(NamedTuple):
    """A listed member. `records` were acknowledged to it, over all partitions."""

    producer_id: int
    producer_epoch: int
    records: int


class EndRequest(NamedTuple):
    """A decision, all pages of it."""

    transactional_id: str
    principal: str
    execution: Execution
    members: Sequence[MemberReport]
    partitions: Sequence[TopicIdPartition]
    totals: Totals
    any_skipped: bool
    is_one_write: bool = False  # the id serves this write and no other


class HeldData(NamedTuple):
    """A member's data that no marker has decided, over all partitions."""

    records: int  # modulo 2^31 in each partition
    is_durable: bool  # all of it


class Held(NamedTuple):
    """The open data of members, by producer id, as the partitions have it at the moment of a decision."""

    members: Mapping[int, HeldData]
    missing: Collection[TopicIdPartition] = ()  # named by the driver, but their topics are deleted


# Events: what the log records


class MemberOpened(NamedTuple):
    """A member takes part from now on."""

    member: Member


class MembersAborted(NamedTuple):
    """Members ended, and their data is void."""

    producer_ids: Sequence[int]


class CommitPrepared(NamedTuple):
    """A version is committed; all open members of that version or an older one have ended."""

    execution: Execution
    committed_ids: Sequence[int]
    aborted_ids: Sequence[int]
    partitions: Sequence[TopicIdPartition]
    totals: Totals
    held_back: Sequence[HeldBack] = ()  # as it is recorded: a decision does not know them
    is_one_write: bool = False  # the id serves no other
    group_offsets: GroupEntry | None = None  # as it is recorded, too: how far a group has read with it
    earlier: Sequence[EarlierCommit] = ()  # in a state; elsewhere the log has said it before


class CommitCompleted(NamedTuple):
    """The markers of the prepared version are durable."""

    version: int


class VersionRepeated(NamedTuple):
    """An execution of another run is told that the last version is committed: a further write of its run is another write."""

    execution: Execution


class Forgotten(NamedTuple):
    """Nothing is known of the transactional id any more."""


class StateBegins(NamedTuple):
    """A state of everything begins. Until its end, what was read before holds."""

    in_pieces: bool = False  # its entries are marked, and others may stand among them; else all up to its end are its own


class StateEnds(NamedTuple):
    """It is complete, with so many transactional ids."""

    transactional_ids: int


class EntriesLost(NamedTuple):
    """Entries stood here that are lost, as an operator has accepted. Found by whoever reads the log, and never written."""


Event = MemberOpened | MembersAborted | CommitPrepared | CommitCompleted | VersionRepeated | Forgotten
StateEvent = StateBegins | StateEnds


class LogEntry(NamedTuple):
    """A record of the transaction log. The id and its principal are empty in what is of no id."""

    transactional_id: str
    principal: str
    timestamp: int  # wall clock, ms
    event: Event | StateEvent | EntriesLost
    in_state: bool = False  # a part of the state that began last


# Decisions


class Repeated(NamedTuple):
    """The member is open already."""

    member: Member


class Opened(NamedTuple):
    """The member may take part: answer once this event is durable."""

    event: MemberOpened

    @property
    def member(self) -> Member:
        """The new member."""
        return self.event.member


class AlreadyCommitted(NamedTuple):
    """The version is committed, by this execution with these totals, and all is visible: answer that it is done."""

    execution: Execution
    totals: Totals


class Prepare(NamedTuple):
    """This is to be committed: record the event, with what it holds back, then finish what it prepared."""

    event: CommitPrepared


class Repeat(NamedTuple):
    """The version is committed, with these totals: record the event, then ask again."""

    event: VersionRepeated


class Finish(NamedTuple):
    """A commit must be finished first: its markers written, CommitCompleted applied. Then ask again."""

    prepared: PreparedCommit


CommitDecision = AlreadyCommitted | Prepare | Repeat | Finish
