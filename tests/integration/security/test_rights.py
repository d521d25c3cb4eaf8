"""Every method of the API, by every identity, for topics that it may use, may not use, and may not even see.

The table below is handwritten, independent of the broker's own; a method that is missing in either one fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.server.service import METHODS as SERVED
from brokerd.wire.methods import STREAMS, UNARY
from brokerd.wire.v1 import broker_pb2, metadata_pb2, offsets_pb2, topics_pb2, transaction_pb2
from tests.integration.security.conftest import ClientAs
from tests.support.identities import TOKENS, UNKNOWN_TOKEN
from tests.support.raw_client import RawClient, values_batch

VISIBLE = "events-1"
HIDDEN = "hidden-1"  # visible only to the boss
MISSING = "hidden-2"  # does not exist
OK, DENIED, NO_SUCH_ID = 0, int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), int(ErrorCode.UNKNOWN_TOPIC_ID)
NO_GROUP, NOT_YOURS = int(ErrorCode.UNKNOWN_GROUP), int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
NOT_OPEN, UNKNOWN = int(ErrorCode.INVALID_TXN_STATE), int(ErrorCode.INVALID_REQUEST)  # of an unused transactional id
FORBIDDEN = grpc.StatusCode.PERMISSION_DENIED

Outcome = int | grpc.StatusCode
Ask = Callable[[RawClient, str, bytes], Outcome]


def first_error(response: Any, results: str) -> Outcome:
    """The error of the whole request, if any, else of its first result."""
    whole = getattr(response, "error", None)
    return int(whole.code if whole is not None and whole.code else getattr(response, results)[0].error.code)


def by_name(method: str, make: Callable[[str], Message], results: str) -> Ask:
    return lambda client, name, _: first_error(client.call(method, make(name)), results)


def one_name(method: str, make: Callable[[str], Message]) -> Ask:
    return lambda client, name, _: int(client.call(method, make(name)).result.error.code)


def by_id(method: str, make: Callable[[bytes], Message], results: str) -> Ask:
    return lambda client, _, topic_id: first_error(client.call(method, make(topic_id)), results)


def plain(method: str, request: Message) -> Ask:
    def ask(client: RawClient, _name: str, _topic_id: bytes) -> Outcome:
        return int(getattr(client.call(method, request), "error", metadata_pb2.TopicMetadata().error).code)

    return ask


def produce(client: RawClient, _: str, topic_id: bytes) -> Outcome:
    tp = TopicIdPartition(topic_id, 0)
    return int(client.producer().produce(tp, values_batch(tp)).error.code)


def fetch(client: RawClient, _: str, topic_id: bytes) -> Outcome:
    head, _batches = client.fetcher().fetch({TopicIdPartition(topic_id, 0): 0})
    return int(head.results[0].error.code)


def list_offsets(topic_id: bytes) -> Message:
    asked = offsets_pb2.PartitionListOffsets(topic_id=topic_id, spec=offsets_pb2.OFFSET_SPEC_EARLIEST)
    return offsets_pb2.ListOffsetsRequest(partitions=[asked])


def delete_records(topic_id: bytes) -> Message:
    return topics_pb2.DeleteRecordsRequest(partitions=[topics_pb2.PartitionDeleteRecords(topic_id=topic_id, before_offset=0)])


def reassignment(name: str) -> Message:
    return topics_pb2.AlterPartitionReassignmentsRequest(partitions=[topics_pb2.PartitionReassignment(name=name, replicas=[1])])


def commit_offsets(topic_id: bytes) -> Message:
    group_id = f"of {topic_id.hex()}"
    return offsets_pb2.CommitGroupOffsetsRequest(group_id=group_id, offsets=[{"topic_id": topic_id}])


def fetch_offsets(topic_id: bytes) -> Message:
    return offsets_pb2.FetchGroupOffsetsRequest(group_id="nobody's", partitions=[{"topic_id": topic_id}])


BY_ID: dict[str, Callable[[bytes], Message]] = {
    "DeleteRecords": delete_records,
    "ListOffsets": list_offsets,
    "CommitGroupOffsets": commit_offsets,
    "FetchGroupOffsets": fetch_offsets,
}
ASKS: dict[str, Ask] = {
    "GetServerInfo": plain("GetServerInfo", metadata_pb2.GetServerInfoRequest()),
    "Metadata": by_name("Metadata", lambda name: metadata_pb2.MetadataRequest(topics=[name]), "topics"),
    "Produce": produce,
    "Fetch": fetch,
    "CreateTopics": by_name(
        "CreateTopics",
        lambda name: topics_pb2.CreateTopicsRequest(
            topics=[topics_pb2.NewTopic(name=name + "x", partitions=1)], validate_only=True
        ),
        "results",
    ),
    "DeleteTopics": by_name("DeleteTopics", lambda name: topics_pb2.DeleteTopicsRequest(names=[name]), "results"),
    "DescribeTopics": by_name("DescribeTopics", lambda name: topics_pb2.DescribeTopicsRequest(names=[name]), "topics"),
    "CreatePartitions": one_name(
        "CreatePartitions", lambda name: topics_pb2.CreatePartitionsRequest(name=name, total_count=2, validate_only=True)
    ),
    "AlterTopicConfigs": one_name(
        "AlterTopicConfigs", lambda name: topics_pb2.AlterTopicConfigsRequest(name=name, validate_only=True)
    ),
    **{method: by_id(method, make, "results") for method, make in BY_ID.items()},
    "AlterPartitionReassignments": by_name("AlterPartitionReassignments", reassignment, "results"),
    "DrainNode": plain("DrainNode", topics_pb2.DrainNodeRequest(node_id=1)),
    "ElectUncleanLeader": plain("ElectUncleanLeader", topics_pb2.ElectUncleanLeaderRequest(name=VISIBLE)),
    "ListGroups": plain("ListGroups", offsets_pb2.ListGroupsRequest()),
    "DescribeGroup": plain("DescribeGroup", offsets_pb2.DescribeGroupRequest(group_id="nobody's")),
    "DeleteGroup": plain("DeleteGroup", offsets_pb2.DeleteGroupRequest(group_id="nobody's")),
    "InitProducerId": plain("InitProducerId", transaction_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)),
    "EndTransaction": plain(
        "EndTransaction",
        transaction_pb2.EndTransactionRequest(
            transactional_id="nobody's", execution_id="e", decision=transaction_pb2.TRANSACTION_DECISION_ABORT
        ),
    ),
    "Heartbeat": plain(
        "Heartbeat", transaction_pb2.HeartbeatRequest(transactional_id="nobody's", execution_id="e", member_id=b"m" * 16)
    ),
    "ListTransactions": plain("ListTransactions", transaction_pb2.ListTransactionsRequest()),
    "DescribeTransaction": plain("DescribeTransaction", transaction_pb2.DescribeTransactionRequest(transactional_id="nobody's")),
    "AbortTransaction": plain("AbortTransaction", transaction_pb2.AbortTransactionRequest(transactional_id="nobody's")),
    "FindCoordinator": plain("FindCoordinator", metadata_pb2.FindCoordinatorRequest()),
    "FindHangingTransactions": plain("FindHangingTransactions", transaction_pb2.FindHangingTransactionsRequest()),
    "ForgetTransactionalId": plain(
        "ForgetTransactionalId", transaction_pb2.ForgetTransactionalIdRequest(transactional_id="nobody's")
    ),
}
# The reader may read VISIBLE, and the writer may write it; the outsider has every right, but on another topic.
EXPECTED: dict[str, dict[str, Outcome]] = {
    "GetServerInfo": {"reader": OK, "writer": OK, "outsider": OK},
    "Metadata": {"reader": OK, "writer": OK, "outsider": DENIED},
    "Produce": {"reader": FORBIDDEN, "writer": OK, "outsider": NO_SUCH_ID},
    "Fetch": {"reader": OK, "writer": DENIED, "outsider": NO_SUCH_ID},
    "CreateTopics": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "DeleteTopics": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "DescribeTopics": {"reader": OK, "writer": OK, "outsider": DENIED},
    "CreatePartitions": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "AlterTopicConfigs": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "DeleteRecords": {"reader": DENIED, "writer": DENIED, "outsider": NO_SUCH_ID},
    "AlterPartitionReassignments": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "DrainNode": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "ElectUncleanLeader": {"reader": DENIED, "writer": DENIED, "outsider": DENIED},
    "ListOffsets": {"reader": OK, "writer": OK, "outsider": NO_SUCH_ID},
    "CommitGroupOffsets": {"reader": OK, "writer": NOT_YOURS, "outsider": NOT_YOURS},
    "FetchGroupOffsets": {"reader": OK, "writer": NOT_YOURS, "outsider": NOT_YOURS},
    "ListGroups": {"reader": OK, "writer": OK, "outsider": OK},
    "DescribeGroup": {"reader": NO_GROUP, "writer": NOT_YOURS, "outsider": NOT_YOURS},
    "DeleteGroup": {"reader": NO_GROUP, "writer": NOT_YOURS, "outsider": NOT_YOURS},
    "InitProducerId": {"reader": FORBIDDEN, "writer": OK, "outsider": OK},
    "EndTransaction": {"reader": FORBIDDEN, "writer": OK, "outsider": OK},
    "Heartbeat": {"reader": FORBIDDEN, "writer": NOT_OPEN, "outsider": NOT_OPEN},
    "ListTransactions": {"reader": OK, "writer": OK, "outsider": OK},
    "DescribeTransaction": {"reader": UNKNOWN, "writer": UNKNOWN, "outsider": UNKNOWN},
    "AbortTransaction": {"reader": UNKNOWN, "writer": UNKNOWN, "outsider": UNKNOWN},
    "FindCoordinator": {"reader": OK, "writer": OK, "outsider": OK},
    "FindHangingTransactions": {"reader": OK, "writer": OK, "outsider": OK},
    "ForgetTransactionalId": {"reader": UNKNOWN, "writer": UNKNOWN, "outsider": UNKNOWN},
}
METHODS = sorted(EXPECTED)
TOPICLESS = {name for name, row in EXPECTED.items() if row["outsider"] not in (DENIED, NO_SUCH_ID)} - set(BY_ID)


def ask(client: RawClient, method: str, name: str, topic_id: bytes) -> tuple[Outcome, str]:
    """The outcome, with its text if it was a status."""
    try:
        return ASKS[method](client, name, topic_id), ""
    except grpc.RpcError as error:
        return error.code(), error.details() or ""


@pytest.fixture(scope="module")
def topic_ids(client_as: ClientAs) -> dict[str, bytes]:
    boss = client_as(TOKENS["boss"])
    ids = {name: boss.create_topic(name)[0].topic_id for name in (VISIBLE, HIDDEN, "elsewhere", "clicks")}
    return ids | {MISSING: secrets.token_bytes(16)}


def test_every_method_of_the_contract_is_served_and_stands_here() -> None:
    methods = {method.name for method in broker_pb2.DESCRIPTOR.services_by_name["Broker"].methods}
    assert list(SERVED) == list(UNARY)
    assert set(SERVED) | set(STREAMS) == methods
    assert set(EXPECTED) == set(ASKS) == methods, "a new method needs its row here"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", [None, UNKNOWN_TOKEN, TOKENS["boss"][:-1]], ids=["without", "unknown", "cut"])
def test_a_stranger_gets_nothing(client_as: ClientAs, topic_ids: dict[str, bytes], method: str, token: str | None) -> None:
    outcome, text = ask(client_as(token), method, VISIBLE, topic_ids[VISIBLE])
    assert outcome is grpc.StatusCode.UNAUTHENTICATED
    assert "auth.token" in text
    assert token is None or token not in text


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("identity", ["reader", "writer", "outsider"])
def test_each_may_do_what_the_file_says(client_as: ClientAs, topic_ids: dict[str, bytes], method: str, identity: str) -> None:
    outcome, _ = ask(client_as(TOKENS[identity]), method, VISIBLE, topic_ids[VISIBLE])
    assert outcome == EXPECTED[method][identity]


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"DeleteTopics"}))
def test_the_boss_may_do_everything(client_as: ClientAs, topic_ids: dict[str, bytes], method: str) -> None:
    outcome, _ = ask(client_as(TOKENS["boss"]), method, VISIBLE, topic_ids[VISIBLE])
    assert outcome in (OK, NOT_OPEN, UNKNOWN, NO_GROUP)


def answer_about(client: RawClient, method: str, name: str, topic_id: bytes) -> str:
    """The whole response, with the topic's own name and id masked."""
    if method == "Produce":
        tp = TopicIdPartition(topic_id, 0)
        told: Message = client.producer().produce(tp, values_batch(tp))
    elif method == "Fetch":
        told = client.fetcher().fetch({TopicIdPartition(topic_id, 0): 0})[0].results[0]
    elif method in BY_ID:
        told = client.call(method, BY_ID[method](topic_id))
    else:
        requests: dict[str, Message] = {
            "Metadata": metadata_pb2.MetadataRequest(topics=[name], topic_ids=[topic_id]),
            "CreateTopics": topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name=name)]),
            "DeleteTopics": topics_pb2.DeleteTopicsRequest(names=[name]),
            "DescribeTopics": topics_pb2.DescribeTopicsRequest(names=[name]),
            "CreatePartitions": topics_pb2.CreatePartitionsRequest(name=name, total_count=2),
            "AlterTopicConfigs": topics_pb2.AlterTopicConfigsRequest(name=name),
            "AlterPartitionReassignments": reassignment(name),
            "DrainNode": topics_pb2.DrainNodeRequest(node_id=1),
            "ElectUncleanLeader": topics_pb2.ElectUncleanLeaderRequest(name=name),
        }
        told = client.call(method, requests[method])
    text = str(told)
    for literal in (str(offsets_pb2.PartitionListOffsets(topic_id=topic_id)).partition(": ")[2].strip(), topic_id.hex(), name):
        text = text.replace(literal, "?")
    return text


@pytest.mark.parametrize("method", sorted(set(METHODS) - TOPICLESS))
def test_a_hidden_topic_is_answered_like_a_missing_one(client_as: ClientAs, topic_ids: dict[str, bytes], method: str) -> None:
    reader = client_as(TOKENS["writer" if method == "Produce" else "reader"])
    hidden = answer_about(reader, method, HIDDEN, topic_ids[HIDDEN])
    assert hidden == answer_about(reader, method, MISSING, topic_ids[MISSING])
    assert "error" in hidden
    assert client_as(TOKENS["boss"]).describe(HIDDEN).name == HIDDEN, "it is still there"


def test_lists_hold_what_may_be_seen(client_as: ClientAs, topic_ids: dict[str, bytes]) -> None:
    seen = {"reader": {VISIBLE, "clicks"}, "writer": {VISIBLE}, "boss": set(topic_ids) - {MISSING}, "outsider": {"elsewhere"}}
    for identity, names in seen.items():
        client = client_as(TOKENS[identity])
        metadata = client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True))
        assert {topic.name for topic in metadata.topics} == names
        assert {topic.name for topic in client.call("DescribeTopics", topics_pb2.DescribeTopicsRequest()).topics} == names


def test_allowed_and_refused_entries_keep_their_places(client_as: ClientAs, topic_ids: dict[str, bytes]) -> None:
    names = [HIDDEN, "clicks", MISSING, VISIBLE, "elsewhere"]
    ids = [topic_ids[name] for name in names]
    response = client_as(TOKENS["reader"]).call("Metadata", metadata_pb2.MetadataRequest(topics=names, topic_ids=ids))
    assert [topic.name for topic in response.topics[:5]] == names
    assert [topic.error.code for topic in response.topics] == [
        *(DENIED, OK, DENIED, OK, DENIED),
        *(NO_SUCH_ID, OK, NO_SUCH_ID, OK, NO_SUCH_ID),
    ]
    nothing_left = client_as(TOKENS["reader"]).call("DescribeTopics", topics_pb2.DescribeTopicsRequest(names=[HIDDEN]))
    assert [topic.error.code for topic in nothing_left.topics] == [DENIED], "an empty rest does not become a list of all"


def test_a_refused_partition_leaves_its_neighbours_alone(client_as: ClientAs, topic_ids: dict[str, bytes]) -> None:
    allowed, refused = TopicIdPartition(topic_ids[VISIBLE], 0), TopicIdPartition(topic_ids["clicks"], 0)
    producer = client_as(TOKENS["writer"]).producer()
    producer.post([(refused, values_batch(refused)), (allowed, values_batch(allowed))])
    assert [result.error.code for result in producer.answer().results] == [NO_SUCH_ID, OK]
    assert client_as(TOKENS["boss"]).latest(refused) == 0


@pytest.mark.parametrize("token", [None, UNKNOWN_TOKEN, TOKENS["outsider"]])
def test_health_is_open(client_as: ClientAs, token: str | None) -> None:
    check: Any = client_as(token).channel.unary_unary(
        "/grpc.health.v1.Health/Check", response_deserializer=health_pb2.HealthCheckResponse.FromString
    )
    assert check(health_pb2.HealthCheckRequest().SerializeToString()).status == health_pb2.HealthCheckResponse.SERVING


def test_the_log_of_transactions_and_groups_is_for_those_with_every_right(client_as: ClientAs, topic_ids: dict[str, bytes]) -> None:
    boss = client_as(TOKENS["boss"])
    boss.new_producer_id()  # creates the log
    every = metadata_pb2.MetadataRequest(all_topics=True, include_internal=True)
    named = metadata_pb2.MetadataRequest(topics=[COORDINATOR.name], include_internal=True)
    assert [topic.name for topic in boss.call("Metadata", every).topics if topic.name not in topic_ids] == [COORDINATOR.name]
    assert boss.call("Metadata", named).topics[0].partitions[0].leader >= 0
    for identity in ("reader", "writer", "outsider"):
        client = client_as(TOKENS[identity])
        assert COORDINATOR.name not in {topic.name for topic in client.call("Metadata", every).topics}
        assert client.call("Metadata", named).topics[0].error.code == DENIED
        assert client.call("AlterPartitionReassignments", reassignment(COORDINATOR.name)).results[0].error.code == DENIED
    for method in ("CreatePartitions", "AlterTopicConfigs", "DeleteTopics", "DescribeTopics"):
        outcome, _ = ask(boss, method, COORDINATOR.name, COORDINATOR.id)
        assert outcome == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, method
    for method in ("Produce", "Fetch", "DeleteRecords", "ListOffsets"):
        outcome, _ = ask(boss, method, COORDINATOR.name, COORDINATOR.id)
        assert outcome == NO_SUCH_ID, method
