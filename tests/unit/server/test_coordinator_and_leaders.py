"""The coordinator and leaders on different nodes: who is asked, what is fenced, and what a restarted node shows to readers."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from brokerd.datadir.topic_store import COORDINATOR_LOG, Topic
from brokerd.errors import (
    CoordinatorNotAvailableError,
    CorruptMessageError,
    ErrorCode,
    InvalidTxnStateError,
    NotCoordinatorError,
    NotLeaderError,
    NotReadyError,
    OffsetNotAvailableError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    TxnAbortedError,
    UnknownProducerIdError,
    UnknownTopicIdError,
)
from brokerd.ids import MEMBER_BIT, TopicIdPartition
from brokerd.internode.v1.internode_pb2 import (
    MEMBER_STATE_OPEN,
    MEMBER_STATE_UNSPECIFIED,
    FreezeMembersRequest,
    FreezeMembersResponse,
    HangingPartitionsRequest,
    PreparedHold,
    PreparedHoldsRequest,
    PreparedHoldsResponse,
    ReleaseRequest,
    ReleaseResponse,
    VerifyMembersRequest,
    WriteMarkersRequest,
)
from brokerd.partition.core import InSync
from brokerd.partition.log_ends import UNSETTLED, LogEnd
from brokerd.partition.partition import NOBODY
from brokerd.partition.reader import FetchDataInfo
from brokerd.server.coordinator import leaders
from brokerd.server.coordinator.members import Members
from brokerd.server.handlers import fetch, groups, transaction_admin, transactions
from brokerd.server.paging import Pauses
from brokerd.server.security.topic_authorizer import ANYBODY, UNLIMITED, Principal, Right, TopicAuthorizer, TopicRights
from brokerd.sharing import Caller
from brokerd.storage.files import WouldBlock
from brokerd.wire.v1 import offsets_pb2, transaction_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset, HeldBack, MemberOpened
from brokerd.wire.v1.offsets_pb2 import FetchGroupOffsetsRequest
from tests.support.clock import ManualClock
from tests.support.inner_broker import PRINCIPAL, end_request
from tests.support.inner_cluster import NAME, InnerCluster, begin, cluster, commit, epoch, shown
from tests.support.loop import all_wait, one_turn
from tests.support.transaction_bench import Execution
from tests.support.wait import DEADLINE_S


async def unfinished(running: InnerCluster, member: MemberOpened, lost: str, *, at: int | None = None, version: int = 0) -> None:
    """Loses all calls named `lost`, to node `at` or to all nodes, from now on; asserts that a commit fails for it."""
    running.loses = lambda node_id, name: name == lost and at in (None, node_id)
    with pytest.raises(
        NotReadyError, match=None if lost == "FreezeMembers" else "version . .*: it is committed, but not visible yet: "
    ):
        await commit(running, member, version)


async def half_marked(running: InnerCluster) -> MemberOpened:
    """The member of a prepared commit whose markers are written everywhere but at node 2, which the calls do not reach."""
    member = await begin(running)
    await unfinished(running, member, "WriteMarkers", at=2)
    return member


async def released_elsewhere(running: InnerCluster, member: MemberOpened, version: int = 0) -> None:
    """Commits. Partition 1 moves to node 2 once node 1 has been sent its markers, so the release goes to node 2."""

    def moves(node_id: int, name: str) -> bool:
        if (node_id, name) == (1, "WriteMarkers"):
            running.leaders[running.tps[1]] = 2
        return False

    running.loses = moves
    await commit(running, member, version)
    running.loses = lambda *_: False


async def test_who_waited_while_another_principal_used_the_id_first_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each outsider would hold the id's lock while its refusal is confirmed, and the owner would wait for all of them."""
    async with cluster(ManualClock()) as running:
        transactions = running.nodes[0].broker.transactions
        asked, decided = end_request(NAME, Execution(7, "e", "r"), []), list[str]()
        decide = transactions._decide

        async def counted(principal: str, *rest: Any) -> Any:
            decided.append(principal)
            return await decide(principal, *rest)

        monkeypatch.setattr(transactions, "_decide", counted)
        async with transactions._lock(NAME):
            refused = [asyncio.create_task(transactions.commit("outsider", asked)) for _ in range(3)]
            await all_wait()
            member = await begin(running)
        for task in refused:
            with pytest.raises(TransactionalIdAuthorizationFailedError):
                await task
        await commit(running, member)
        assert "outsider" not in decided


async def test_calls_of_another_principal_do_not_keep_the_owner_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        transactions, confirmed = running.nodes[0].broker.transactions, asyncio.Event()
        monkeypatch.setattr(transactions.log, "confirmed", confirmed.wait)
        asked = end_request(NAME, Execution(7, "e", "r"), [])
        refused = [asyncio.create_task(end("outsider", asked)) for end in (transactions.commit, transactions.abort)]
        await one_turn()
        async with asyncio.timeout(DEADLINE_S):
            await commit(running, member)
        assert not any(task.done() for task in refused)
        confirmed.set()
        for task in refused:
            with pytest.raises(TransactionalIdAuthorizationFailedError):
                await task


async def test_a_batch_that_is_not_its_callers_to_write_costs_the_coordinator_no_call() -> None:
    async with cluster(ManualClock()) as running:
        node, tp = running.nodes[1], running.tps[1]
        made_up = MEMBER_BIT | 10_000
        writer, reader = Principal("writer", UNLIMITED), Principal("reader", TopicRights({Right.READ: ["*"]}))
        own = TopicAuthorizer(reader, node.broker.topics).own_producer_id(made_up)
        with pytest.raises(UnknownProducerIdError, match="was not issued to principal 'writer'"):
            await node.produce(MemberOpened(producer_id=made_up), tp, b"x", 0, writer)
        with pytest.raises(TopicAuthorizationFailedError):
            await node.produce(MemberOpened(producer_id=own), tp, b"x", 0, reader)
        assert "VerifyMembers" not in running.calls


async def test_a_commit_over_two_nodes() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        assert shown(running) == [0, 0, 0, 0]
        assert running.calls.count("VerifyMembers") == 1, "once per member"
        await commit(running, member)
        assert shown(running) == [1, 1, 1, 1]
        assert all(not node.broker.members.producer_ids for node in running.nodes.values())
        with pytest.raises(InvalidTxnStateError):
            await running.nodes[1].produce(member, running.tps[1], b"late", 1)


async def test_an_abort_over_two_nodes() -> None:
    async with cluster(ManualClock()) as running:
        await begin(running)
        assert await running.nodes[0].broker.transactions.abort_all(NAME, "") == 1
        assert shown(running) == [0, 0, 0, 0]
        assert all(not node.broker.members.producer_ids for node in running.nodes.values())


async def test_only_the_coordinator_answers_for_transactions_and_groups() -> None:
    async with cluster(ManualClock()) as running:
        other = running.nodes[1].broker
        for part in ("transactions", "groups"):
            with pytest.raises(NotCoordinatorError):
                getattr(other, part)
        assert other.coordinator.local is None
        await other.coordinator.sweep()
        await other.coordinator.sweep_groups()
        await other.coordinator.compact()


async def test_a_leader_without_a_coordinator_refuses_a_member_it_does_not_know() -> None:
    async with cluster(ManualClock()) as running:
        member = await running.nodes[0].init(NAME, Execution(0, "e0", "r"), bytes(16))
        running.loses = lambda _node_id, name: name == "VerifyMembers"
        with pytest.raises(CoordinatorNotAvailableError) as refused:
            await running.nodes[1].produce(member, running.tps[1], b"row", 0)
        assert refused.value.retriable
        running.loses = lambda _node_id, _name: False
        await running.nodes[1].produce(member, running.tps[1], b"row", 0)


@pytest.mark.parametrize("later", [0, 1])
async def test_only_the_last_coordinator_says_that_a_member_has_ended(later: int) -> None:
    """A former coordinator that has not learned of its successor does not know the members that the successor has opened."""
    async with cluster(ManualClock()) as running:
        await begin(running)
        node, log = running.nodes[0], running.nodes[0].coordinator_log
        log.set_in_sync(InSync((9,), 2, 2))
        peers: Any = node.broker.cluster
        peers.epoch_in_store = log.leader_epoch + later
        unknown = MemberOpened(producer_id=(1 << 39) + 77, member_id=bytes(16))
        if later:
            log.set_cut_off(True)  # from the followers of its log and the store
            with pytest.raises(CoordinatorNotAvailableError):
                await node.produce(unknown, running.tps[0], b"row", 0)
            log.set_cut_off(False)
        produced = asyncio.ensure_future(node.produce(unknown, running.tps[0], b"row", 0))
        for _ in range(20):
            await one_turn()
        assert produced.done() == (later == 0)
        node.logs.partitions.resign([COORDINATOR_LOG])  # it learns of the next coordinator, if there is one
        with pytest.raises(CoordinatorNotAvailableError if later else InvalidTxnStateError):
            await produced


async def test_a_leader_verifies_again_after_it_has_begun_to_lead() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        await running.lead(1)
        running.loses = lambda _node_id, name: name == "VerifyMembers"
        with pytest.raises(CoordinatorNotAvailableError):
            await running.nodes[1].produce(member, running.tps[1], b"more", 1)


async def test_the_coordinators_word_counts_no_more_once_a_freeze_has_overtaken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock()) as running:
        member = await running.nodes[0].init(NAME, Execution(0, "e0", "r"), bytes([1]) * 16)
        node, arrives = running.nodes[1], asyncio.Event()
        call = node.broker.cluster.call

        async def late(*asked: Any) -> Any:
            answered = await call(*asked)
            await arrives.wait()
            return answered

        monkeypatch.setattr(node.broker.cluster, "call", late)
        producing = asyncio.create_task(node.produce(member, running.tps[1], b"row", 0))
        await all_wait()
        frozen = FreezeMembersRequest(coordinator_epoch=epoch(running), producer_ids=[member.producer_id])
        await node.broker.members.freeze(frozen)
        arrives.set()
        with pytest.raises(CoordinatorNotAvailableError):
            await producing


async def test_members_are_not_open_while_they_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        transactions, states = running.nodes[0].broker.transactions, list[int]()
        freeze = transactions.leaders.freeze

        async def asked_about(*asked: Any) -> Any:
            frozen = await freeze(*asked)
            answered = await transactions.verify_members(VerifyMembersRequest(producer_ids=[member.producer_id]))
            states.extend(one.state for one in answered.members)
            return frozen

        monkeypatch.setattr(transactions.leaders, "freeze", asked_about)
        await commit(running, member)
        assert states == [MEMBER_STATE_UNSPECIFIED]


async def test_a_commit_needs_an_answer_of_every_leader_that_it_names() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        await unfinished(running, member, "FreezeMembers")
        assert running.nodes[0].broker.transactions.coordinator.states[NAME].last is None, "nothing is decided"
        running.loses = lambda _node_id, _name: False
        del running.leaders[running.tps[1]]
        with pytest.raises(NotReadyError, match="has no leader"):
            await commit(running, member)
        running.leaders[running.tps[1]] = 0  # as in a stale image
        with pytest.raises(NotReadyError, match="is not on this node"):
            await commit(running, member)
        running.leaders[running.tps[1]] = 1
        await commit(running, member)
        assert shown(running) == [1, 1, 1, 1]


async def test_a_node_that_hangs_and_has_no_part_in_a_commit_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "_PATIENCE_S", 0.01)
    async with cluster(ManualClock(), nodes=3, partitions=2) as running:  # node 2 has no partition
        member = await begin(running)
        running.hangs = lambda node_id: node_id == 2
        await commit(running, member)
        assert shown(running) == [1, 1]
        await begin(running, 1)
        assert await running.nodes[0].broker.transactions.abort_all(NAME, "") == 1
        assert shown(running) == [1, 1]


async def test_a_refused_commit_leaves_its_members_open() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        with pytest.raises(TxnAbortedError, match="reports 5 records"):
            await commit(running, member, records=5)
        await running.nodes[1].produce(member, running.tps[1], b"more", 1)
        await commit(running, member, records=5)
        assert shown(running) == [1, 2, 1, 1]


async def test_nothing_is_visible_before_all_markers_are_durable() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        await unfinished(running, member, "WriteMarkers")
        assert shown(running) == [0, 0, 0, 0]
        await unfinished(running, member, "Release")
        assert shown(running)[1::2] == [0, 0], "not released there"
        running.loses = lambda _node_id, _name: False
        await commit(running, member)
        assert shown(running) == [1, 1, 1, 1]


async def test_a_leader_that_starts_holds_back_what_is_prepared() -> None:
    async with cluster(ManualClock(), nodes=3) as running:
        member = await half_marked(running)
        await running.stop(1)
        running.loses = lambda node_id, name: name == "PreparedHolds" or (name == "WriteMarkers" and node_id == 2)
        await running.start(1)
        log = running.nodes[1].log(running.tps[1])
        assert shown(running)[1] == 0, "its marker is there, but not that of another partition"
        with pytest.raises(OffsetNotAvailableError, match="has not said yet"):
            log.latest_offset(is_committed=True)
        running.loses = lambda node_id, name: name == "WriteMarkers" and node_id == 2
        assert not await running.nodes[1].broker.members.settle()
        with pytest.raises(OffsetNotAvailableError):  # the previous leader may have shown more
            log.latest_offset(is_committed=True)
        running.loses = lambda _node_id, _name: False
        await commit(running, member)
        assert shown(running) == [1, 1, 1, 1]
        assert log.latest_offset(is_committed=True) == 2
        assert await running.nodes[1].broker.members.settle()


async def test_a_leader_whose_release_went_to_the_one_before_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.server.coordinator.host._RETRY_S", DEADLINE_S)  # the test asks
    async with cluster(ManualClock(), nodes=3) as running:
        member = await half_marked(running)
        await running.stop(1)
        await running.start(1)
        members = running.nodes[1].broker.members
        assert not await members.settle()
        release, members._methods[ReleaseRequest] = members._methods[ReleaseRequest], former
        running.loses = lambda _node_id, _name: False
        await commit(running, member)
        members._methods[ReleaseRequest] = release
        assert shown(running) == [1, 0, 1, 1]
        assert await members.settle()
        assert shown(running) == [1, 1, 1, 1]


async def test_what_the_coordinator_named_is_forgotten_with_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeleteRecords has moved the log start past the data, so the commit holds back nothing there."""
    async with cluster(ManualClock(), nodes=3) as running:
        await half_marked(running)
        await running.stop(1)
        await running.start(1)
        members, log = running.nodes[1].broker.members, running.nodes[1].log(running.tps[1])
        assert not await members.settle()
        monkeypatch.setattr(log.look_ups, "has_transactions", lambda _from_offset: False)
        assert await members.settle()
        found = await members.hanging_partitions(HangingPartitionsRequest(coordinator_epoch=epoch(running)))
        assert not found.partitions


async def former(_asked: ReleaseRequest) -> ReleaseResponse:
    """The response of a former leader."""
    return ReleaseResponse()


async def test_what_is_released_while_a_leader_asks_takes_effect_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock(), nodes=3) as running:
        member = await half_marked(running)
        await running.stop(1)
        running.loses = lambda node_id, name: name == "PreparedHolds" or (name == "WriteMarkers" and node_id == 2)
        await running.start(1)
        members = running.nodes[1].broker.members
        ask = members._ask_holds

        async def slow(request: PreparedHoldsRequest) -> PreparedHoldsResponse:
            answered = await ask(request)
            await commit(running, member)
            return answered

        monkeypatch.setattr(members, "_ask_holds", slow)
        running.loses = lambda _node_id, _name: False
        assert await members.settle()
        assert shown(running) == [1, 1, 1, 1]


async def test_a_partition_that_comes_to_a_leader_during_a_freeze_is_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock(), partitions=4) as running:
        member = await begin(running)
        node, tp = running.nodes[1], running.tps[3]
        node.logs.partitions.resign([tp])
        wait, turns = node.broker.members._until_durable, iter([True])

        async def comes(*asked: Any) -> None:
            await wait(*asked)
            if next(turns, False):
                running.epoch += 1
                await node.broker.admin.run(node.logs.replicas.lead({tp: running.epoch}))

        monkeypatch.setattr(node.broker.members, "_until_durable", comes)
        asked = FreezeMembersRequest(coordinator_epoch=epoch(running), producer_ids=[member.producer_id])
        response = await node.broker.members.freeze(asked)
        assert [one.records for one in response.members] == [2]
        assert [one.partition for one in response.held_back] == [1, 3]


async def test_a_partition_that_two_nodes_count_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former leader has not learned of its successor yet."""
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        asked = running.nodes[0].broker.transactions.leaders
        freeze = asked._freeze

        async def both(node_id: int, *rest: Any) -> list[FreezeMembersResponse]:
            found = await freeze(node_id, *rest)
            if node_id == 0:
                found[0].held_back.add(topic_id=running.topic.id, partition=1, first_offset=0)
                found[0].members[0].records += 1
            return found

        with monkeypatch.context() as patch:
            patch.setattr(asked, "_freeze", both)
            with pytest.raises(NotReadyError, match="is led by node 1, or by node 0"):
                await commit(running, member)
        await commit(running, member)
        assert shown(running) == [1, 1, 1, 1]


async def test_a_partition_that_another_node_counts_than_the_one_known_as_its_leader_is_asked_for_again() -> None:
    """The coordinator's node led the partition and does not know the next leader. Its own copy has no data that needs a marker."""
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        asked, tp = running.nodes[0].broker.transactions.leaders, running.tps[1]
        running.leaders[tp] = 0
        others = [one for one in running.tps if one != tp]
        with pytest.raises(NotReadyError, match="is led by node 0, or by node 1"):
            await asked.freeze([member.producer_id], others)
        running.leaders[tp] = 1
        await commit(running, member)
        assert shown(running) == [1, 1, 1, 1]


async def test_a_node_that_does_not_answer_is_named_though_it_leads_nothing_that_the_driver_names() -> None:
    """The coordinator may not have learned yet that the silent node leads one of the named partitions."""
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        asked, at_node_0 = running.nodes[0].broker.transactions.leaders, running.tps[::2]
        running.loses = lambda _node_id, name: name == "FreezeMembers"
        assert list((await asked.freeze([member.producer_id], at_node_0)).held.silent) == [1]
        running.loses = lambda _node_id, _name: False
        assert list((await asked.freeze([member.producer_id], at_node_0)).held.silent) == []


async def test_a_topic_that_the_coordinator_has_not_written_yet_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        table, topics = running.nodes[0].broker.partitions, running.nodes[0].broker.topics
        leader = table.leader

        def unknown(tp: TopicIdPartition, *rest: Any) -> Any:
            if tp == running.tps[1]:
                raise UnknownTopicIdError("not on this node")
            return leader(tp, *rest)

        monkeypatch.setattr(table, "leader", unknown)
        await commit(running, member)
        assert shown(running)[1] == 1, "its marker is written by the node that has it"

        def unknown_id(_topic_id: bytes) -> Any:
            raise UnknownTopicIdError("not on this node")

        monkeypatch.setattr(topics, "by_id", unknown_id)
        groups = running.nodes[0].broker.groups
        assert groups._exists(running.topic.id)
        running.topics.clear()
        assert not groups._exists(running.topic.id)


async def test_a_leader_that_has_not_written_a_topic_yet_has_not_marked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(ManualClock()) as running:
        await begin(running)
        members, tp = running.nodes[1].broker.members, running.tps[1]

        def unknown(*_asked: Any) -> Any:
            raise UnknownTopicIdError("not on this node")

        monkeypatch.setattr(members, "_led", lambda _tp: None)
        monkeypatch.setattr(members.partitions, "leader", unknown)
        place = HeldBack(topic_id=tp.topic_id, partition=tp.partition, first_offset=0)
        asked = WriteMarkersRequest(coordinator_epoch=epoch(running), committed_producer_ids=[1], partitions=[place])
        with pytest.raises(NotReadyError, match="does not have partition"):
            await members.write_markers(asked)
        running.topics.clear()
        await members.write_markers(asked)  # the topic is deleted


@pytest.mark.parametrize("later", [None, 0, 1], ids=["store away", "current", "replaced"])
@pytest.mark.parametrize("asked", ["commit", "abort", "ended member", "holds", "offsets"])
async def test_a_refusal_and_what_is_read_are_confirmed_by_the_store_or_the_log(asked: str, later: int | None) -> None:
    """The other in-sync replica may have become the coordinator without this node's knowledge."""
    async with cluster(ManualClock()) as running:
        member, broker, log = (
            await begin(running),
            running.nodes[0].broker,
            running.nodes[0].logs.partitions.replica(COORDINATOR_LOG),
        )
        assert log is not None
        end = log.ends.log_end_offset
        log.set_in_sync(InSync((9,), 2, 2))
        log.replica_fetched(9, end + 1)
        peers: Any = broker.cluster
        peers.epoch_in_store = 0 if later is None else log.leader_epoch + later
        unknown = [(MemberOpened(producer_id=1), 0)]
        work: dict[str, Coroutine[Any, Any, object]] = {
            "commit": commit(running, member, records=5),
            "abort": broker.transactions.abort(PRINCIPAL, end_request(NAME, Execution(0, "e0", "r"), unknown, ())),
            "ended member": broker.transactions.verify_members(VerifyMembersRequest(producer_ids=[1])),
            "holds": broker.transactions.prepared_holds(PreparedHoldsRequest()),
            "offsets": groups.fetch_group_offsets(
                broker, TopicAuthorizer(ANYBODY, broker.topics), FetchGroupOffsetsRequest(group_id="g")
            ),
        }
        task = asyncio.ensure_future(work.pop(asked))
        for other in work.values():
            other.close()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(found, TxnAbortedError) == (asked == "commit")
        entries = 0 if later == 0 else 1  # an entry that the other replica has copied
        assert log.ends.high_watermark == log.ends.log_end_offset == end + entries


async def test_an_open_member_and_what_one_reads_who_cannot_be_succeeded_need_no_entry() -> None:
    async with cluster(ManualClock()) as running:
        member, broker, log = await begin(running), running.nodes[0].broker, running.nodes[0].coordinator_log
        end = log.ends.log_end_offset
        async with broker.groups.settled():
            pass
        log.set_in_sync(InSync((9,), 2, 2))
        (verified,) = (await broker.transactions.verify_members(VerifyMembersRequest(producer_ids=[member.producer_id]))).members
        assert verified.state == MEMBER_STATE_OPEN
        assert log.ends.log_end_offset == end


async def test_a_group_that_is_read_is_renewed_without_an_entry() -> None:
    """Each polling consumer renews its group every half minute."""
    async with cluster(ManualClock()) as running:
        broker, log = running.nodes[0].broker, running.nodes[0].coordinator_log
        offset = CommittedOffset(topic_id=running.topic.id, partition=0, timestamp=broker.time.now_ms())
        await broker.groups.commit("g", PRINCIPAL, [offset])
        end = log.ends.log_end_offset
        log.set_in_sync(InSync((9,), 2, 2))
        async with asyncio.timeout(DEADLINE_S):
            await broker.groups.renew("g")
            await broker.groups.renew("nobody's")
        assert log.ends.log_end_offset == end


async def test_a_leader_that_starts_shows_what_is_complete_once_it_is_told() -> None:
    async with cluster(ManualClock()) as running:
        await commit(running, await begin(running))
        await running.stop(1)
        await running.start(1)
        assert await running.nodes[1].broker.members.settle()
        assert shown(running) == [1, 1, 1, 1]
        assert running.nodes[1].log(running.tps[1]).latest_offset(is_committed=True) == 2


async def test_a_leader_whose_partitions_have_no_transactions_needs_nobody() -> None:
    async with cluster(ManualClock()) as running:
        await running.stop(0)
        await running.stop(1)
        await running.start(1)
        assert await running.nodes[1].broker.members.settle()
        assert running.nodes[1].log(running.tps[1]).latest_offset(is_committed=True) == 0
        assert "PreparedHolds" not in running.calls


async def test_the_coordinator_starts_again_while_others_go_on() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        await unfinished(running, member, "WriteMarkers")
        before = epoch(running)
        await running.stop(0)
        running.loses = lambda _node_id, _name: False
        await running.start(0)
        assert epoch(running) > before
        await commit(running, member)
        assert await running.nodes[0].broker.members.settle()
        assert shown(running) == [1, 1, 1, 1]


async def test_a_new_epoch_is_another_coordinator_and_the_former_records_nothing() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        former = running.nodes[0].broker.transactions
        await running.lead(0)
        assert running.nodes[0].broker.transactions is not former
        with pytest.raises(NotCoordinatorError):
            await former.commit(PRINCIPAL, end_request(NAME, Execution(0, "e0", "r"), [(member, 4)], running.tps, rows=4))
        with pytest.raises(NotCoordinatorError):
            await former.abort_all(NAME, "")
        await commit(running, member)
        assert await running.nodes[0].broker.members.settle()  # `lead` only starts it in the background
        assert shown(running) == [1, 1, 1, 1]


async def test_a_coordinator_that_was_replaced_has_no_say_at_a_leader() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        old = epoch(running)
        await running.lead(0)
        await commit(running, member)
        members, tp = running.nodes[1].broker.members, running.tps[1]
        another = await begin(running, 1)
        ids = [another.producer_id]
        for request in (
            FreezeMembersRequest(coordinator_epoch=old, producer_ids=ids),
            WriteMarkersRequest(coordinator_epoch=old, txn_version=-1, aborted_producer_ids=ids),
            ReleaseRequest(coordinator_epoch=old, transactional_id=NAME, txn_version=1),
        ):
            with pytest.raises(NotCoordinatorError):
                await members.answer(request)
        running.calls.clear()
        await running.nodes[1].produce(another, tp, b"more", 1)
        assert "VerifyMembers" not in running.calls, "the freeze had no effect"


async def test_a_late_release_is_not_the_next_commits() -> None:
    async with cluster(ManualClock()) as running:
        await commit(running, await begin(running))
        member = await begin(running, 1)
        await unfinished(running, member, "Release", version=1)
        late = ReleaseRequest(coordinator_epoch=epoch(running), transactional_id=NAME, txn_version=0)
        await running.nodes[1].broker.members.answer(late)
        assert shown(running)[1] == 1, "of version 0"
        running.loses = lambda _node_id, _name: False
        await commit(running, member, 1)
        assert shown(running) == [2, 2, 2, 2]


async def test_what_is_being_released_is_held_back_by_nobody_who_starts() -> None:
    async with cluster(ManualClock(), nodes=3) as running:
        member = await begin(running)
        await unfinished(running, member, "Release", at=2)
        await running.stop(1)
        await running.start(1)
        assert await running.nodes[1].broker.members.settle()
        assert shown(running)[1] == 1
        assert shown(running)[2] == 0
        assert running.nodes[1].log(running.tps[1]).ends.held_back == {}


async def test_a_read_that_waits_for_a_thread_shows_nothing_once_another_node_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the leader knows what an unfinished commit holds back."""
    async with cluster(ManualClock(), nodes=3) as running:
        await commit(running, await begin(running))
        await unfinished(running, await begin(running, version=1), "WriteMarkers", at=2, version=1)
        tp, node = running.tps[1], running.nodes[1]
        log, broker, run = node.log(tp), node.broker, node.broker.readers.run
        epoch, read = log.leader_epoch, log.read

        def reads_the_disk(offset: int, *, cached_only: bool, **rest: Any) -> FetchDataInfo:
            if cached_only:
                raise WouldBlock
            return read(offset, cached_only=False, **rest)

        async def waits(caller: Caller, work: Callable[[], Any]) -> Any:
            await broker.admin.run(node.logs.replicas.follow({tp: epoch + 1}))
            return await run(caller, work)

        monkeypatch.setattr(log, "read", reads_the_disk)
        monkeypatch.setattr(broker.readers, "run", waits)
        asked = fetch.FetchPartition(tp, epoch, 0, 1_000_000)
        params = fetch.FetchParams(1, 0, 1, 1_000_000, LogEnd.LAST_STABLE_OFFSET, [asked])
        (found,) = await fetch.read(broker, TopicAuthorizer(ANYBODY, broker.topics), NOBODY, params, room_bytes=1_000_000)
        assert isinstance(found.error, NotLeaderError)
        assert found.data.chunks == []


async def test_a_coordinator_that_reaches_nobody_renews_no_member() -> None:
    """Another coordinator may have been elected, and the member would expire there."""
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        log = running.nodes[0].coordinator_log
        log.set_in_sync(InSync([9], 2, 2))
        log.set_cut_off(True)
        with pytest.raises(NotReadyError, match="reaches neither another replica nor the coordination store"):
            await running.nodes[0].heartbeat(NAME, Execution(0, "e0", "r"), member.member_id)


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_topic_that_the_coordinator_has_not_heard_of_is_not_taken_for_deleted(is_named: bool) -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        new = Topic("new", b"fedcba9876543210", 1, {})
        tp = TopicIdPartition(new.id, 0)
        leader = running.nodes[1]
        await leader.broker.admin.run(leader.logs.changes.hold(new, [0]))
        await leader.broker.admin.run(leader.logs.replicas.lead({tp: 1}))
        running.leaders[tp] = 1
        await leader.produce(member, tp, b"new", 0)
        tps = [*running.tps, tp] if is_named else running.tps
        asked = end_request(NAME, Execution(0, "e0", "r"), [(member, 5)], tps, rows=5)
        with pytest.raises(NotReadyError, match="knows no topic"):
            await running.nodes[0].broker.transactions.commit(PRINCIPAL, asked)
        await running.nodes[0].broker.admin.run(running.nodes[0].logs.changes.hold(new, []))
        await running.nodes[0].broker.transactions.commit(PRINCIPAL, asked)
        assert running.visible(tp) == [b"new"]


async def test_a_topic_whose_deletion_the_coordinator_has_seen_is_left_out() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        other = await running.nodes[0].broker.admin.run(running.nodes[0].logs.changes.hold(Topic("o", b"o" * 16, 1, {}), [0]))
        gone = TopicIdPartition(other.id, 0)
        running.leaders[gone] = 0
        broker = running.nodes[0].broker
        await broker.admin.run(running.nodes[0].logs.changes.delete("o", broker.forget_topic))
        asked = end_request(NAME, Execution(0, "e0", "r"), [(member, 5)], [*running.tps, gone], rows=5)
        await broker.transactions.commit(PRINCIPAL, asked)
        assert shown(running) == [1, 1, 1, 1]


async def test_an_operator_sees_what_all_leaders_have() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        broker = running.nodes[0].broker
        authorizer = TopicAuthorizer(ANYBODY, broker.topics)
        asked = transaction_pb2.DescribeTransactionRequest(transactional_id=NAME)
        (described,) = (await transaction_admin.describe_transaction(broker, authorizer, asked)).members
        assert [one.partition for one in described.partitions] == [0, 1, 2, 3]
        assert {one.topic for one in described.partitions} == {"t"}
        hanging = transaction_pb2.FindHangingTransactionsRequest()
        found = (await transaction_admin.find_hanging_transactions(broker, authorizer, hanging)).transactions
        assert sorted(one.partition.partition for one in found) == [0, 1, 2, 3]
        assert {one.producer_id for one in found} == {member.producer_id}
        await unfinished(running, member, "WriteMarkers")
        found = (await transaction_admin.find_hanging_transactions(broker, authorizer, hanging)).transactions
        assert sorted((one.partition.partition, one.producer_id) for one in found)[0] == (0, -1), "a commit that is unfinished"
        refused = await transaction_admin.describe_transaction(running.nodes[1].broker, authorizer, asked)
        assert ErrorCode(refused.error.code) is ErrorCode.NOT_COORDINATOR


async def test_a_transaction_is_idle_since_its_last_batch_whatever_the_log_time_is() -> None:
    """While the log time is behind the wall clock, as after a long pause, an open transaction would look like one that has hung for
    weeks."""
    clock = ManualClock()
    async with cluster(clock) as running:
        clock.jump_wall(30 * 86_400_000)
        await begin(running)
        clock.advance(5_000)
        broker = running.nodes[0].broker
        asked = transaction_pb2.FindHangingTransactionsRequest()
        found = await transaction_admin.find_hanging_transactions(broker, TopicAuthorizer(ANYBODY, broker.topics), asked)
        assert {one.idle_ms for one in found.transactions} == {5_000}


async def test_a_list_during_which_the_coordinator_changes_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(ManualClock()) as running:
        broker = running.nodes[0].broker
        await begin(running)

        class Late(Pauses):
            async def after(self, pieces: int = 1) -> None:
                if broker.transactions.coordinator.open_members:
                    await running.lead(0)
                    await broker.transactions.abort_all(NAME, "")

        monkeypatch.setattr(transaction_admin, "Pauses", Late)
        asked = transaction_pb2.ListTransactionsRequest()
        listed = await transaction_admin.list_transactions(broker, TopicAuthorizer(ANYBODY, broker.topics), asked)
        assert ErrorCode(listed.error.code) is ErrorCode.NOT_COORDINATOR
        assert "internal error" not in caplog.text


async def test_a_node_that_ends_while_it_is_asked_is_left_out() -> None:
    async with cluster(ManualClock()) as running:
        member = await begin(running)
        other = running.nodes[1]

        def ends(_node_id: int, name: str) -> bool:
            return name == "OpenData" and running.nodes.pop(1) is other

        running.loses = ends
        found = await running.nodes[0].broker.transactions.leaders.open_data([member.producer_id])
        running.nodes[1] = other
        assert sorted(one.partition for one in found) == running.held_by(0)


@pytest.mark.parametrize("step", ["freeze", "abort"])
async def test_a_question_that_is_cancelled_before_it_is_asked_leaves_no_coroutine(step: str) -> None:
    """As at a stop. Python warns when it collects a coroutine that was never awaited."""
    async with cluster(ManualClock()) as running:
        asked = running.nodes[0].broker.transactions.leaders
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            task = asyncio.create_task(asked.freeze([1], ()) if step == "freeze" else asked.abort(NAME, [1]))
            await one_turn()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            gc.collect()
        assert not told


async def test_offsets_of_partitions_elsewhere_are_taken() -> None:
    async with cluster(ManualClock()) as running:
        broker = running.nodes[0].broker
        authorizer = TopicAuthorizer(ANYBODY, broker.topics)
        request = offsets_pb2.CommitGroupOffsetsRequest(group_id="g")
        for tp in running.tps[:2]:
            request.offsets.add(topic_id=tp.topic_id, partition=tp.partition, offset=7, leader_epoch=-1)
        here, elsewhere = (await groups.commit_group_offsets(broker, authorizer, request)).results
        assert ErrorCode(here.error.code) is ErrorCode.OFFSET_OUT_OF_RANGE, "its log is here, and ends at 0"
        assert not elsewhere.HasField("error")
        asked = offsets_pb2.FetchGroupOffsetsRequest(group_id="g")
        asked.partitions.add(topic_id=running.tps[1].topic_id, partition=1)
        (found,) = (await groups.fetch_group_offsets(broker, authorizer, asked)).results
        assert found.offset == 7
        described = await groups.describe_group(broker, authorizer, offsets_pb2.DescribeGroupRequest(group_id="g"))
        assert [one.end_offset for one in described.partitions] == [0, -1, 0, -1]
        assert [one.log_start_offset for one in described.partitions] == [0, -1, 0, -1]
        assert {one.topic for one in described.partitions} == {"t"}
        refused = await groups.commit_group_offsets(running.nodes[1].broker, authorizer, request)
        assert ErrorCode(refused.error.code) is ErrorCode.NOT_COORDINATOR
        running.nodes[1].broker.forget_topic(running.topic)
        broker.forget_topic(running.topic)
        assert not broker.groups.table.groups


async def test_the_coordinator_alone_issues_producer_ids() -> None:
    async with cluster(ManualClock()) as running:
        request = transaction_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
        authorizer = TopicAuthorizer(ANYBODY, running.nodes[0].broker.topics)
        granted = await transactions.init_producer_id(running.nodes[0].broker, authorizer, request)
        assert granted.producer_id >= 0
        refused = await transactions.init_producer_id(running.nodes[1].broker, authorizer, request)
        assert ErrorCode(refused.error.code) is ErrorCode.NOT_COORDINATOR
        somebody = Principal("somebody", UNLIMITED)
        elsewhere = TopicAuthorizer(somebody, running.nodes[1].logs.topics)
        assert elsewhere.owns_producer(elsewhere.own_producer_id(granted.producer_id)), "by its tag alone"
        assert not elsewhere.owns_producer(granted.producer_id)


async def test_large_answers_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("leaders", "members", "transactions"):
        monkeypatch.setattr(f"brokerd.server.coordinator.{module}.PARTITIONS_MAX", 1)
    for module in ("leaders", "members"):
        monkeypatch.setattr(f"brokerd.server.coordinator.{module}.IDS_MAX", 1)
    async with cluster(ManualClock()) as running:
        first = await begin(running)
        second = await running.nodes[0].init(NAME, Execution(0, "e0", "r"), b"2" * 16)
        for tp in running.tps:
            await running.nodes[running.leaders[tp]].produce(second, tp, b"row", 0)
        transactions = running.nodes[0].broker.transactions
        assert (await transactions.leaders.open_members()).producer_ids == {first.producer_id, second.producer_id}
        ids = [first.producer_id, second.producer_id]
        data = await transactions.leaders.open_data(ids)
        places = {(one.producer_id, TopicIdPartition(one.topic_id, one.partition)) for one in data}
        assert places == {(producer_id, tp) for producer_id in ids for tp in running.tps}
        assert len(data) == len(places)
        assert len(await transactions.leaders.hanging()) == len(running.tps)
        asked = end_request(NAME, Execution(0, "e0", "r"), [(first, 4), (second, 4)], running.tps, rows=8)
        await transactions.commit(PRINCIPAL, asked)
        assert shown(running) == [2, 2, 2, 2]


async def test_a_log_that_cannot_be_used_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(ManualClock()) as running:
        await begin(running)
        host = running.nodes[0].broker.coordinator
        monkeypatch.setattr("brokerd.server.coordinator.log.COMPACTION_MIN_BYTES", 0)

        def rotten(_data: bytes) -> None:
            raise CorruptMessageError("rotten")

        with monkeypatch.context() as patch:
            patch.setattr("brokerd.server.coordinator.log.decode", rotten)
            await running.lead(0)
            assert host.local is None
            assert "rotten" in caplog.text
        await host.sweep()
        assert host.local is not None


@pytest.mark.parametrize("leads_again", [True, False])
async def test_an_answer_about_holds_is_of_the_epoch_in_which_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, leads_again: bool
) -> None:
    """Another node has led in between. This node knows neither the markers that it took nor the holds that it released."""
    async with cluster(ManualClock()) as running:
        await begin(running)
        node, tp = running.nodes[1], running.tps[1]
        log, replicas = node.logs.partitions.replica(tp), node.logs.replicas
        assert log is not None

        async def change(role: str) -> None:
            running.epoch += 1
            take = replicas.lead if role == "leads" else replicas.follow
            await node.broker.admin.run(take({tp: running.epoch}))

        async def ask(_members: Members, request: PreparedHoldsRequest) -> PreparedHoldsResponse:
            if one_of(request) and not asked:
                asked.append(request)
                await change("follows")
                if leads_again:
                    await change("leads")
            held_back = [HeldBack(topic_id=tp.topic_id, partition=tp.partition, first_offset=0)]
            found = PreparedHold(transactional_id=NAME, txn_version=0, held_back=held_back)
            return PreparedHoldsResponse(coordinator_epoch=epoch(running), commits=[found] if not leads_again else [])

        def one_of(request: PreparedHoldsRequest) -> bool:
            return any(one.partition == tp.partition for one in request.partitions)

        asked: list[PreparedHoldsRequest] = []
        await change("follows")
        await change("leads")
        monkeypatch.setattr(Members, "_ask_holds", ask)
        assert await node.broker.members.settle() == (not leads_again)
        assert asked
        assert list(log.ends.held_back) == ([UNSETTLED] if leads_again else [])


async def test_what_was_released_at_a_leader_in_between_is_not_held_back_for_ever() -> None:
    """The former leader missed the release, and is elected again."""
    async with cluster(ManualClock(), nodes=3) as running:
        await released_elsewhere(running, await begin(running))
        assert running.nodes[1].log(running.tps[1]).is_leader
        await running.lead(1)
        assert await running.nodes[1].broker.members.settle()
        assert shown(running) == [1, 1, 1, 1]


async def test_versions_that_begin_anew_are_held_back_though_a_higher_one_moved_away() -> None:
    async with cluster(ManualClock(), nodes=3) as running:
        node, tp = running.nodes[1], running.tps[1]
        await released_elsewhere(running, await begin(running, 5), 5)
        node.logs.partitions.resign([tp])
        assert not node.broker.members._holds, "nothing is left of it"
        await running.lead(1)
        assert await node.broker.members.settle()
        await running.nodes[0].broker.transactions.forget(NAME)
        node.broker.members.hold(NAME, 5, tp, 0)  # a hold that a release may have missed
        await half_marked(running)
        assert shown(running) == [1, 1, 1, 1], "the commit is prepared, and not marked everywhere"


async def test_a_partition_that_leaves_between_two_pages_is_not_counted_without_a_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("members", "leaders"):
        monkeypatch.setattr(f"brokerd.server.coordinator.{module}.PARTITIONS_MAX", 2)
    async with cluster(ManualClock(), partitions=10) as running:
        member = await begin(running)
        node, tp, asked = running.nodes[1], running.tps[5], list[str]()  # node 1 leads 1, 3, 5, 7 and 9: three pages

        def goes(node_id: int, name: str) -> bool:
            if (node_id, name) == (1, "FreezeMembers"):
                asked.append(name)
                if len(asked) == 4:  # after two checks and the first page
                    node.logs.partitions.resign([tp])
            return False

        running.loses = goes
        with pytest.raises(NotReadyError, match="have changed meanwhile"):
            await commit(running, member)
        running.loses = lambda *_: False
        await running.lead(1)
        await commit(running, member)
        await node.broker.members.settle()
        assert shown(running) == [1] * 10
