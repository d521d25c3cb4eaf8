"""Group offsets committed with a transaction: both or neither, what refuses them, and which requests wait meanwhile."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Mapping

import pytest

from brokerd.coordinator.group_table import METADATA_MAX_BYTES
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.failures import MalformedError
from brokerd.server.handlers import groups, transaction_admin, transactions
from brokerd.server.security.topic_authorizer import ANYBODY, Principal, Right, TopicAuthorizer, TopicRights
from brokerd.wire.v1 import offsets_pb2, transaction_pb2
from brokerd.wire.v1.coordinator_log_pb2 import MemberOpened
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.inner_broker import TransactionBroker, Write, running
from tests.support.loop import all_wait
from tests.support.transaction_bench import Execution
from tests.support.wait import DEADLINE_S

NONE = -1
LOG_PATH = f"{COORDINATOR.id.hex()}-0"
BOB = Principal("bob", TopicRights({Right.READ: ["t"], Right.WRITE: ["t"]}, ["bobs"]))
WRITER = Principal("writer", TopicRights({Right.WRITE: ["t"]}, ["w"]))


class Program:
    """A program's transaction, which may write a row and commit group offsets with it."""

    def __init__(self, broker: TransactionBroker, name: str = "app", principal: Principal = ANYBODY) -> None:
        self.broker = broker
        self.name = name
        self.authorizer = TopicAuthorizer(principal, broker.logs.topics)
        self.execution = Execution(0, uuid.uuid4().hex, "")
        self.member: MemberOpened | None = None

    async def begin(self, value: bytes = b"row", version: int = 0) -> Program:
        self.execution = self.execution._replace(txn_version=version)
        self.tps = await self.broker.topic()
        self.member = await self.broker.init(self.name, self.execution, uuid.uuid4().bytes)
        await self.broker.write(self.member, [Write(self.tps[0], value)])
        return self

    async def end(
        self,
        offsets: Mapping[TopicIdPartition, tuple[int, int]],
        *,
        group: str = "g",
        metadata: str = "",
        is_commit: bool = True,
    ) -> str:
        """Ends the transaction with these offsets, each with its expected one. Returns the error's name, or an empty string."""
        members = [(self.member.producer_id, 1)] if self.member is not None else []
        decision = transaction_pb2.TRANSACTION_DECISION_COMMIT if is_commit else transaction_pb2.TRANSACTION_DECISION_ABORT
        request = transaction_pb2.EndTransactionRequest(
            transactional_id=self.name,
            txn_version=self.execution.txn_version,
            execution_id=self.execution.execution_id,
            decision=decision,
            members=[transaction_pb2.TransactionMember(producer_id=pid, records=count) for pid, count in members],
            group_id=group if offsets else "",
            group_offsets=[
                transaction_pb2.TransactionGroupOffset(
                    topic_id=tp.topic_id, partition=tp.partition, offset=offset, expected_offset=expected, metadata=metadata
                )
                for tp, (offset, expected) in offsets.items()
            ],
        )
        response = await transactions.end_transaction(self.broker.broker, self.authorizer, request)
        self.message = response.error.message
        return ErrorCode(response.error.code).name if response.HasField("error") else ""

    def visible(self) -> list[bytes]:
        return self.broker.visible(self.tps[0])


async def fetched(broker: TransactionBroker, tps: list[TopicIdPartition], group: str = "g") -> list[int]:
    """The group's offsets, or -2 where the broker gives an error."""
    asked = [offsets_pb2.PartitionGroupOffset(topic_id=tp.topic_id, partition=tp.partition) for tp in tps]
    request = offsets_pb2.FetchGroupOffsetsRequest(group_id=group, partitions=asked)
    response = await groups.fetch_group_offsets(broker.broker, TopicAuthorizer(ANYBODY, broker.logs.topics), request)
    return [-2] if response.HasField("error") else [one.offset for one in response.results]


async def set_offset(broker: TransactionBroker, tp: TopicIdPartition, offset: int) -> None:
    """Commits one offset without a transaction."""
    entry = offsets_pb2.PartitionGroupOffset(topic_id=tp.topic_id, partition=tp.partition, offset=offset)
    request = offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=[entry])
    await groups.commit_group_offsets(broker.broker, TopicAuthorizer(ANYBODY, broker.logs.topics), request)


async def test_rows_and_offsets_are_there_together_and_an_abort_leaves_them_alone() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        one = await Program(broker).begin()
        assert await one.end({one.tps[0]: (1, NONE), one.tps[1]: (0, NONE)}) == ""
        assert (one.visible(), await fetched(broker, one.tps)) == ([b"row"], [1, 0])
        two = await Program(broker).begin(version=1)
        assert await two.end({}, is_commit=False) == ""
        assert (one.visible(), await fetched(broker, one.tps)) == ([b"row"], [1, 0])


async def test_offsets_without_rows_keep_a_group_that_has_moved_nowhere() -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock, offsets_retention_minutes=10) as broker:
        one = await Program(broker).begin()
        assert await one.end({one.tps[0]: (1, NONE)}) == ""
        clock.advance(9 * 60_000)
        idle = Program(broker, "idle")
        assert await idle.end({one.tps[0]: (1, 1)}) == ""
        clock.advance(9 * 60_000)
        await broker.groups.sweep()
        assert await fetched(broker, one.tps[:1]) == [1]
        clock.advance(4 * 60_000)
        await broker.groups.sweep()
        assert await fetched(broker, one.tps[:1]) == [NONE]


async def test_a_program_that_was_overtaken_is_refused_and_a_repeated_request_is_not() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        zombie, heir = await Program(broker, "a").begin(b"again"), await Program(broker, "b").begin(b"once")
        asked = {heir.tps[0]: (1, NONE)}
        assert await heir.end(asked) == ""
        assert await zombie.end(asked) == "PRODUCER_FENCED"
        assert "its offset of t-0 is 1, but the input of this transaction was read when it was not set" in zombie.message
        assert await zombie.end({}, is_commit=False) == ""
        assert await heir.end(asked) == "", "the same request finds out that it is committed"
        later = await Program(broker, "a").begin(b"later")
        assert await later.end({heir.tps[0]: (2, 1)}) == ""
        assert later.visible() == [b"once", b"later"]
        assert await fetched(broker, heir.tps) == [2, NONE]


async def test_what_cannot_be_committed_is_refused_by_name_and_the_transaction_goes_on() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        one = await Program(broker).begin()
        tp, other = one.tps[0], (await broker.topic("other"))[0]
        assert await one.end({tp: (5, NONE)}) == "OFFSET_OUT_OF_RANGE"
        assert "beyond the high watermark 1 of t-0" in one.message
        assert await one.end({tp: (1, NONE)}, metadata="x" * (METADATA_MAX_BYTES + 1)) == "OFFSET_METADATA_TOO_LARGE"
        assert "offsets.metadata of t-0 has 4097 bytes" in one.message
        assert await one.end({TopicIdPartition(b"?" * 16, 0): (0, NONE)}) == "TXN_ABORTED"
        assert await one.end({TopicIdPartition(tp.topic_id, 9): (0, NONE)}) == "TXN_ABORTED"
        bobs = Program(broker, "bobs", BOB)
        assert await bobs.end({tp: (0, NONE)}, group="bobs") == ""
        writer = Program(broker, "writers", WRITER)
        assert await writer.end({tp: (0, NONE)}, group="w") == "TOPIC_AUTHORIZATION_FAILED"
        assert await Program(broker, "b2", BOB).end({other: (0, NONE)}, group="bobs") == "TXN_ABORTED", (
            "a topic that it may not see is none"
        )
        assert await one.end({tp: (1, NONE)}) == "", "nothing of this has ended it"
        assert await Program(broker, "b3", BOB).end({tp: (1, 1)}) == "GROUP_AUTHORIZATION_FAILED"
        assert (one.visible(), await fetched(broker, [tp])) == ([b"row"], [1])


async def test_a_repeated_commit_is_done_whatever_rights_are_left() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        one = await Program(broker).begin()
        asked = {one.tps[0]: (1, NONE)}
        assert await one.end(asked) == ""
        one.authorizer = TopicAuthorizer(BOB._replace(name=ANYBODY.name), broker.logs.topics)
        assert await one.end(asked) == ""
        other = await Program(broker).begin(version=1)
        other.authorizer = one.authorizer
        assert await other.end({one.tps[0]: (2, 1)}) == "GROUP_AUTHORIZATION_FAILED"
        assert (one.visible(), await fetched(broker, one.tps)) == ([b"row"], [1, NONE])


async def test_requests_that_make_no_sense_are_malformed() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        one = await Program(broker).begin()
        for offsets, group, is_commit, field in (
            ({one.tps[0]: (0, -2)}, "g", True, "group_offsets.expected_offset"),
            ({one.tps[0]: (-1, 0)}, "g", True, "group_offsets.offset"),
            ({TopicIdPartition(b"short", 0): (0, 0)}, "g", True, "group_offsets"),
            ({one.tps[0]: (0, 0)}, "", True, "group_id"),
            ({one.tps[0]: (0, 0)}, "g", False, "group_offsets"),
        ):
            with pytest.raises(MalformedError, match=f"^{field}"):
                await one.end(offsets, group=group, is_commit=is_commit)


async def test_whoever_asks_about_the_group_waits_for_a_decision_that_is_not_durable() -> None:
    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        one = await Program(broker).begin()
        with Gate(files, "fdatasync", path=LOG_PATH) as gate:
            committing = asyncio.create_task(one.end({one.tps[0]: (1, NONE)}))
            await asyncio.to_thread(gate.wait_until_reached)
            reading = asyncio.create_task(fetched(broker, one.tps))
            setting = asyncio.create_task(set_offset(broker, one.tps[0], 0))
            zombie = asyncio.create_task(Program(broker, "b").end({one.tps[0]: (1, NONE)}))
            await all_wait()
            assert not any(task.done() for task in (committing, reading, setting, zombie))
        assert await committing == ""
        assert (await reading)[0] in (0, 1)
        assert await zombie == "PRODUCER_FENCED"
        await setting
        assert await fetched(broker, one.tps) == [0, NONE], "what was set after the decision stays"


async def test_no_view_shows_a_version_before_it_is_durable() -> None:
    """A program that reads the version skips its input, but a power cut could still undo the commit."""
    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        one = await Program(broker).begin()
        everyone = TopicAuthorizer(ANYBODY, broker.logs.topics)
        with Gate(files, "fdatasync", path=LOG_PATH) as gate:
            committing = asyncio.create_task(one.end({}))
            await asyncio.to_thread(gate.wait_until_reached)
            listing = asyncio.create_task(
                transaction_admin.list_transactions(broker.broker, everyone, transaction_pb2.ListTransactionsRequest())
            )
            asked = transaction_pb2.DescribeTransactionRequest(transactional_id=one.name)
            describing = asyncio.create_task(transaction_admin.describe_transaction(broker.broker, everyone, asked))
            await all_wait()
            assert not any(task.done() for task in (committing, listing, describing))
        assert await committing == ""
        assert [found.last_version for found in (await listing).transactions] == [one.execution.txn_version]
        assert (await describing).listing.last_version == one.execution.txn_version


async def test_no_view_shows_a_version_that_the_disk_refused() -> None:
    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        one = await Program(broker).begin()
        with Gate(files, "fdatasync", path=LOG_PATH, error=errno.EIO):
            assert await one.end({}) == "STORAGE_ERROR"
        everyone = TopicAuthorizer(ANYBODY, broker.logs.topics)
        listed = await transaction_admin.list_transactions(broker.broker, everyone, transaction_pb2.ListTransactionsRequest())
        assert listed.HasField("error")


async def test_commits_without_an_end_do_not_keep_a_transaction_from_its_decision() -> None:
    """Other programs commit to the same group, so at any time one commit is not durable yet."""
    async with running(MemoryFiles(), ManualClock()) as broker:
        one = await Program(broker).begin()
        is_decided = False

        async def set_again_and_again() -> None:
            while not is_decided:
                await set_offset(broker, one.tps[1], 0)

        others = [asyncio.create_task(set_again_and_again()) for _ in range(20)]
        await set_offset(broker, one.tps[1], 0)
        async with asyncio.timeout(DEADLINE_S):
            assert await one.end({one.tps[0]: (1, NONE)}) == ""
        is_decided = True
        await asyncio.gather(*others)
        assert await fetched(broker, one.tps) == [1, 0]


async def test_a_decision_that_the_disk_refuses_leaves_the_old_offset_and_no_rows() -> None:
    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        one = await Program(broker).begin()
        await set_offset(broker, one.tps[0], 0)
        with Gate(files, "pwritev", path=LOG_PATH, error=errno.ENOSPC):
            assert await one.end({one.tps[0]: (1, 0)}) == "STORAGE_ERROR"
            assert (one.visible(), await fetched(broker, [one.tps[0]])) == ([], [0])
        assert await one.end({one.tps[0]: (1, 0)}) == ""
        assert (one.visible(), await fetched(broker, [one.tps[0]])) == ([b"row"], [1])


async def test_a_start_finds_a_decision_with_its_offsets() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        one = await Program(broker).begin()
        await set_offset(broker, one.tps[0], 0)
        with Gate(files, "pwritev", path=one.tps[0].directory_name, error=errno.ENOSPC):  # refuses its marker
            assert await one.end({one.tps[0]: (1, 0)}) == "STORAGE_ERROR"
        assert (one.visible(), await fetched(broker, [one.tps[0]])) == ([], [1]), "decided, though its rows are not visible yet"
    files.kill()
    async with running(files, clock) as broker:
        assert (broker.visible(one.tps[0]), await fetched(broker, [one.tps[0]])) == ([b"row"], [1])
        await set_offset(broker, one.tps[0], 0)
    async with running(files, clock) as broker:
        assert await fetched(broker, [one.tps[0]]) == [0], "what was set after the decision stays"


async def test_a_compacted_log_holds_transactions_and_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 1)
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await Program(broker).begin()
        assert await one.end({one.tps[0]: (1, NONE)}) == ""
        await broker.transactions.compact()
        log = broker.coordinator_log
        assert log.ends.log_start_offset > 0
    async with running(files, clock) as broker:
        assert await fetched(broker, one.tps) == [1, NONE]
        assert broker.transactions.coordinator.states["app"].last_version == 0
