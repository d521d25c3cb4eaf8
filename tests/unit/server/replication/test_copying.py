"""Copies become equal whatever happens to roles meanwhile: real directories, leaders and copiers in one process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from brokerd.cluster.election import elected_unclean
from brokerd.cluster.image import Node
from brokerd.cluster.keys import PartitionEntry, decode_partition, encode
from brokerd.errors import Fate, LogDamagedError, NotLeaderError, NotReadyError, StorageError, WireError
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.partition.derived_files import write_snapshot
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.partition.reader import FetchDataInfo
from brokerd.replication.leader import left
from brokerd.server.paging import Pauses
from brokerd.server.replication.copying import Copier, Copying
from brokerd.server.replication.serving import CATCH_UP_BYTES, ReplicaStream
from brokerd.sharing import BROKER
from brokerd.steps import Job
from brokerd.storage.damage import DamagedRange
from brokerd.storage.holes import Hole
from brokerd.wire.records import split_records
from tests.support.build import append, payloads
from tests.support.copies import LAG_MS, Copies, CopyNode, copies, tp_of, until
from tests.support.loop import all_wait
from tests.support.wait import DEADLINE_S


async def test_a_follower_copies_what_its_leader_has() -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        entry = all_of_them.entry(1, 1)
        await all_of_them.hear(entry, 2)
        append(one.log(), b"from one")
        await until(lambda: one.log().ends.high_watermark == 1)
        await until(lambda: payloads(two.log()) == [b"from one"])


async def test_a_copy_that_was_in_sync_when_an_older_one_was_elected_is_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        await one.takes_role(all_of_them.entry(1, 1))
        await two.takes_role(all_of_them.entry(2, 2))
        append(two.log(), b"of two alone")  # its high watermark does not show that it was acknowledged
        was = all_of_them.entry(2, 2, [2])
        elected = elected_unclean(was, one.image.nodes[1])
        await one.hears(elected, 2)
        append(one.log(), b"of one")
        await two.hears(elected, 2)
        await until(lambda: "it may have what no other has" in caplog.text)
        assert two.log().ends.log_end_offset == 1
        assert one.leading._led[tp_of(0)].proposal(one.image.nodes, 0, LAG_MS) is None, "it does not join"


async def test_a_copy_that_was_in_sync_when_an_older_one_was_elected_does_not_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    """As when retention at the leader has passed the copy's end before the copy's disk is back."""
    async with copies() as all_of_them:
        one, two = all_of_them
        await one.takes_role(all_of_them.entry(1, 1))
        await two.takes_role(all_of_them.entry(2, 2))
        for _ in range(3):
            append(two.log(), b"of two alone")
        elected = elected_unclean(all_of_them.entry(2, 2, [2]), one.image.nodes[1])
        await one.hears(elected, 2)
        for _ in range(6):
            append(one.log(), b"of one")
        await until(lambda: one.log().ends.high_watermark == 6)
        one.log().set_log_start(5)
        await two.hears(elected, 2)
        await until(lambda: "does not begin anew at offset 5" in caplog.text)
        assert two.log().ends.log_end_offset == 3


async def test_a_copy_of_a_history_that_the_store_has_forgotten_is_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    """Both nodes lead in epoch 2, which the restored store gives to node 1. Node 2 may have acknowledged its records."""
    async with copies() as all_of_them:
        one, two = all_of_them
        await two.takes_role(all_of_them.entry(2, 2))
        append(two.log(), b"of two alone")
        two.log().resign()  # a restart
        restored = all_of_them.entry(1, 2)
        await all_of_them.hear(restored, 2)
        await until(lambda: one.leading._led[tp_of(0)]._is_disputed)
        proposal = one.leading._led[tp_of(0)].proposal(one.image.nodes, 0, LAG_MS)
        assert proposal is not None
        assert [copy.node_id for copy in proposal.entry.superseded] == [2]
        assert (proposal.entry.leader, proposal.entry.leader_epoch, len(proposal.entry.isr)) == (1, 3, 1)
        await all_of_them.hear(proposal.entry, 3)
        await until(lambda: "it may have what no other has" in caplog.text)
        assert two.log().ends.log_end_offset == 1


async def test_a_follower_is_cut_in_several_steps() -> None:
    """The logs diverge over several epochs. The follower asks again after each cut, and appends nothing in between."""
    async with copies() as all_of_them:
        one, two = all_of_them
        # Both lead in epoch 1, then node 2 in 3 and 5, node 1 in 2 and 4; neither copies from the other.
        await one.takes_role(all_of_them.entry(1, 1))
        await two.takes_role(all_of_them.entry(2, 1))
        await two.takes_role(all_of_them.entry(2, 3))
        append(two.log(), b"two at 3")
        await two.takes_role(all_of_them.entry(2, 5))
        append(two.log(), b"two at 5")
        await one.takes_role(all_of_them.entry(1, 2))
        append(one.log(), b"one at 2")
        await one.takes_role(all_of_them.entry(1, 4))
        append(one.log(), b"one at 4")
        last = all_of_them.entry(1, 6)
        await all_of_them.hear(last, 2)
        await until(lambda: payloads(two.log()) == [b"one at 2", b"one at 4"], "equal copies")


async def test_a_follower_that_ends_below_the_log_start_is_cut_where_the_logs_part() -> None:
    """The follower's end is the start of a batch that reaches above the leader's log start. Its own record before that is of
    another leader. No reader sees this record, but producer state would keep an uncommitted batch as its producer's last one."""
    async with copies() as all_of_them:
        one, two = all_of_them
        await two.takes_role(all_of_them.entry(2, 1))
        append(two.log(), b"two at 1")
        await one.takes_role(all_of_them.entry(1, 2, [1]))
        append(one.log(), b"one at 2")
        append(one.log(), b"one at 2", count=2)
        await until(lambda: one.log().ends.high_watermark == 3)
        one.log().set_log_start(2)
        last = all_of_them.entry(1, 3, [1])
        await all_of_them.hear(last, 2)
        await until(lambda: two.log_start() == 2 and two.log().ends.durable_end == 3)
        assert two.log().epochs.entries == one.log().epochs.entries


async def test_a_follower_goes_on_where_its_leaders_earlier_epochs_are_unknown() -> None:
    """As after a recovery without a snapshot, from a first segment that begins where the follower ends. The follower cannot be told
    to cut everything: all of it is below its high watermark."""
    async with copies() as all_of_them:
        one, two = all_of_them
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        append(one.log(), b"for both")
        await until(lambda: two.log().ends.high_watermark == 1)
        await two.copying.stop()
        await one.hears(all_of_them.entry(1, 2, [1]), 3)
        append(one.log(), b"one at 2", count=2)
        await until(lambda: one.log().ends.high_watermark == 3)
        one.log().set_log_start(2)
        one.log().epochs.entries = [each for each in one.log().epochs.entries if each.start_offset >= 1]
        two.copying = Copying(two.copying._means)
        await all_of_them.hear(all_of_them.entry(1, 3, [1]), 4)
        await until(lambda: two.log().ends.durable_end == 3)


@pytest.mark.parametrize(("gone", "error"), [(set[int](), NotLeaderError), ({2}, LogDamagedError)])
async def test_who_meets_damage_waits_for_another_leader_where_a_copy_is_in_sync(gone: set[int], error: type[WireError]) -> None:
    async with copies() as all_of_them:
        one, _ = all_of_them
        await one.hears(left(all_of_them.entry(1, 1), gone), 2)
        append(one.log(), b"row")
        one.log().health.damaged = (DamagedRange(0, 1, "for a test"),)
        with pytest.raises(error, match="offsets 0 to 0 were durable and are damaged"):
            one.log().read(0, below=LogEnd.LOG_END, max_bytes=1_000, cached_only=False)
        with pytest.raises(error, match="offsets 0 to 0 were durable and are damaged") as refused:
            append(one.log(), b"refused")
        assert refused.value.fate is Fate.NOT_APPENDED
        one.log().health.damaged = (DamagedRange(0, 1, "for a test", is_accepted=True),)
        with pytest.raises(LogDamagedError, match="accepted as lost"):
            one.log().read(0, below=LogEnd.LOG_END, max_bytes=1_000, cached_only=False)


async def filled_alone(all_of_them: Copies, count: int) -> PartitionEntry:
    """Node 1 leads alone, and has appended `count` records."""
    one, _ = all_of_them
    alone = all_of_them.entry(1, 1, [1])
    await one.hears(alone, 2)
    for _ in range(count):
        append(one.log(), b"from one")
    await until(lambda: one.log().ends.high_watermark == count)
    return alone


async def test_a_copy_does_not_drop_what_is_below_a_batch_that_was_taken_out(caplog: pytest.LogCaptureFixture) -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        alone = await filled_alone(all_of_them, 5)
        one.log().health.damaged = (Hole(2, 3, is_taken_out=True).as_range(),)
        await two.hears(alone, 2)
        await until(lambda: "offsets 2 to 2 were taken out of the leader's log" in caplog.text)
        assert (two.log_start(), two.log().ends.log_end_offset) == (0, 2)
        assert "`brokerd topics trim` can delete all that is below offset 3" in caplog.text
        one.log().set_log_start(3)
        await until(lambda: two.log_start() == 3 and two.log().ends.durable_end == 5)


@pytest.mark.parametrize("before", [1, 2])
async def test_a_report_that_comes_before_the_leader_counts_is_not_lost(before: int) -> None:
    """A follower reports its position once. The leader has its role by then, but looks at the entries a moment later."""
    async with copies() as all_of_them:
        one, two = all_of_them
        first = all_of_them.entry(before, 1)
        await all_of_them.hear(first, 2)
        append(all_of_them.nodes[before].log(), b"for both")
        await until(lambda: one.log().ends.high_watermark == two.log().ends.high_watermark == 1)
        again = all_of_them.entry(1, 2)
        one.sees(again, 3)
        await one.takes_role(again)
        await two.hears(again, 3)
        await until(lambda: all_of_them.is_followed(tp_of(0), 2), "it has reported")
        one.leading.follow_image()
        one.copying.follow_image()
        led = one.leading.led(one.log())
        assert led is not None
        late_ms = one.broker.clock.monotonic_ms() + 2 * LAG_MS
        assert led.proposal(one.image.nodes, late_ms, LAG_MS) is None, "it has everything, and stays in sync"


async def test_a_replica_that_a_move_has_added_is_not_one_that_is_missing() -> None:
    async with copies() as all_of_them:
        one, _ = all_of_them
        entry = all_of_them.entry(1, 1, [1])
        await all_of_them.hear(entry._replace(target=(1, 2)), 2)
        assert (await one.leading.figures(Pauses())).under_replicated == 0
        one.sees(left(all_of_them.entry(1, 1), {2}), 3)
        one.leading.follow_image()
        assert (await one.leading.figures(Pauses())).under_replicated == 1, "it was in sync"


async def test_a_follower_that_is_registered_anew_reports_again() -> None:
    async with copies() as all_of_them:
        one, _ = all_of_them
        entry = all_of_them.entry(1, 1, [1])
        await all_of_them.hear(entry, 2)
        append(one.log(), b"from one")
        led = one.leading.led(one.log())
        assert led is not None
        await until(lambda: led.lag(0).records == 0, "it has told that it has everything")
        for node in all_of_them:
            node.registers(2, 30)
        await until(lambda: led.proposal(one.image.nodes, 0, LAG_MS) is not None, "it may join")


async def test_a_follower_leaves_a_stream_to_an_earlier_life_of_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is back from a power loss before its lease ends, or at another address, leaves the stream open and silent."""
    async with copies() as all_of_them:
        one, _ = all_of_them
        before = all_of_them.entry(1, 1)
        await all_of_them.hear(before, 2)
        await until(lambda: all_of_them.is_followed(tp_of(0), 1))
        (stream,) = all_of_them.streams
        monkeypatch.setattr(stream._context, "write", lambda _data: asyncio.Event().wait())
        for node in all_of_them:
            node.registers(1, 21)
            await node.hears(before._replace(leader_node_epoch=21, leader_epoch=2), 3)
        append(one.log(), b"from one")
        await until(lambda: one.log().ends.high_watermark == 1)


@pytest.mark.parametrize(("ends_in", "error"), [("write", asyncio.InvalidStateError), ("read", asyncio.CancelledError)])
async def test_a_stream_that_grpc_has_ended_is_followed_by_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends_in: str, error: type[BaseException]
) -> None:
    """It ends between two rounds, or because another call found a newer address or certificate and closed the connection."""
    async with copies() as all_of_them:
        one, two = all_of_them
        replicate, ended = two.replicate, list[bool]()

        async def end(*_data: bytes) -> None:
            ended.append(True)
            raise error

        async def ends_once(node: Node) -> Any:
            stream = await replicate(node)
            if not ended:
                setattr(stream, ends_in, end)
            return stream

        monkeypatch.setattr(two, "replicate", ends_once)
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        append(one.log(), b"from one")
        await until(lambda: one.log().ends.high_watermark == 1)
    assert ended
    assert "internal error" not in caplog.text


async def test_a_copier_that_is_stopped_as_its_stream_ends_does_not_follow_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC raises the stream's error alone, so the cancellation is lost."""
    async with copies() as all_of_them:
        two = all_of_them.nodes[2]
        replicate, waits = two.replicate, asyncio.Event()

        async def read() -> bytes:
            waits.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")

        async def ends_when_cancelled(node: Node) -> Any:
            stream = await replicate(node)
            stream.read = read
            return stream

        monkeypatch.setattr(two, "replicate", ends_when_cancelled)
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        await until(waits.is_set)
        copier = two.copying._copiers[1]
        copier.stop()
        await until(copier.task.done)
        assert copier.task.cancelled()


async def test_a_node_that_stops_hands_over_what_it_leads_and_stays_in_sync() -> None:
    async with copies(3) as all_of_them:
        one, two, _ = all_of_them
        entry = all_of_them.entry(1, 1)
        await one.hears(entry, 2)
        await one.hears(all_of_them.entry(2, 1), 2, 1)
        await one.leading.hand_over()
        (asked,) = one.store.asked[:1]
        assert [decode_partition(value) for value in asked.values()] == [
            entry._replace(leader=two.id, leader_node_epoch=12, leader_epoch=2)
        ]


async def test_a_watch_that_is_silent_does_not_hold_up_further_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with copies() as all_of_them:
        one, _ = all_of_them
        entry = all_of_them.entry(1, 1, [1])
        await all_of_them.hear(entry, 2)
        one.store.answers = [3]  # the change is made, but this node's watch is silent
        monkeypatch.setattr(one.membership, "until", lambda _revision: asyncio.Event().wait(), raising=False)
        running = asyncio.create_task(one.leading.run())
        await until(lambda: len(one.store.asked) > 1, "it looks again")
        running.cancel()


async def test_a_leader_whose_records_have_changed_on_the_disk_copies_them_to_nobody_and_resigns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with copies(3) as all_of_them:
        one, two, three = all_of_them
        entry = all_of_them.entry(1, 1, [1, 2])
        for node in (one, two):
            await node.hears(entry, 2)
        for _ in range(2):
            append(one.log(), b"for all")
        await until(lambda: one.log().ends.high_watermark == 2, "nodes 1 and 2 have it")
        segment = one.log().segments[0]
        one.files.flip_bit(segment.path, 8 * segment.size_bytes - 1)
        append(one.log(), b"and more")
        await until(lambda: one.log().ends.high_watermark == 3, "what is in sync needs no copy of old records")
        assert one.log().damage is None
        await three.hears(entry, 2)
        await until(lambda: one.log().damage is not None, "it has looked at what it sends")
        led = one.leading.led(one.log())
        assert led is not None
        proposal = led.proposal(one.image.nodes, one.broker.clock.monotonic_ms(), LAG_MS)
        assert proposal is not None
        assert (proposal.entry.leader, [each.node_id for each in proposal.entry.isr]) == (2, [2])
        again = proposal.entry
        await all_of_them.hear(again, 3)
        await until(lambda: three.log().ends.durable_end == 3, "node 2 has it whole")
    (said,) = (record.message for record in caplog.records if record.name == "brokerd.partition.reader")
    assert said.startswith("orders-0: offsets 1 to 1 were durable and are damaged (payload_crc does not match)")
    assert "`brokerd cluster reassign`" in said


async def test_a_response_has_no_batch_twice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A partition grows while another one is read from disk for the same response."""
    caplog.set_level(logging.DEBUG)
    async with copies() as all_of_them:
        one, two = all_of_them
        read, appended = ReplicaStream._read, list[int]()

        async def slow(self: ReplicaStream, partition: Partition, offset: int) -> FetchDataInfo:
            if partition is one.log(1) and offset < partition.ends.log_end_offset and not appended:
                appended.append(append(one.log(0), b"and more"))
            return await read(self, partition, offset)

        monkeypatch.setattr(ReplicaStream, "_read", slow)
        for number in (0, 1):
            entry = all_of_them.entry(1, 1)
            await all_of_them.hear(entry, 2, number)
        await until(lambda: all(all_of_them.is_followed(tp_of(number), 1) for number in (0, 1)))
        append(one.log(0), b"the first")
        append(one.log(1), b"the first")
        await until(lambda: appended and two.log(0).ends.durable_end == 2)
    assert "is not copied" not in caplog.text


async def test_a_leader_that_is_replaced_tells_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that becomes a follower forgets its holds. A stable offset sent after that would count as shown to readers."""
    async with copies() as all_of_them:
        one, two = all_of_them
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        one.log().hold_back("commit", 0)
        waits, replaced = ReplicaStream._wait, list[bool]()

        waited = list[bool]()

        async def replaced_meanwhile(self: ReplicaStream, until_s: float) -> bool:
            is_due = await waits(self, until_s)
            waited.append(is_due)
            if not is_due and one.log().ends.high_watermark == 1 and not replaced:
                replaced.append(True)
                one.log().follow(2)
            return is_due

        monkeypatch.setattr(ReplicaStream, "_wait", replaced_meanwhile)
        append(one.log(), b"from one")
        await until(lambda: replaced and two.log().ends.durable_end == 1)
        seen = len(waited)
        await until(lambda: len(waited) >= seen + 2, "further responses")
        assert two.log().ends.announced_stable_offset == 0


async def test_an_idle_follower_removes_what_its_leader_has_deleted() -> None:
    """No append rolls its last segment, whose records would stay on its disk for ever."""

    async def pass_over(node: CopyNode) -> None:
        for log in node.logs.retention.roll_expired():
            await node.broker.flusher.flush(log, BROKER)
        await node.broker.admin.run(node.logs.retention.retire())

    async with copies(log_retention_ms=1) as all_of_them:
        one, two = all_of_them
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        append(one.log(), b"too old.")
        await until(lambda: one.log().ends.high_watermark == 1)
        began_ms = one.logs.time.now_ms()
        await until(lambda: one.logs.time.now_ms() > began_ms + 1)
        await pass_over(one)
        assert (one.log_start(), one.log().size_bytes) == (1, 0)
        await until(lambda: two.logs.replicas.durable_log_start(tp_of(0)) == 1)
        await pass_over(two)
        assert two.log().size_bytes == 0
        append(one.log(), b"from one")
        await until(lambda: payloads(two.log()) == [b"from one"])


@pytest.mark.parametrize("is_told", [True, False])
async def test_deleted_records_are_not_promised_by_a_leader_that_is_replaced(is_told: bool) -> None:
    """The next leader may still have the records. `is_told`: `leading` has seen the image before the deletion waits."""
    async with copies() as all_of_them:
        one, _ = all_of_them
        entry = all_of_them.entry(1, 1)
        one.sees(entry, 2)
        await one.takes_role(entry)
        if is_told:
            one.leading.follow_image()
        deleted = asyncio.create_task(one.leading.has_log_start(one.log(), 1))
        await all_wait()
        assert not deleted.done(), "node 2 has not told of its log start"
        one.log().follow(2)
        one.leading.follow_image()
        with pytest.raises(NotLeaderError) as refused:
            await deleted
        assert refused.value.fate is Fate.UNKNOWN


async def test_deleted_records_do_not_wait_for_a_follower_that_is_no_longer_in_sync() -> None:
    async with copies() as all_of_them:
        one, _ = all_of_them
        entry = all_of_them.entry(1, 1)
        await one.hears(entry, 2)
        deleted = asyncio.create_task(one.leading.has_log_start(one.log(), 1))
        await all_wait()
        assert not deleted.done(), "node 2 has not told of its log start"
        one.sees(left(entry, {2}), 3)
        one.leading.follow_image()
        await deleted


async def test_what_changes_on_its_way_is_not_written_and_holds_up_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        for number in (0, 1):
            await all_of_them.hear(all_of_them.entry(1, 1), 2, number)
        take = Copier._take

        async def changed(self: Copier, data: bytes) -> None:
            await take(self, data.replace(b"on its way", b"on its wax"))

        with monkeypatch.context() as wire:
            wire.setattr(Copier, "_take", changed)
            append(one.log(0), b"on its way")
            append(one.log(1), b"the others")
            await until(lambda: one.log(1).ends.high_watermark == 1)
            await until(lambda: "has changed: payload_crc does not match" in caplog.text)
            assert (two.log(0).ends.log_end_offset, one.log(0).ends.high_watermark) == (0, 0)
        await until(lambda: one.log(0).ends.high_watermark == 1, "what it gets whole, it takes")
    assert two.log(0).damage is None
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"


async def test_a_follower_whose_disk_is_full_leaves_what_it_cannot_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("brokerd.storage.refusals._LASTING_MS", 0)
    async with copies() as all_of_them:
        one, two = all_of_them
        for number in (0, 1):
            await all_of_them.hear(all_of_them.entry(1, 1), 2, number)
            append(one.log(number), b"for both")
        await until(lambda: all(two.log(number).ends.high_watermark == 1 for number in (0, 1)))
        two.files.space_left = 0
        append(one.log(0), b"for both" * 10_000)
        await until(lambda: tp_of(0) in two.leading.unable)
        assert two.leading.unable == {tp_of(0)}, "of the other one it has everything"
        two.store.answers = [3]
        running = asyncio.create_task(two.leading.run())
        await until(lambda: two.store.asked)
        running.cancel()
        (changed,) = two.store.asked[0].values()
        assert changed == encode(left(all_of_them.entry(1, 1), {2}))
        assert two.refuses, "it has told the others"
        two.files.space_left = None
        await until(lambda: two.log(0).ends.durable_end == 2, "it goes on when there is room")
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


async def test_a_log_start_that_cannot_be_written_holds_up_no_copies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        for _ in range(2):
            append(one.log(), b"for both")
        await until(lambda: two.log().ends.high_watermark == 2)

        tried = list[int]()

        def full() -> Job:
            def write() -> None:
                tried.append(1)
                raise OSError(errno.ENOSPC, "No space left on device")

            return write

        with monkeypatch.context() as on_a_full_disk:
            on_a_full_disk.setattr(two.logs.replicas, "checkpoint_now", full)
            one.log().set_log_start(1)
            await until(lambda: two.log().ends.log_start_offset == 1)
            append(one.log(), b"and more")
            await until(lambda: one.log().ends.high_watermark == 3)
            await until(lambda: len(tried) >= 3, "further attempts")
        assert len(caplog.records) == 1, caplog.text
        await until(lambda: two.logs.replicas.durable_log_start(tp_of(0)) == 1)
        await one.leading.has_log_start(one.log(), 1)


async def test_a_copy_that_could_not_begin_anew_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        alone = all_of_them.entry(1, 1, [1])
        await one.takes_role(alone)
        for _ in range(3):
            append(one.log(), b"from one")
        await until(lambda: one.log().ends.high_watermark == 3)
        one.log().set_log_start(3)
        failed = list[str]()

        def failing(*arguments: Any) -> None:
            if not failed:
                failed.append("once")
                raise OSError(errno.EIO, "Input/output error")
            write_snapshot(*arguments)

        monkeypatch.setattr("brokerd.datadir.replica_changes.write_snapshot", failing)
        again = all_of_them.entry(1, 2, [1])
        await all_of_them.hear(again, 3)
        await until(lambda: two.log_start() == 3)
        assert failed
        append(one.log(), b"and more")
        await until(lambda: two.log().ends.durable_end == 4)


async def test_a_copy_that_has_caught_up_has_the_log_start_without_further_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log start arrives with batches that are not durable yet, and it never lies above the high watermark."""
    async with copies() as all_of_them:
        one, two = all_of_them
        alone = await filled_alone(all_of_them, 3)
        read = ReplicaStream._read

        async def moves(self: ReplicaStream, partition: Partition, offset: int) -> FetchDataInfo:
            found = await read(self, partition, offset)
            if partition is one.log() and found.chunks:
                partition.set_log_start(2)
            return found

        monkeypatch.setattr(ReplicaStream, "_read", moves)
        await two.hears(alone, 2)
        await until(lambda: two.logs.replicas.durable_log_start(tp_of(0)) == 2)
        await one.leading.has_log_start(one.log(), 2)


async def test_a_quiet_partition_hears_of_its_ends_beside_a_busy_one() -> None:
    """A copy that does not know the log start cannot join."""
    async with copies() as all_of_them:
        one, two = all_of_them
        for number in (0, 1):
            await all_of_them.hear(all_of_them.entry(1, 1), 2 + number, number)

        async def keep_busy() -> None:
            ends = one.log(0).ends
            while True:
                append(one.log(0), b"busy")
                await until(lambda: ends.high_watermark == ends.log_end_offset)

        busy = asyncio.create_task(keep_busy())
        append(one.log(1), b"once")
        await until(lambda: two.log(1).ends.high_watermark == 1)
        one.log(1).set_log_start(1)
        await one.leading.has_log_start(one.log(1), 1)
        assert not busy.done()
        busy.cancel()


async def test_what_passes_is_told_if_it_does_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable file stops the copy for good, although no damage is found."""
    passes_within = "brokerd.server.replication.copying._PASSES_WITHIN_MS"
    monkeypatch.setattr(passes_within, int(DEADLINE_S * 1000))
    failed = 0

    async def fails(_copier: Copier, partition: Partition, *_: Any) -> None:
        nonlocal failed
        failed += 1
        raise StorageError(f"{partition.name}: offset 7 cannot be read", retry_after_ms=1)

    monkeypatch.setattr(Copier, "_carry_out", fails)
    async with copies() as all_of_them:
        one, _ = all_of_them
        await all_of_them.hear(all_of_them.entry(1, 1), 2)
        append(one.log(), b"for two")
        await until(lambda: failed >= 2)
        assert "is not copied" not in caplog.text
        monkeypatch.setattr(passes_within, 1)  # one that began anew with each failure would still pass
        await until(lambda: "is not copied" in caplog.text)
        said_after = failed
        await until(lambda: failed > said_after + 1)
    assert caplog.text.count("is not copied") == caplog.text.count("orders-0 is not copied: orders-0: offset 7 cannot be read") == 1


@pytest.mark.parametrize(("room_bytes", "least_bytes"), [(CATCH_UP_BYTES, CATCH_UP_BYTES), (5, 1)])
async def test_a_response_has_few_snapshots(monkeypatch: pytest.MonkeyPatch, room_bytes: int, least_bytes: int) -> None:
    """A snapshot of 100,000 producers has 20 MB: two would exceed the size of a message, at every attempt. After each snapshot, the
    follower also syncs many files before it reports what producers wait for."""
    taken = list[int]()
    take = Copier._take

    async def counted(self: Copier, data: bytes) -> None:
        response, _ = split_records(pb.ReplicateResponse, data)
        taken.append(sum(bool(update.snapshot) for update in response.updates))
        await take(self, data)

    monkeypatch.setattr(Copier, "_take", counted)
    monkeypatch.setattr("brokerd.server.replication.serving.RESPONSE_BYTES", room_bytes)
    monkeypatch.setattr("brokerd.server.replication.serving.CATCH_UP_BYTES", least_bytes)
    async with copies() as all_of_them:
        one, two = all_of_them
        alone = all_of_them.entry(1, 1, [1])
        for number in (0, 1):
            await one.hears(alone, 2, number)
            append(one.log(number), b"from one")
        await until(lambda: all(one.log(number).ends.high_watermark == 1 for number in (0, 1)))
        for number in (0, 1):
            one.log(number).set_log_start(1)
            two.sees(alone, 2, number)
            await two.takes_role(alone, number)
        two.copying.follow_image()
        await until(lambda: sum(taken) == 2)
        await until(lambda: two.log_start(0) == two.log_start(1) == 1)
    assert max(taken) == 1


async def test_changes_that_cannot_be_written_together_are_written_one_by_one() -> None:
    """One partition's entry has just changed, and the others do not wait for it."""
    async with copies() as all_of_them:
        one, _ = all_of_them
        for number in (0, 1):
            entry = all_of_them.entry(1, 1, [1])
            await all_of_them.hear(entry, 2, number)
        leds = [led for number in (0, 1) if (led := one.leading.led(one.log(number))) is not None]
        await until(lambda: all(led.proposal(one.image.nodes, 0, LAG_MS) is not None for led in leds), "both may join")
        await one.leading._write(one.leading._due(one.image.nodes))
        assert [len(puts) for puts in one.store.asked] == [2, 1, 1]


async def test_a_leader_that_reaches_nobody_takes_nothing_that_all_shall_have() -> None:
    """Without the store and its followers, a leader refuses acks=all appends: another node may already have been elected."""
    async with copies() as all_of_them:
        one, two = all_of_them
        entry = all_of_them.entry(1, 1)
        await one.hears(entry, 2)
        one.leading._lag_max_ms, one.store.answered_ms = -1, one.store.answered_ms - 2 * LAG_MS
        running = asyncio.create_task(one.leading.run())
        await until(lambda: one.log().core.is_cut_off)
        with pytest.raises(NotReadyError, match="reaches neither another replica nor the coordination store"):
            one.log().check_enough_in_sync()
        one.leading._lag_max_ms = LAG_MS
        await two.hears(entry, 2)
        await until(lambda: not one.log().core.is_cut_off, "a follower is enough")
        one.log().check_enough_in_sync()
        running.cancel()
