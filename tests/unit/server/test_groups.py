"""Groups inside the broker: expiry, deleted topics, disks that refuse writes, compaction of the log."""

from __future__ import annotations

import asyncio
import errno

import pytest

from brokerd.coordinator.group_table import GroupTable
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import LogDamagedError, StorageError, UnknownGroupError
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.handlers import groups
from brokerd.server.security.audit import Audit
from brokerd.server.security.topic_authorizer import ANYBODY, UNLIMITED, Principal, Right, TopicAuthorizer, TopicRights
from brokerd.wire.v1 import offsets_pb2
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.group_offsets import committed
from tests.support.inner_broker import TransactionBroker, running
from tests.support.loop import all_wait, one_turn
from tests.support.transaction_bench import Execution

ANN, BEN = "ann", "ben"
MINUTE_MS = 60_000
PATH = f"{COORDINATOR.id.hex()}-0"


async def commit(broker: TransactionBroker, group_id: str, tp: TopicIdPartition, offset: int) -> None:
    """Commits one offset, at the broker's time."""
    now_ms, ahead_ms = broker.logs.time.stamp_ms()
    await broker.groups.commit(group_id, ANN, [committed(tp, offset, timestamp=now_ms, ahead_ms=ahead_ms)])


async def settled(broker: TransactionBroker) -> GroupTable:
    """The table, once everything in it is durable."""
    async with broker.groups.settled() as table:
        return table


def held(broker: TransactionBroker) -> dict[str, dict[TopicIdPartition, int]]:
    """Offsets by group and partition."""
    return {
        name: {tp: one.offset for tp in group.partitions() if (one := group.offset(tp)) is not None}
        for name, group in broker.groups.table.groups.items()
    }


async def test_a_group_expires_as_a_whole_so_long_after_its_last_commit() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, offsets_retention_minutes=10) as broker:
        first, second = await broker.topic()
        await commit(broker, "a", first, 0)
        await commit(broker, "b", first, 0)
        clock.advance(9 * MINUTE_MS)
        await commit(broker, "a", second, 0)
        clock.advance(7 * MINUTE_MS)
        await broker.groups.sweep()
        assert held(broker) == {"a": {first: 0, second: 0}}, "one commit keeps all of a group"
    async with running(files, clock, offsets_retention_minutes=10) as broker:
        assert held(broker) == {"a": {first: 0, second: 0}}
        clock.advance(6 * MINUTE_MS)
        await broker.groups.sweep()
        assert held(broker) == {}
    async with running(files, clock, offsets_retention_minutes=10) as broker:
        assert held(broker) == {}


async def test_a_group_that_is_renewed_does_not_expire_and_costs_few_records() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, offsets_retention_minutes=12) as broker:
        first, second = await broker.topic()
        await commit(broker, "a", first, 0)
        await commit(broker, "b", first, 0)
        clock.advance(MINUTE_MS)
        await commit(broker, "a", second, 0)
        begin = broker.coordinator_log.ends.log_end_offset
        for _ in range(120):
            clock.advance(MINUTE_MS // 4)
            await broker.groups.renew("a")
            await broker.groups.renew("nobody's")
        assert broker.coordinator_log.ends.log_end_offset - begin == 10, "one in a quarter of the retention"
        await broker.groups.sweep()
        assert held(broker) == {"a": {first: 0, second: 0}}
    clock.advance(8 * MINUTE_MS)
    async with running(files, clock, offsets_retention_minutes=12) as broker:
        await broker.groups.sweep()
        assert held(broker) == {"a": {first: 0, second: 0}}, "a sign of life outlives the broker"
        clock.advance(12 * MINUTE_MS)
        await broker.groups.sweep()
        assert held(broker) == {}


async def test_a_renewal_that_was_not_worth_a_record_counts_too() -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock, offsets_retention_minutes=12) as broker:
        tp, _ = await broker.topic()
        await commit(broker, "a", tp, 0)
        begin = broker.coordinator_log.ends.log_end_offset
        clock.advance(3 * MINUTE_MS - 1)
        await broker.groups.renew("a")
        assert broker.coordinator_log.ends.log_end_offset == begin
        clock.advance(12 * MINUTE_MS)
        await broker.groups.sweep()
        assert held(broker) == {"a": {tp: 0}}
        clock.advance(2)
        await broker.groups.sweep()
        assert held(broker) == {}


async def test_a_group_is_listed_with_the_wall_clocks_time_of_its_last_commit() -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock) as broker:
        first, second = await broker.topic()
        clock.jump_wall(90 * 24 * 60 * MINUTE_MS)
        await commit(broker, "a", first, 0)
        clock.jump_wall(-30 * 24 * 60 * MINUTE_MS)
        clock.advance(MINUTE_MS)
        await commit(broker, "a", second, 0)
        assert groups.listing(broker.groups.table.groups["a"]).commit_timestamp == clock.wall_ms()


async def test_a_clock_that_jumps_ahead_forgets_nothing_at_once() -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock, offsets_retention_minutes=10) as broker:
        tp, _ = await broker.topic()
        await commit(broker, "a", tp, 0)
        clock.jump_wall(365 * 24 * 60 * MINUTE_MS)
        await broker.groups.sweep()
        clock.advance(MINUTE_MS)
        await broker.groups.sweep()
        assert held(broker) == {"a": {tp: 0}}


async def test_offsets_of_a_topic_go_with_it_and_do_not_come_back_with_its_name() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        tp, _ = await broker.topic("t")
        other, _ = await broker.topic("u")
        await commit(broker, "a", tp, 0)
        await commit(broker, "b", tp, 0)
        await commit(broker, "b", other, 0)
        deleted = await broker.broker.admin.run(broker.logs.changes.delete("t"))
        broker.groups.table.forget_topic(deleted.id)
        assert held(broker) == {"b": {other: 0}}
        await broker.topic("t")
    async with running(files, clock) as broker:
        assert held(broker) == {"b": {other: 0}}


async def test_a_topic_that_goes_while_the_log_is_made_leaves_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        tp, _ = await broker.topic("t")
        other, _ = await broker.topic("u")
        make = broker.transactions.log.make

        async def make_late() -> None:
            await broker.broker.admin.run(broker.logs.changes.delete("t", lambda topic: broker.groups.table.forget_topic(topic.id)))
            await make()

        monkeypatch.setattr(broker.transactions.log, "make", make_late)
        await broker.groups.commit("a", ANN, [committed(tp), committed(other)])
        assert held(broker) == {"a": {other: 0}}


@pytest.mark.parametrize("is_behind", [False, True])
async def test_the_first_commit_of_all_comes_while_its_topic_goes(is_behind: bool) -> None:
    """`is_behind`: the log is created after the deletion, so nothing is left to commit. In both cases no group remains."""

    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True, max_groups=1) as broker:
        tp, _ = await broker.topic("t")
        forget = broker.broker.admin.run(broker.logs.changes.delete("t", lambda topic: broker.groups.table.forget_topic(topic.id)))
        deleting = asyncio.create_task(forget)
        if is_behind:
            await one_turn()
        await commit(broker, "a", tp, 0)
        await deleting
        assert held(broker) == {}
        other, _ = await broker.topic("u")
        await broker.groups.commit("a", BEN, [committed(other)])
    files.kill()
    async with running(files, clock) as broker:
        assert held(broker) == {"a": {other: 0}}
        assert broker.groups.table.groups["a"].principal == BEN


async def test_many_groups_that_expire_do_so_in_few_batches() -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock, offsets_retention_minutes=10) as broker:
        tp, _ = await broker.topic()
        for number in range(250):
            await commit(broker, f"group-{number}", tp, 0)
        clock.advance(13 * MINUTE_MS)
        await commit(broker, "kept", tp, 0)
        log = broker.coordinator_log
        size_bytes = log.core.size_bytes
        await broker.groups.sweep()
        assert held(broker).keys() == {"kept"}
        assert log.core.size_bytes - size_bytes < 250 * 200


async def test_a_commit_that_the_disk_refuses_changes_nothing() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        tp, _ = await broker.topic()
        await commit(broker, "a", tp, 0)
        with Gate(files, "pwritev", path=PATH, error=errno.ENOSPC), pytest.raises(StorageError):
            await broker.groups.delete("a")
        assert held(broker) == {"a": {tp: 0}}
        assert await broker.groups.delete("a") == 1
        with pytest.raises(UnknownGroupError):
            await broker.groups.delete("a")


async def test_nobody_is_told_of_an_offset_that_is_not_durable() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        tp, _ = await broker.topic()
        await commit(broker, "a", tp, 0)
        with Gate(files, "fdatasync", path=PATH) as gate:
            committing = asyncio.create_task(broker.groups.delete("a"))
            await asyncio.to_thread(gate.wait_until_reached)
            reading = asyncio.create_task(settled(broker))
            refused = asyncio.create_task(broker.groups.delete("a"))
            await all_wait()
            assert not committing.done()
            assert not reading.done()
            assert not refused.done(), "that there is no such group rests on what is not durable yet"
        assert (await reading).groups == {}
        assert await committing == 1
        with pytest.raises(UnknownGroupError):
            await refused


async def test_commits_of_one_group_become_durable_together() -> None:
    """A group with hundreds of processes would otherwise wait for hundreds of flushes, one after the other."""
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        tps = await broker.topic(partitions=4)
        await commit(broker, "a", tps[0], 0)
        authorizer = TopicAuthorizer(ANYBODY, broker.broker.topics)
        with Gate(files, "fdatasync", path=PATH) as gate:
            commits = []
            for tp in tps:
                entry = offsets_pb2.PartitionGroupOffset(**tp._asdict(), leader_epoch=-1)
                request = offsets_pb2.CommitGroupOffsetsRequest(group_id="a", offsets=[entry])
                commits.append(asyncio.create_task(groups.commit_group_offsets(broker.broker, authorizer, request)))
            await asyncio.to_thread(gate.wait_until_reached)
            await all_wait()
            assert held(broker) == {"a": dict.fromkeys(tps, 0)}
            assert not any(one.done() for one in commits)
        for one in commits:
            assert not any(result.HasField("error") for result in (await one).results)


async def test_a_description_says_what_was_durable_when_it_began() -> None:
    """A description takes several turns of the loop, and others commit in between."""

    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        tps = await broker.topic(partitions=500)
        await broker.groups.commit("a", ANN, [committed(tp) for tp in tps])
        authorizer = TopicAuthorizer(Principal(ANN, UNLIMITED), broker.logs.topics)
        request = offsets_pb2.DescribeGroupRequest(group_id="a")
        describing = asyncio.create_task(groups.describe_group(broker.broker, authorizer, request))
        await one_turn()
        assert not describing.done()
        with Gate(files, "fdatasync", path=PATH) as gate:
            committing = asyncio.create_task(commit(broker, "a", tps[-1], 1))
            await asyncio.to_thread(gate.wait_until_reached)
            described = await describing
            assert not committing.done()
        await committing
        assert [one.committed.offset for one in described.partitions] == [0] * len(tps)


async def test_topics_that_the_caller_may_not_read_cost_no_look_at_their_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        tps = await broker.topic(partitions=500)
        await broker.groups.commit("a", ANN, [committed(tp) for tp in tps])
        audit = Audit(ManualClock())
        authorizer = TopicAuthorizer(Principal(BEN, TopicRights({}, ["a"])), broker.logs.topics, audit)
        looked_at, allows = list[bytes](), authorizer.allows_id

        def counted(right: Right, topic_id: bytes) -> bool:
            looked_at.append(topic_id)
            return allows(right, topic_id)

        monkeypatch.setattr(authorizer, "allows_id", counted)
        fetched = await groups.fetch_group_offsets(broker.broker, authorizer, offsets_pb2.FetchGroupOffsetsRequest(group_id="a"))
        described = await groups.describe_group(broker.broker, authorizer, offsets_pb2.DescribeGroupRequest(group_id="a"))
        assert (list(fetched.results), list(described.partitions)) == ([], [])
        assert len(looked_at) == 2
        assert not audit._windows, "what only lists is not refused anything"


async def test_a_directory_that_cannot_be_written_is_read() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        tp, _ = await broker.topic()
        await commit(broker, "a", tp, 0)
    files.kill()

    def fail(operation: str, path: str) -> None:
        if operation in ("create", "unlink", "rename", "pwritev", "truncate", "fdatasync", "sync_dir", "mkdir"):
            raise OSError(errno.EROFS, "Read-only file system", path)

    files.hook = fail
    async with running(files, clock, is_killed=True) as broker:
        assert held(broker) == {"a": {tp: 0}}
        with pytest.raises(LogDamagedError, match="is read-only"):
            await commit(broker, "a", tp, 1)
        assert held(broker) == {"a": {tp: 0}}
    files.kill()
    async with running(files, clock) as broker:
        await commit(broker, "a", tp, 1)


async def test_a_failed_flush_stops_groups_and_transactions_but_not_topics() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        tp, _ = await broker.topic()
        await commit(broker, "a", tp, 0)
        with Gate(files, "fdatasync", path=PATH, error=errno.EIO), pytest.raises(StorageError):
            await commit(broker, "b", tp, 0)
        with pytest.raises(StorageError):
            await commit(broker, "a", tp, 0)
        with pytest.raises(StorageError):
            await settled(broker)
        with pytest.raises(StorageError):
            await broker.init("app", Execution(0, "e", ""), b"m" * 16)
        assert await broker.topic("other")
    files.kill()
    async with running(files, clock) as broker:
        assert held(broker)["a"] == {tp: 0}


async def test_the_log_is_compacted_while_others_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 20_000)
    monkeypatch.setattr("brokerd.coordinator.group_table.PIECE_SLOTS", 10)

    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        tps = await broker.topic(partitions=40)
        offsets = [committed(tp, timestamp=clock.wall_ms()) for tp in tps]
        await broker.groups.commit("large", ANN, offsets)
        while not broker.transactions.log.has_grown():
            await commit(broker, "a", tps[0], 0)
        log = broker.coordinator_log
        before = log.ends.log_end_offset
        compacting = asyncio.create_task(broker.transactions.compact())
        count = 0
        while not compacting.done() and count < 10:  # 25 would make the log grow again, if the compaction is slow
            await commit(broker, f"during-{count % 3}", tps[count % 40], 0)
            count += 1
        await compacting
        assert before <= log.ends.log_start_offset < log.ends.log_end_offset
        assert not broker.transactions.log.has_grown()
        expected = held(broker)
        assert len(expected) == 2 + min(count, 3), "large, a, and those that came during it"
    files.kill()
    async with running(files, clock) as broker:
        assert held(broker) == expected


async def test_a_compaction_that_the_disk_refuses_gives_up_nothing_and_is_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 5_000)

    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        tp, _ = await broker.topic()
        while not broker.transactions.log.has_grown():
            await commit(broker, "a", tp, 0)
        with Gate(files, "pwritev", path=PATH, error=errno.ENOSPC):
            await broker.transactions.compact()
        assert "the coordinator's log cannot be compacted: " in caplog.text
        assert not broker.transactions.log.has_grown()
        log = broker.coordinator_log
        assert log.ends.log_start_offset == 0
        while not broker.transactions.log.has_grown():
            await commit(broker, "a", tp, 0)
        await broker.transactions.compact()
        assert log.ends.log_start_offset > 0
        assert held(broker) == {"a": {tp: 0}}
