"""The only table of the rights that each method needs. A test fails for a method without a rule.

call_authorizer.py applies the rules. In addition, handlers of groups call `TopicAuthorizer.require_group`, InitProducerId checks
that a producer id is the caller's own, and the two streams check each partition for the right in this table. Unsupported methods
have a rule too, so that none can be added without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from brokerd.server.security.topic_authorizer import Right
from brokerd.wire.v1 import error_pb2, metadata_pb2, offsets_pb2, topics_pb2

_NONE = -1


class Anyone(NamedTuple):
    """Open to every principal: the call touches no topic."""


class Somewhere(NamedTuple):
    """Open to principals that have `right` on at least one topic: the call touches no topic, but is useless to others."""

    right: Right


class Entries(NamedTuple):
    """A repeated field whose entries name one topic each, and how to build the result of a refused entry."""

    field: str
    topic_of: Callable[[Any], str | bytes]  # a name, or a topic id of 16 bytes
    refused: Callable[[Any, error_pb2.Error], Message]


class PerTopic(NamedTuple):
    """Entries are decided one by one: a refused entry gets an error at its index in `results`, and the handler never sees it.

    `right` None: every principal that may see the topic. `is_list`: whether a request without entries has another meaning, usually
    all topics; `listed` then returns a result's topic, so that topics the caller may not see are removed. `creates`: if
    auto.create.topics.enable is set, the call creates names that do not exist, which takes ADMIN.
    """

    right: Right | None
    entries: tuple[Entries, ...]
    results: str
    is_list: Callable[[Any], bool] | None = None
    listed: Callable[[Any], str | bytes] | None = None
    creates: bool = False


class OneTopic(NamedTuple):
    """The request's field `name` is the topic; a refusal is the `error` of the response's `result`."""

    right: Right


class Stream(NamedTuple):
    """A stream, which checks each partition of each request with TopicAuthorizer.require_id."""

    right: Right


Rule = Anyone | Somewhere | PerTopic | OneTopic | Stream


def _name(entry: Any) -> str:
    return str(entry.name)


def _topic_id(entry: Any) -> bytes:
    return bytes(entry.topic_id)


def _itself(entry: Any) -> Any:
    return entry


_CREATED = Entries("topics", _name, lambda entry, error: topics_pb2.TopicResult(name=entry.name, error=error))
_DELETED_NAMES = Entries("names", _itself, lambda entry, error: topics_pb2.TopicResult(name=entry, error=error))
_DELETED_IDS = Entries("topic_ids", _itself, lambda entry, error: topics_pb2.TopicResult(topic_id=entry, error=error))
_DESCRIBED = Entries("names", _itself, lambda entry, error: topics_pb2.TopicDescription(name=entry, error=error))
_METADATA_NAMES = Entries("topics", _itself, lambda entry, error: metadata_pb2.TopicMetadata(name=entry, error=error))
_METADATA_IDS = Entries("topic_ids", _itself, lambda entry, error: metadata_pb2.TopicMetadata(topic_id=entry, error=error))
_RECORDS = Entries(
    "partitions",
    _topic_id,
    lambda entry, error: topics_pb2.PartitionDeleteRecordsResult(
        topic_id=entry.topic_id, partition=entry.partition, log_start_offset=_NONE, error=error
    ),
)
_OFFSETS = Entries(
    "partitions",
    _topic_id,
    lambda entry, error: offsets_pb2.PartitionListOffsetsResult(
        topic_id=entry.topic_id, partition=entry.partition, offset=_NONE, timestamp=_NONE, leader_epoch=_NONE, error=error
    ),
)


def _group_offset(entry: Any, error: error_pb2.Error) -> Message:
    return offsets_pb2.PartitionGroupOffset(topic_id=entry.topic_id, partition=entry.partition, offset=_NONE, error=error)


METHOD_RULES: dict[str, Rule] = {
    "GetServerInfo": Anyone(),
    "Metadata": PerTopic(
        None, (_METADATA_NAMES, _METADATA_IDS), "topics", lambda asked: bool(asked.all_topics), listed=_name, creates=True
    ),
    "FindCoordinator": Anyone(),
    "Produce": Stream(Right.WRITE),
    "Fetch": Stream(Right.READ),
    "CreateTopics": PerTopic(Right.ADMIN, (_CREATED,), "results"),
    "DeleteTopics": PerTopic(Right.ADMIN, (_DELETED_NAMES, _DELETED_IDS), "results"),
    "DescribeTopics": PerTopic(None, (_DESCRIBED,), "topics", lambda asked: not asked.names, listed=_name),
    "CreatePartitions": OneTopic(Right.ADMIN),
    "AlterTopicConfigs": OneTopic(Right.ADMIN),
    "DeleteRecords": PerTopic(Right.ADMIN, (_RECORDS,), "results"),
    "ListOffsets": PerTopic(None, (_OFFSETS,), "results"),
    "CommitGroupOffsets": PerTopic(
        Right.READ,
        (Entries("offsets", _topic_id, _group_offset),),
        "results",
        lambda asked: not asked.offsets,  # a heartbeat; a request whose entries are all refused must not become one
        listed=_topic_id,
    ),
    "FetchGroupOffsets": PerTopic(
        Right.READ,
        (Entries("partitions", _topic_id, _group_offset),),
        "results",
        lambda asked: not asked.partitions,
        listed=_topic_id,
    ),
    # The handlers check rights to groups.
    "ListGroups": Anyone(),
    "DescribeGroup": Anyone(),
    "DeleteGroup": Anyone(),
    "InitProducerId": Somewhere(Right.WRITE),
    "EndTransaction": Somewhere(Right.WRITE),
    "Heartbeat": Somewhere(Right.WRITE),
    # Principals see and abort their own; ADMIN on every topic extends this to all. Only the latter may forget an id.
    "ListTransactions": Anyone(),
    "DescribeTransaction": Anyone(),
    "AbortTransaction": Anyone(),
    "FindHangingTransactions": Anyone(),
    "ForgetTransactionalId": Anyone(),
}
