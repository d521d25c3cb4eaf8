"""The one table of the rights that each method of the contract needs. A test fails for a method without a rule.

call_authorizer.py applies the rules. Handlers of groups ask `TopicAuthorizer.require_group`, that of producer ids asks which are
the caller's own, and the two streams ask for each partition, for the right in this table. Methods that are not served have a rule
too, so that none can be served without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from brokerd.server.security.topic_authorizer import Right
from brokerd.wire.v1 import error_pb2, metadata_pb2, offsets_pb2, topics_pb2

_NONE = -1


class Anyone(NamedTuple):
    """For every principal: the call touches no topic."""


class Somewhere(NamedTuple):
    """For every principal that has `right` on any topic: the call touches no topic, but is of use only to those."""

    right: Right


class Entries(NamedTuple):
    """A repeated field whose entries each name one topic, and how the result of a refused one looks."""

    field: str
    topic_of: Callable[[Any], str | bytes]  # a name, or an id of 16 bytes
    refused: Callable[[Any, error_pb2.Error], Message]


class PerTopic(NamedTuple):
    """Each entry on its own: what is refused has an error in its place of `results`, and the handler never sees it.

    `right` None: for every principal that may see the topic. `is_list`: whether a request without entries means something else, as
    a rule all topics; `listed`: the topic of a result then, so that those that may not be seen are taken out. `creates`: where
    auto.create.topics.enable is set, the call creates a name that does not exist, for which ADMIN is needed.
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
    """A stream: each partition of each request, by TopicAuthorizer.require_id."""

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
        lambda asked: not asked.offsets,  # a sign of life, not a list; what is refused is none either
        listed=_topic_id,
    ),
    "FetchGroupOffsets": PerTopic(
        Right.READ,
        (Entries("partitions", _topic_id, _group_offset),),
        "results",
        lambda asked: not asked.partitions,
        listed=_topic_id,
    ),
    # Groups: see above.
    "ListGroups": Anyone(),
    "DescribeGroup": Anyone(),
    "DeleteGroup": Anyone(),
    "InitProducerId": Somewhere(Right.WRITE),
    "EndTransaction": Somewhere(Right.WRITE),
    "Heartbeat": Somewhere(Right.WRITE),
    # These show and abort the principal's own, and others' to whoever has ADMIN on every topic; who alone may have one forgotten.
    "ListTransactions": Anyone(),
    "DescribeTransaction": Anyone(),
    "AbortTransaction": Anyone(),
    "FindHangingTransactions": Anyone(),
    "ForgetTransactionalId": Anyone(),
}
