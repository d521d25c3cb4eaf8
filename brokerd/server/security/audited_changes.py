"""Describes the changes that a call has made, from its request and response: one sentence for each topic, setting or partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from brokerd.errors import counted

NameOf = Callable[[bytes], str]  # of a topic's id


def changes(method: str, request: Any, response: Any, name_of: NameOf) -> Iterator[str]:
    """One sentence for each change by a method in CHANGES; none for a request that only validates."""
    if not getattr(request, "validate_only", False):
        yield from CHANGES[method](request, response, name_of)


def created_topics(response: Any, names: Collection[str]) -> Iterator[str]:
    """One sentence for each topic of these names that a Metadata response has: it was created by naming it."""
    topics = response.topics if names else ()
    return (f"created topic '{topic.name}'" for topic in topics if topic.name in names and not topic.HasField("error"))


def _created(_request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    return (f"created topic '{result.name}'" for result in response.results if not result.HasField("error"))


def _deleted(_request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    return (f"deleted topic '{result.name}'" for result in response.results if not result.HasField("error"))


def _grown(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.result.HasField("error"):
        yield f"gave topic '{request.name}' {request.total_count} partitions"


def _altered(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.result.HasField("error"):
        yield from (f"altered topic '{request.name}': {name}={value.strip()}" for name, value in sorted(request.set.items()))
        yield from (f"altered topic '{request.name}': {name} unset" for name in sorted(request.unset))


def _records(_request: Any, response: Any, name_of: NameOf) -> Iterator[str]:
    for result in response.results:
        if not result.HasField("error"):
            yield f"deleted records of {name_of(result.topic_id)}-{result.partition} below offset {result.log_start_offset}"


def _aborted(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if response.aborted_members:
        execution = f" in execution {request.execution_id!a}" if request.execution_id else ""
        yield f"aborted {counted(response.aborted_members, 'member')} of transactional id {request.transactional_id!a}{execution}"


def _forgotten(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.HasField("error"):
        last = "none" if response.last_version < 0 else f"version {response.last_version}"
        yield f"forgot transactional id {request.transactional_id!a} of principal {response.principal!a}, last committed: {last}"


def _group_deleted(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.HasField("error") and response.deleted_offsets:
        yield f"deleted {counted(response.deleted_offsets, 'offset')} of group {request.group_id!a}"


CHANGES: dict[str, Callable[[Any, Any, NameOf], Iterator[str]]] = {
    "CreateTopics": _created,
    "DeleteTopics": _deleted,
    "CreatePartitions": _grown,
    "AlterTopicConfigs": _altered,
    "DeleteRecords": _records,
    "DeleteGroup": _group_deleted,
    "AbortTransaction": _aborted,
    "ForgetTransactionalId": _forgotten,
}
