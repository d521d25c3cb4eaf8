"""Goal: a client keeps the highest leader epoch that it has seen of each partition, and never returns to an older leader. Method:
the merge by itself; a broker with given metadata and refusals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd import Consumer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import BrokerClient, CallRetries
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    LogTruncationError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    WireError,
)
from brokerd.ids import NO_EPOCH, NO_LEADER, TopicInfo
from brokerd.wire.v1 import offsets_pb2
from tests.support.clock import HastyClock
from tests.support.fake_broker import FakeBroker, fake_cluster
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S, wait_until

DEADLINE_MS = int(DEADLINE_S * 1_000)

ID = bytes(16)
VIEWS = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 9)), max_size=5).map(
    lambda pairs: TopicInfo(ID, tuple(node for node, _ in pairs), leader_epochs=tuple(epoch for _, epoch in pairs))
)


@given(VIEWS, VIEWS)
def test_the_higher_epoch_of_each_partition_wins(now: TopicInfo, seen: TopicInfo) -> None:
    newest = now.newer_than(seen)
    assert newest.partition_count == now.partition_count, "partitions are as many as the node says"
    for number, pair in enumerate(zip(newest.leaders, newest.leader_epochs, strict=True)):
        pairs = [(one.leaders[number], one.leader_epochs[number]) for one in (now, seen) if number < one.partition_count]
        assert pair == max(pairs, key=lambda one: one[1]), "of equal epochs, the first: what the node says now"


def test_a_view_without_epochs_is_older_than_one_with_them() -> None:
    now = TopicInfo(ID, (1, 1))
    assert now.newer_than(TopicInfo(ID, (0,), leader_epochs=(4,))) == TopicInfo(ID, (0, 1), leader_epochs=(4, NO_EPOCH))
    assert now.newer_than(TopicInfo(ID, (0, 0))) == now


@pytest.fixture
def hasty(broker: FakeBroker) -> Iterator[BlockingClient]:
    """A client whose calls end soon, however long each answer takes."""
    config = ClientConfig(
        bootstrap_servers=f"127.0.0.1:{broker.port}", retry_backoff_ms=1, retry_backoff_max_ms=2, request_timeout_ms=DEADLINE_MS
    )
    with BlockingClient(config, HastyClock()) as client:
        yield client


def test_a_lower_epoch_does_not_lead_back(broker: FakeBroker, client: BlockingClient) -> None:
    partition = broker.create("t")[0]
    partition.leader_epoch = 5
    client.metadata(["t"])
    partition.leader_epoch, partition.leader = 4, 7
    client.metadata(["t"])
    assert client.loop_thread.run(client.broker_client.leader(partition.tp)) == 0
    assert client.broker_client.leader_epoch(partition.tp) == 5
    partition.leader_epoch = 6
    client.metadata(["t"])
    assert client.loop_thread.run(client.broker_client.leader(partition.tp)) == 7


@pytest.mark.parametrize("problem", ["", "t-0 has no leader at present: they are on node 2, which is not alive; start it"])
def test_who_waits_for_a_leader_is_told_why_there_is_none(broker: FakeBroker, client: BlockingClient, problem: str) -> None:
    partition = broker.create("t")[0]
    partition.leader, partition.problem = NO_LEADER, problem
    with pytest.raises(NotLeaderError, match=problem or "partition 0 of topic 't' has no leader at present"):
        client.loop_thread.run(client.broker_client.leader(partition.tp))


def test_a_call_with_an_old_epoch_refreshes_its_metadata_once(broker: FakeBroker, client: BlockingClient) -> None:
    partition = broker.create("t")[0]
    client.metadata(["t"])
    partition.leader_epoch = 2
    metadata_calls = broker.calls["Metadata"]
    assert isinstance(client.list_offsets({partition.tp: OffsetSpec.LATEST})[partition.tp], OffsetAndTimestamp)
    assert broker.calls["Metadata"] == metadata_calls + 1
    assert broker.leader_epochs["ListOffsets"] == [1, 2]


def test_fetches_with_an_old_epoch_refresh_their_metadata_once(broker: FakeBroker, client: BlockingClient) -> None:
    """The topic is looked up once, however many of its partitions are read."""
    partitions = broker.create("t", 3)
    for partition in partitions:
        partition.put(new_batch(key_values([b"a"]), tp=partition.tp))
    client.metadata(["t"])
    for partition in partitions:
        partition.leader_epoch = 2
    metadata_calls = broker.calls["Metadata"]
    ranges = [FetchRange(partition.tp, 0, 1) for partition in partitions]
    with PartitionFetcher(client, ranges, ConsumerConfig()) as fetcher:
        assert len(list(fetcher)) == 3
    assert broker.calls["Metadata"] == metadata_calls + 1
    assert broker.leader_epochs["Fetch"][:6] == [1, 1, 1, 2, 2, 2]


def test_a_position_is_compared_with_the_history_after_a_refusal_too(
    broker: FakeBroker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that refuses a fetch has not compared its position. The other partition keeps the stream open."""
    compared: list[bool] = []
    led = FakeBroker.led

    def noted(self: FakeBroker, method: str, asked: Any) -> Any:
        if method == "Fetch" and asked.partition == 0:
            compared.append(asked.HasField("position"))
        return led(self, method, asked)

    monkeypatch.setattr(FakeBroker, "led", noted)
    partitions = broker.create("t", 2)
    for partition in partitions:
        partition.put(new_batch(key_values([b"a", b"b"]), tp=partition.tp))
    partitions[0].elected_after["Fetch"] = NotLeaderError("it has not heard yet")
    ranges = [FetchRange(partitions[0].tp, 1, epoch_id=4_711), FetchRange(partitions[1].tp, 0)]
    with PartitionFetcher(client, ranges, ConsumerConfig()) as fetcher:
        while (found := fetcher.next_batch(DEADLINE_MS)) is not None and found.tp != partitions[0].tp:
            pass
        wait_until(lambda: len(compared) > 2)
    assert compared[:3] == [True, True, False]


def test_leaders_without_records_do_not_keep_others_waiting() -> None:
    with fake_cluster(5) as cluster, BlockingClient(ClientConfig(bootstrap_servers=cluster.servers)) as client:
        partitions = cluster.create("t")
        partitions[-1].put(new_batch(key_values([b"a"]), tp=partitions[-1].tp))
        ranges = [FetchRange(partition.tp, 0) for partition in partitions]
        with PartitionFetcher(client, ranges, ConsumerConfig()) as fetcher:
            found = fetcher.next_batch(DEADLINE_MS)
    assert found is not None
    assert found.tp == partitions[-1].tp


@pytest.mark.parametrize("end", ["in an answer", "in a pause", "in an attempt"])
def test_a_restored_copy_with_lower_epochs_is_an_error_once_and_then_read(
    broker: FakeBroker, hasty: BlockingClient, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """No node will report the higher epoch again: the call fails after its timeout and forgets it, so the next one succeeds."""
    once = BrokerClient.call_once

    async def cut_short(self: BrokerClient, node_id: int, request: Any, response_type: Any, *more: Any) -> Any:
        if broker.calls["ListOffsets"] and response_type is offsets_pb2.ListOffsetsResponse:
            raise BrokerUnreachableError("ListOffsets had no answer in time")
        return await once(self, node_id, request, response_type, *more)

    partition = broker.create("t")[0]
    partition.leader_epoch = 5
    hasty.metadata(["t"])
    partition.leader_epoch = 3
    with monkeypatch.context() as patch:
        if end == "in an attempt":
            patch.setattr(BrokerClient, "call_once", cut_short)
            failed = list[BaseException]()

            def left_ms(_: CallRetries, error: BaseException, **__: int) -> int:
                failed.append(error)
                return 0 if any(isinstance(one, BrokerUnreachableError) for one in failed) else 1

            patch.setattr(CallRetries, "left_ms", left_ms)
        if end == "in a pause":
            patch.setattr(CallRetries, "left_ms", lambda *_, **__: 0)
        refused = hasty.list_offsets({partition.tp: OffsetSpec.LATEST})[partition.tp]
    assert isinstance(refused, UnknownLeaderEpochError)
    assert "newer: restored" in refused.message
    assert isinstance(hasty.list_offsets({partition.tp: OffsetSpec.LATEST})[partition.tp], OffsetAndTimestamp)


def test_an_epoch_without_a_leader_is_forgotten_if_none_is_heard_of_for_long(broker: FakeBroker, hasty: BlockingClient) -> None:
    """etcd was restored to a state before that epoch, so no node reports it again."""
    partition = broker.create("t")[0]
    partition.put(new_batch(key_values([b"a"]), tp=partition.tp))
    partition.leader, partition.leader_epoch = NO_LEADER, 5
    hasty.metadata(["t"])
    partition.leader, partition.leader_epoch = 0, 4
    ranges = [FetchRange(partition.tp, 0, 1)]
    with PartitionFetcher(hasty, ranges, ConsumerConfig()) as fetcher, pytest.raises(NotLeaderError, match="has no leader"):
        list(fetcher)
    with PartitionFetcher(hasty, ranges, ConsumerConfig()) as fetcher:
        assert len(list(fetcher)) == 1


def test_an_epoch_with_a_leader_is_kept_beside_a_partition_without_one(broker: FakeBroker, hasty: BlockingClient) -> None:
    """A node that is behind would lead back to a leader that was deposed."""
    led, leaderless = broker.create("t", 2)
    led.leader_epoch, leaderless.leader = 5, NO_LEADER
    hasty.metadata(["t"])
    ranges = [FetchRange(leaderless.tp, 0, 1)]
    with PartitionFetcher(hasty, ranges, ConsumerConfig()) as fetcher, pytest.raises(NotLeaderError, match="has no leader"):
        list(fetcher)
    led.leader, led.leader_epoch = 7, 4
    hasty.metadata(["t"])
    assert hasty.loop_thread.run(hasty.broker_client.leader(led.tp)) == 0


@pytest.mark.parametrize(
    "said",
    [
        OffsetOutOfRangeError("it starts at offset 9", log_start_offset=9),
        OffsetOutOfRangeError("its next record gets offset 0", log_start_offset=0),
        LogTruncationError("of another history", resume_offset=0),
    ],
    ids=["retention", "its end", "another history"],
)
def test_a_former_leader_cannot_say_that_records_are_gone(broker: FakeBroker, said: WireError) -> None:
    """Neither the deposed leader nor a reader with old metadata knows of the election. Nothing is skipped or reported lost."""
    partition = broker.create("t")[0]
    partition.put(new_batch(key_values([b"a"]), tp=partition.tp))
    servers = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "retry.backoff.ms": 1, "auto.offset.reset": "latest"}
    with Consumer(servers) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek(TopicPartition("t", 0), 0)
        partition.elected_after["Fetch"] = said
        assert [record.offset for record in consumer.poll(DEADLINE_MS)] == [0]
        assert broker.leader_epochs["Fetch"][:2] == [1, 2]


def test_records_are_not_said_to_be_gone_while_it_is_unknown_who_leads(broker: FakeBroker, client: BlockingClient) -> None:
    partition = broker.create("t")[0]
    client.metadata(["t"])
    broker.errors["Fetch"] = [OffsetOutOfRangeError("it starts at offset 9", log_start_offset=9)]
    broker.fail_calls = [grpc.StatusCode.UNIMPLEMENTED]
    fetcher = PartitionFetcher(client, [FetchRange(partition.tp, 0, 1)], ConsumerConfig())
    with fetcher, pytest.raises(BrokerdError) as raised:
        list(fetcher)
    assert not isinstance(raised.value, OffsetOutOfRangeError)


def test_a_leader_that_says_that_records_are_gone_is_believed(broker: FakeBroker) -> None:
    """After a refresh of the metadata."""
    partition = broker.create("t")[0]
    broker.errors["Fetch"] = [OffsetOutOfRangeError("it starts at offset 9", log_start_offset=9)]
    with Consumer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "auto.offset.reset": "none"}) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek(TopicPartition("t", 0), 0)
        with pytest.raises(OffsetOutOfRangeError, match="it starts at offset 9"):
            consumer.poll(DEADLINE_MS)
    assert partition.leader_epoch == 1
