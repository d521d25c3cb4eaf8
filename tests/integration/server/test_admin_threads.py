"""Administrative work and retention never block the event loop: work that waits for the disk runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.server import daemon
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2, transaction_pb2
from tests.support.daemon import RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.raw_client import LONG_MS, RawClient, values_batch
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = 20
SYNCS = ("fdatasync", "sync_dir")


@pytest.fixture
def seen(files: MemoryFiles) -> Iterator[list[tuple[str, str, str]]]:
    """(thread, operation, path) of each file operation from now on."""
    calls: list[tuple[str, str, str]] = []
    yield calls
    files.hook = None


def _watch(files: MemoryFiles, calls: list[tuple[str, str, str]]) -> None:
    files.hook = lambda operation, path: calls.append((threading.current_thread().name, operation, path))


def _in_loop(calls: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [call for call in calls if call[0] == "brokerd-test" and call[1] in (*SYNCS, "unlink")]


def _delete_all(client: RawClient, tps: list[TopicIdPartition]) -> list[int]:
    asked = [topics_pb2.PartitionDeleteRecords(topic_id=tp.topic_id, partition=tp.partition, before_offset=-1) for tp in tps]
    response = client.call("DeleteRecords", topics_pb2.DeleteRecordsRequest(partitions=asked))
    assert not any(result.HasField("error") for result in response.results)
    return [result.log_start_offset for result in response.results]


@pytest.mark.parametrize("settings", [{"log_checkpoint_interval_ms": 60_000}], indirect=True)
def test_one_request_to_delete_records_is_one_checkpoint_written_by_a_thread(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    tps = client.create_topic(partitions=PARTITIONS)
    producer = client.producer()
    for tp in tps:
        producer.produce(tp, values_batch(tp))
    _watch(files, seen)
    assert _delete_all(client, tps) == [1] * PARTITIONS
    assert [call[2] for call in seen if call[1] == "rename"] == ["checkpoint"]
    assert _in_loop(seen) == []


def test_a_checkpoint_that_fails_moves_no_log_start(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    tps = client.create_topic(partitions=2)
    producer = client.producer()
    for tp in tps:
        producer.produce(tp, values_batch(tp))

    def fail(operation: str, path: str) -> None:
        if operation == "create" and path.startswith("checkpoint"):
            raise OSError(5, "Input/output error")

    files.hook = fail
    with pytest.raises(AssertionError):
        _delete_all(client, tps)
    files.hook = None
    assert [entry.log_start_offset for entry in client.describe().partitions] == [0, 0]


@pytest.mark.parametrize("settings", [{"log_retention_check_interval_ms": 20, "log_segment_bytes": 4_096}], indirect=True)
def test_retention_rolls_and_removes_without_holding_the_loop(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    (tp,) = client.create_topic(retention_ms="1")
    producer = client.producer()
    for _ in range(5):
        producer.produce(tp, values_batch(tp, size=3_000))
    _watch(files, seen)
    producer.produce(tp, values_batch(tp, size=3_000))
    wait_until(lambda: client.describe().partitions[0].log_start_offset == 6)
    wait_until(lambda: sum(path.endswith(".log") for path in files.paths()) == 1)
    assert _in_loop(seen) == []


def _requests(tp: TopicIdPartition) -> dict[str, Any]:
    """One effective request of every unary method, in an order in which all succeed."""
    pb = topics_pb2
    execution: dict[str, Any] = {"transactional_id": "id", "execution_id": "execution"}
    return {
        "GetServerInfo": metadata_pb2.GetServerInfoRequest(),
        "Metadata": metadata_pb2.MetadataRequest(),
        "InitProducerId": transaction_pb2.InitProducerIdRequest(
            **execution, member_id=b"m" * 16, timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        ),
        "Heartbeat": transaction_pb2.HeartbeatRequest(**execution, member_id=b"m" * 16),
        "ListTransactions": transaction_pb2.ListTransactionsRequest(),
        "DescribeTransaction": transaction_pb2.DescribeTransactionRequest(transactional_id="id"),
        "FindHangingTransactions": transaction_pb2.FindHangingTransactionsRequest(),
        "AbortTransaction": transaction_pb2.AbortTransactionRequest(transactional_id="id"),
        "EndTransaction": transaction_pb2.EndTransactionRequest(**execution, decision=transaction_pb2.TRANSACTION_DECISION_COMMIT),
        "ForgetTransactionalId": transaction_pb2.ForgetTransactionalIdRequest(transactional_id="id"),
        "ListOffsets": offsets_pb2.ListOffsetsRequest(
            partitions=[offsets_pb2.PartitionListOffsets(topic_id=tp.topic_id, partition=0, spec=offsets_pb2.OFFSET_SPEC_EARLIEST)]
        ),
        "CommitGroupOffsets": offsets_pb2.CommitGroupOffsetsRequest(
            group_id="group",
            offsets=[offsets_pb2.PartitionGroupOffset(topic_id=tp.topic_id, partition=0, offset=1, leader_epoch=-1)],
        ),
        "FetchGroupOffsets": offsets_pb2.FetchGroupOffsetsRequest(group_id="group"),
        "ListGroups": offsets_pb2.ListGroupsRequest(),
        "DescribeGroup": offsets_pb2.DescribeGroupRequest(group_id="group"),
        "DeleteGroup": offsets_pb2.DeleteGroupRequest(group_id="group"),
        "DescribeTopics": pb.DescribeTopicsRequest(),
        "CreateTopics": pb.CreateTopicsRequest(topics=[pb.NewTopic(name="new", partitions=5)]),
        "CreatePartitions": pb.CreatePartitionsRequest(name="new", total_count=9),
        "AlterTopicConfigs": pb.AlterTopicConfigsRequest(name="new", set={"retention.ms": "5"}),
        "DeleteRecords": pb.DeleteRecordsRequest(
            partitions=[pb.PartitionDeleteRecords(topic_id=tp.topic_id, partition=0, before_offset=-1)]
        ),
        "AlterPartitionReassignments": pb.AlterPartitionReassignmentsRequest(
            partitions=[pb.PartitionReassignment(name="new", partition=0, replicas=[1])]
        ),
        "DrainNode": pb.DrainNodeRequest(node_id=1),
        "ElectUncleanLeader": pb.ElectUncleanLeaderRequest(name="new", partition=0),
        "DeleteTopics": pb.DeleteTopicsRequest(names=["new"]),
    }


REFUSED_ALONE = {"AlterPartitionReassignments", "DrainNode", "ElectUncleanLeader"}
WRITING = {"InitProducerId", "CreateTopics", "CreatePartitions", "AlterTopicConfigs", "DeleteRecords", "DeleteTopics"} | {
    "AbortTransaction",
    "EndTransaction",
    "ForgetTransactionalId",
    "CommitGroupOffsets",
    "DeleteGroup",
}


@pytest.mark.parametrize("settings", [{"log_checkpoint_interval_ms": 60_000}], indirect=True)
def test_no_method_waits_for_the_disk_in_the_loop(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    (tp,) = client.create_topic()
    client.producer().produce(tp, values_batch(tp))
    requests = _requests(tp)
    _watch(files, seen)
    writing = set()
    for name, request in requests.items():
        seen.clear()
        response = client.call(name, request)
        assert ("error {" in str(response)) == (name in REFUSED_ALONE), name
        assert _in_loop(seen) == [], name
        if any(operation in SYNCS for _, operation, _ in seen):
            writing.add(name)
    assert writing == WRITING


class _Held:
    """A hook that holds one operation of a thread until it is released."""

    def __init__(self, matches: Callable[[str, str], bool]) -> None:
        self._matches = matches
        self.is_reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if self._matches(operation, path) and not self.is_reached.is_set():
            assert threading.current_thread().name != "brokerd-test", "the loop would be held"
            self.is_reached.set()
            assert self.go_on.wait(DEADLINE_S)


def _held(files: MemoryFiles, operation: str, path: str) -> _Held:
    held = _Held(lambda called, on: called == operation and path in on)
    files.hook = held
    return held


def _start(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def _create(client: RawClient, name: str = "t") -> topics_pb2.TopicResult:
    request = topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name=name, partitions=3)])
    result: topics_pb2.TopicResult = client.call("CreateTopics", request).results[0]
    return result


def _names(client: RawClient) -> list[str]:
    return [topic.name for topic in client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True)).topics]


def test_two_creations_of_one_name_at_once_make_one_topic(running: RunningDaemon, client: RawClient, files: MemoryFiles) -> None:
    held = _held(files, "create", "topics.tmp")
    first, first_answers = _start(lambda: _create(client))
    assert held.is_reached.wait(DEADLINE_S)
    assert not _names(client), "nobody sees a topic that is not durable"
    second, second_answers = _start(lambda: _create(client))
    held.go_on.set()
    first.join(DEADLINE_S)
    second.join(DEADLINE_S)
    codes = sorted(ErrorCode(answer.error.code).name for answer in first_answers + second_answers)
    assert codes == ["NONE", "TOPIC_ALREADY_EXISTS"]
    assert sum(path.endswith(".log") for path in files.paths()) == 3


@pytest.mark.parametrize("settings", [{"auto_create_topics_enable": True}], indirect=True)
def test_topics_that_come_by_being_asked_for_wait_for_their_turn(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    held = _held(files, "create", "topics.tmp")  # the loop must not touch it
    creation, created = _start(lambda: _create(client, "first"))
    assert held.is_reached.wait(DEADLINE_S)
    askings = [_start(partial(client.metadata, name)) for name in ("second", "second", "first")]
    held.go_on.set()
    for thread, _ in [(creation, created), *askings]:
        thread.join(DEADLINE_S)
    asked = [answers[0].topics[0] for _, answers in askings]
    seconds, firsts = asked[:2], [created[0], asked[2]]
    assert len({topic.topic_id for topic in seconds}) == len({topic.topic_id for topic in firsts}) == 1
    assert not any(topic.HasField("error") for topic in seconds + firsts)
    files.hook = None
    store = TopicStore(files)
    store.open()
    assert [topic.name for topic in store.list()] == _names(client) == ["first", "second"]


@pytest.mark.parametrize("settings", [{"auto_create_topics_enable": True}], indirect=True)
def test_a_topic_that_comes_by_being_asked_for_does_not_hold_the_loop(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    _watch(files, seen)
    assert not client.metadata("fresh").topics[0].HasField("error")
    assert any(operation in SYNCS for _, operation, _ in seen)
    assert _in_loop(seen) == []


def test_a_topic_that_is_deleted_while_it_is_created_is_gone_afterwards(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    held = _held(files, "mkdir", "-1")
    creation, created = _start(lambda: _create(client))
    assert held.is_reached.wait(DEADLINE_S)
    deletion, deleted = _start(lambda: client.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["t"])).results[0])
    held.go_on.set()
    creation.join(DEADLINE_S)
    deletion.join(DEADLINE_S)
    assert created[0].topic_id == deleted[0].topic_id != b""
    assert not _names(client)
    assert not any(path.endswith(".log") for path in files.paths())


def test_while_a_topic_is_deleted_its_clients_are_told_and_others_are_served(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    (tp,) = client.create_topic()
    (other,) = client.create_topic("other")
    producer, fetcher = client.producer(), client.fetcher()
    producer.produce(tp, values_batch(tp))
    fetcher.post({tp: 1}, max_wait_ms=LONG_MS)
    held = _held(files, "unlink", tp.directory_name)
    deletion, _ = _start(client.delete_topic)
    assert held.is_reached.wait(DEADLINE_S)
    # Its files still exist, but no client can use the topic any more.
    assert ErrorCode(fetcher.answer()[0].results[0].error.code) == ErrorCode.UNKNOWN_TOPIC_ID
    assert ErrorCode(producer.produce(tp, values_batch(tp)).error.code) == ErrorCode.UNKNOWN_TOPIC_ID
    assert ErrorCode(fetcher.fetch({tp: 0})[0].results[0].error.code) == ErrorCode.UNKNOWN_TOPIC_ID
    assert not producer.produce(other, values_batch(other)).HasField("error")
    held.go_on.set()
    deletion.join(DEADLINE_S)
    assert not any(path.startswith(tp.directory_name) for path in files.paths())


def test_a_flush_under_way_does_not_keep_a_deleted_topics_files(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    (tp,) = client.create_topic()
    producer = client.producer()
    held = _held(files, "fdatasync", f"{tp.directory_name}/leader-epochs.tmp")
    producer.post([(tp, values_batch(tp))])
    assert held.is_reached.wait(DEADLINE_S)
    client.delete_topic()
    assert ErrorCode(producer.answer().results[0].error.code) != ErrorCode.NONE
    held.go_on.set()
    client.create_topic("next")
    assert not any(path.startswith(tp.directory_name) for path in files.paths())


@pytest.mark.parametrize("settings", [{"shutdown_grace_ms": 50}], indirect=True)
def test_a_stop_waits_for_what_is_under_way(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "REST_MS", LONG_MS)  # what is under way here takes as long as this test does
    held = _held(files, "create", "topics.tmp")
    creation, _ = _start(lambda: _outcome(lambda: _create(client)))
    assert held.is_reached.wait(DEADLINE_S)
    stop = asyncio.run_coroutine_threadsafe(running.daemon.stop(), running.loop)
    creation.join(DEADLINE_S)  # its client is told that the broker is shutting down
    assert not stop.done()
    held.go_on.set()
    stop.result(DEADLINE_S)
    files.hook = None
    assert "clean-shutdown" in files.paths()
    running.run(running.daemon.start())
    with RawClient(running.address) as again:
        assert _names(again) == ["t"]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except grpc.RpcError as error:
        return error
