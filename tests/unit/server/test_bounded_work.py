"""A call costs no more than what its caller may see. Long calls run in pieces, callers in turn, and never block the event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import pytest

from brokerd.coordinator.records import offsets_committed, record_of
from brokerd.coordinator.transactional_id import Held
from brokerd.ids import TopicIdPartition
from brokerd.internode.v1.internode_pb2 import OpenDataRequest
from brokerd.partition.markers import UnmarkedData, unmarked_data
from brokerd.server.broker import BrokerParts
from brokerd.server.coordinator import members
from brokerd.server.handlers import groups, list_offsets, metadata, transaction_admin, transactions
from brokerd.server.metrics.endpoint import MetricsEndpoint
from brokerd.server.metrics.families import families
from brokerd.server.paging import LISTED_MAX, Pauses, list_page
from brokerd.server.security.topic_authorizer import ANYBODY, Principal, Right, TopicAuthorizer, TopicRights
from brokerd.sharing import CALLER, Caller, Turns
from brokerd.storage.damage import DamagedRange
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, transaction_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommitCompleted
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.group_offsets import committed
from tests.support.inner_broker import TransactionBroker, Write, running
from tests.support.loop import one_turn
from tests.support.transaction_bench import Execution, commit_of

OWNED = 5_000
PIECE_MAX = 2_000  # names that a list examines between two pauses
NOBODY = Principal("nobody", TopicRights({}))
OWNER = Principal("owner", TopicRights({Right.READ: ["narrow"]}, ["id-*"]))


def authorizer_of(broker: BrokerParts, principal: Principal) -> TopicAuthorizer:
    return TopicAuthorizer(principal, broker.topics)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that completes without waiting."""
    with pytest.raises(StopIteration) as end:
        work.send(None)
    return end.value.value


class CountingNames(dict[str, tuple[str, int]]):
    """Names that count their look-ups: since the last pause, and the most between two pauses."""

    def __init__(self, names: Mapping[str, int]) -> None:
        super().__init__({name: (name, one) for name, one in names.items()})
        self.looks = self.looks_max = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(name, default)

    def pause(self) -> None:
        self.looks_max = max(self.looks_max, self.looks)
        self.looks = 0


class CountedPauses(Pauses):
    """Reports each pause to the names."""

    def __init__(self, names: CountingNames) -> None:
        super().__init__()
        self._names = names

    async def after(self, pieces: int = 1) -> None:
        self._names.pause()
        await super().after(pieces)


@pytest.mark.parametrize("seed", range(20))
async def test_a_page_is_what_a_sort_of_all_has_there_and_is_found_in_pieces(seed: int) -> None:
    rng, listed = random.Random(seed), list[str]()
    names = CountingNames({f"{rng.choice('ab')}{rng.randrange(10**6)}": rng.randrange(3) for _ in range(rng.randrange(9_000))})
    prefix, after, wanted = rng.choice(["", "a", "b1"]), rng.choice(["", "a5", "b"]), rng.randrange(3)
    more = await list_page(
        names,
        prefix=prefix,
        after=after,
        pauses=CountedPauses(names),
        is_wanted=lambda one: one[1] == wanted,
        add=lambda one: listed.append(one[0]),
    )
    all_names = sorted(name for name, one in names.values() if name > after and name.startswith(prefix) and one == wanted)
    assert (listed, more) == (all_names[:LISTED_MAX], len(all_names) > LISTED_MAX)
    assert names.looks_max <= PIECE_MAX


def own_many(broker: TransactionBroker, tp: TopicIdPartition) -> None:
    """Creates OWNED transactional ids and groups that belong to OWNER."""
    for number in range(OWNED):
        name = f"id-{number * 7919 % OWNED:05d}"
        for event in (commit_of(Execution(0, "e", "")), CommitCompleted()):
            broker.transactions.coordinator.apply(record_of(name, OWNER.name, 1, event), 0)
        broker.groups.table.apply(offsets_committed(name, OWNER.name, [committed(tp)]))


async def test_a_list_costs_a_principal_what_it_may_see() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        own_many(broker, (await broker.topic())[0])
        nobody, owner = (authorizer_of(broker.broker, principal) for principal in (NOBODY, OWNER))
        ids = transaction_pb2.ListTransactionsRequest()
        assert broker.transactions.coordinator.states_of(NOBODY.name) == {}
        assert not at_once(transaction_admin.list_transactions(broker.broker, nobody, ids)).transactions
        assert not at_once(groups.list_groups(broker.broker, nobody, offsets_pb2.ListGroupsRequest())).groups
        for principal in (owner, authorizer_of(broker.broker, ANYBODY)):
            listed = await transaction_admin.list_transactions(broker.broker, principal, ids)
            assert [one.transactional_id for one in listed.transactions] == [f"id-{number:05d}" for number in range(LISTED_MAX)]
            asked = offsets_pb2.ListGroupsRequest(after="id-03999")
            found = await groups.list_groups(broker.broker, principal, asked)
            assert [one.group_id for one in found.groups] == [f"id-{number:05d}" for number in range(4_000, OWNED)]
            assert (listed.more, found.more) == (True, False)


async def test_a_list_of_topics_costs_a_principal_those_that_it_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        await broker.topic("wide", 200)
        await broker.topic("narrow", 1)
        broker.broker.port = 1
        looks = 0
        partition = broker.logs.partitions.leader

        def counted(tp: TopicIdPartition) -> Any:
            nonlocal looks
            looks += 1
            return partition(tp)

        monkeypatch.setattr(broker.broker.partitions, "leader", counted)
        asked = metadata_pb2.MetadataRequest(all_topics=True)
        answer = at_once(metadata.handle(broker.broker, authorizer_of(broker.broker, OWNER), asked))
        assert [topic.name for topic in answer.topics] == ["narrow"]
        assert looks <= 2


async def test_of_many_calls_of_one_principal_one_goes_on_in_a_turn() -> None:
    turns, done = Turns(), list[int]()

    async def walk(peer: str) -> None:
        CALLER.set(Caller("many", peer))
        await turns.take(Caller("many", peer))
        pauses = Pauses(turns)
        for _ in range(5):
            done.append(loop_turn)
            await pauses.after(1_000)

    loop_turn = 0
    walks = [asyncio.create_task(walk(f"peer {number}")) for number in range(6)]
    while not all(task.done() for task in walks):
        loop_turn += 1
        await one_turn()
    assert len(done) == 6 * 5
    assert len(set(done)) == len(done), "two went on in one turn of the loop"


async def test_refused_entries_are_answered_in_pieces() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        authorizer = authorizer_of(broker.broker, NOBODY)
        earliest = offsets_pb2.OFFSET_SPEC_EARLIEST
        asked = [offsets_pb2.PartitionListOffsets(topic_id=number.to_bytes(16, "big"), spec=earliest) for number in range(2_000)]
        request = offsets_pb2.ListOffsetsRequest(partitions=asked)
        work = asyncio.ensure_future(list_offsets.handle(broker.broker, authorizer, request))
        loop_turns = 0
        while not work.done():
            loop_turns += 1
            await one_turn()
        assert loop_turns >= 10
        results = work.result().results
        assert [result.topic_id for result in results] == [one.topic_id for one in asked]
        assert all(result.HasField("error") for result in results)


def pages_of(topic_ids: Iterator[bytes], tps: list[TopicIdPartition]) -> list[transaction_pb2.EndTransactionRequest]:
    """The pages of a commit that names existing partitions among many of unknown topics."""
    partition = transaction_pb2.TransactionPartition
    pages = 5
    return [
        transaction_pb2.EndTransactionRequest(
            transactional_id="x",
            execution_id="e",
            decision=transaction_pb2.TRANSACTION_DECISION_COMMIT,
            page=page,
            more_pages=page < pages - 1,
            partitions=[partition(topic_id=next(topic_ids)) for _ in range(1_000)]
            + [partition(topic_id=tp.topic_id, partition=tp.partition) for tp in tps if page == tp.partition],
        )
        for page in range(pages)
    ]


async def test_a_commit_that_names_what_there_is_not_costs_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        tps = await broker.topic(partitions=3)
        decided: list[tuple[transaction_pb2.EndTransactionRequest, Held]] = []
        commit = broker.transactions.coordinator.commit

        def noted(principal: str, asked: transaction_pb2.EndTransactionRequest, held: Held) -> Any:
            decided.append((asked, held))
            return commit(principal, asked, held)

        monkeypatch.setattr(broker.transactions.coordinator, "commit", noted)
        authorizer = authorizer_of(broker.broker, ANYBODY)
        topic_ids = iter([number.to_bytes(16, "big") for number in range(1, 5_001)])
        for page in pages_of(topic_ids, tps):
            response = await transactions.end_transaction(broker.broker, authorizer, page)
            assert not response.HasField("error"), response.error
        ((asked, held),) = decided
        assert [tp for one in asked.partitions if (tp := TopicIdPartition(one.topic_id, one.partition)) in tps] == tps
        assert len(asked.partitions) <= len(tps) + 5, "one that is missing stands for all of its page"
        assert held.missing
        state = broker.transactions.coordinator.states["x"]
        assert state.last is not None


async def test_a_scrape_reads_partitions_in_pieces() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        await broker.topic("wide", 1_500)
        await broker.topic("narrow", 1)
        scrape = asyncio.ensure_future(families(broker.broker, stream_count=0))
        loop_turns = 0
        while not scrape.done():
            loop_turns += 1
            await one_turn()
        assert loop_turns >= 1_500 // 200
        samples = {family.name: family.samples for family in scrape.result()}
        counts = {sample.labels["topic"]: sample.value for sample in samples["brokerd_topic_partition_count"]}
        assert counts == {"wide": 1_500, "narrow": 1}
        assert len(samples["brokerd_log_end_offset"]) == broker.broker.config.metrics_max_partitions == 1_000
        assert [samples[f"brokerd_{name}"][0].value for name in ("partition_count", "partitions_left_out")] == [1_501, 501]


async def test_scrapes_come_one_at_a_time() -> None:
    under_way = under_way_max = 0

    async def scrape() -> bytes:
        nonlocal under_way, under_way_max
        under_way += 1
        under_way_max = max(under_way_max, under_way)
        await one_turn()
        under_way -= 1
        return b"text"

    endpoint = MetricsEndpoint(scrape, lambda: True, None, None)  # type: ignore[arg-type]
    assert await asyncio.gather(*[endpoint._scrape() for _ in range(5)]) == [b"text"] * 5
    assert under_way_max == 1


async def test_the_open_data_of_all_members_in_a_damaged_partition_costs_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged marker leaves all tasks of a write without one. With a pass for each, ten thousand would take minutes."""
    async with running(MemoryFiles(), ManualClock()) as broker:
        tps = await broker.topic()
        opened = [await broker.init("app", Execution(0, "e", ""), bytes([number]) * 16) for number in range(1, 9)]
        for member in opened:
            await broker.write(member, [Write(tp, b"row") for tp in tps])
        passes: list[object] = []

        def counted(*asked: Any) -> list[UnmarkedData]:
            passes.append(asked)
            return unmarked_data(*asked)

        monkeypatch.setattr(members, "unmarked_data", counted)
        broker.log(tps[0]).core.damage_found(DamagedRange(5, 7, "rotten"))
        asked = OpenDataRequest(producer_ids=[member.producer_id for member in opened])
        data = (await broker.broker.members.open_data(asked)).data
        assert {(one.partition, one.lost_from, one.lost_until) for one in data} == {(0, 5, 7), (0, 6, 7), (0, -1, -1), (1, -1, -1)}
        assert len(data) == 2 * len(opened)
        assert len(passes) == 1
