"""Calls that create, describe, change and delete topics, or describe the cluster. Their values are wire messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from brokerd.client.broker_client import ANY_NODE, BrokerClient
from brokerd.client.metadata import check_topic, read_metadata
from brokerd.client.response_checks import error_in, made_plain, senseless
from brokerd.errors import (
    BrokerdError,
    CoordinatorNotAvailableError,
    Fate,
    InvalidPartitionsError,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import NO_LEADER
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import metadata_pb2
from brokerd.wire.v1 import topics_pb2 as pb

_FIND_MS = 1_000  # how long a description of the cluster waits for an election


async def describe_cluster(
    client: BrokerClient, names: Sequence[str] | None = None, *, internal: bool = False
) -> metadata_pb2.MetadataResponse:
    """All nodes, and the partitions of these topics (None = all) with their leaders and replicas, as one node sees them.
    `internal`: includes the coordinator's log, if the caller may see it."""
    request = metadata_pb2.MetadataRequest(topics=names or (), all_topics=names is None, include_internal=internal)
    response = await client.call(request, metadata_pb2.MetadataResponse)
    read_metadata(response)  # checks it
    return made_plain(response)


async def find_coordinator(client: BrokerClient) -> int:
    """Id of the node that is the coordinator of transactions and groups, as one node sees it; -1 = none at present."""
    try:
        response = await client.call(
            metadata_pb2.FindCoordinatorRequest(), metadata_pb2.FindCoordinatorResponse, timeout_ms=_FIND_MS
        )
    except CoordinatorNotAvailableError:
        return NO_LEADER
    return response.coordinator.node_id


async def create_topics(
    client: BrokerClient, topics: Sequence[pb.NewTopic], *, validate_only: bool = False
) -> dict[str, bytes | WireError]:
    """Creates topics independently; returns the id of each, or its error. A retry after a lost response may fail because an earlier
    attempt created the topic; the error then says so."""
    failures: list[BrokerdError] = []

    async def create(names: Collection[str], timeout_ms: int) -> dict[str, bytes | WireError]:
        some = [topic for topic in topics if topic.name in names]
        request = pb.CreateTopicsRequest(topics=some, validate_only=validate_only)
        response = await client.call_once(ANY_NODE, request, pb.CreateTopicsResponse, timeout_ms)
        return _read_results("CreateTopics", [topic.name for topic in some], response.results)

    results = await _each(client, [topic.name for topic in topics], create, failures)
    for result in results.values():
        if isinstance(result, TopicAlreadyExistsError):
            _note_lost_response(result, failures, "created it")
    return results


async def create_topic(
    client: BrokerClient,
    name: str,
    partitions: int = 0,
    configs: Mapping[str, str] | None = None,
    replication_factor: int = 0,
) -> bytes:
    """Creates one topic and returns its id. 0 partitions, or a replication factor of 0: the broker's default. Raises
    TopicAlreadyExistsError and the broker's other errors."""
    new = pb.NewTopic(name=name, partitions=partitions, replication_factor=replication_factor, configs=configs)
    (result,) = (await create_topics(client, [new])).values()
    if isinstance(result, WireError):
        raise result
    return result


async def delete_topics(client: BrokerClient, names: Sequence[str]) -> dict[str, bytes | WireError]:
    """Deletes topics and their records; returns the id of each, or its error. A retry after a lost response may not find a topic
    that an earlier attempt deleted; the error then says so."""
    failures: list[BrokerdError] = []

    async def delete(some: Collection[str], timeout_ms: int) -> dict[str, bytes | WireError]:
        response = await client.call_once(ANY_NODE, pb.DeleteTopicsRequest(names=some), pb.DeleteTopicsResponse, timeout_ms)
        return _read_results("DeleteTopics", some, response.results)

    results = await _each(client, names, delete, failures)
    for result in results.values():
        if isinstance(result, UnknownTopicOrPartitionError):
            _note_lost_response(result, failures, "deleted it")
    return results


async def _each(
    client: BrokerClient,
    names: Collection[str],
    ask: Callable[[Collection[str], int], Awaitable[dict[str, bytes | WireError]]],
    failures: list[BrokerdError],
) -> dict[str, bytes | WireError]:
    """Calls `ask` with topics and its time limit in ms; returns the result for each. Asks again for topics that the broker was not
    ready to decide on, until default.api.timeout.ms. `failures` collects the errors of failed attempts."""
    results: dict[str, bytes | WireError] = {}

    async def attempt(timeout_ms: int) -> None:
        results.update(await ask([name for name in names if name not in results or _is_undecided(results[name])], timeout_ms))
        for result in results.values():
            if isinstance(result, WireError) and _is_undecided(result):
                raise result

    try:
        await client.retried(attempt, failures=failures)
    except NotReadyError as error:  # its fate is that of the last attempt
        results.update({name: error for name in names if name not in results or _is_undecided(results[name])})
    return results


def _is_undecided(result: object) -> bool:
    return isinstance(result, NotReadyError) and result.fate is Fate.NOT_APPENDED


def _note_lost_response(error: WireError, failures: Iterable[BrokerdError], done: str) -> None:
    """Adds to the error of a retry what an earlier attempt, one of `failures`, may have `done`."""
    if not all(map(_is_undecided, failures)):
        error.message += f"; the response to an earlier attempt of this call was lost, so this call may have {done}"


async def describe_topics(client: BrokerClient, names: Sequence[str] = ()) -> dict[str, pb.TopicDescription | WireError]:
    """Settings, offsets and sizes of topics, in the order of the response; without `names`, of all topics, sorted. Offsets and
    sizes of a partition are -1 if no leader has reported them."""
    response = await client.call(pb.DescribeTopicsRequest(names=names), pb.DescribeTopicsResponse)
    await _fill_partitions(client, response.topics)
    return {plain_text(topic.name): error_in(topic) or _description(topic) for topic in response.topics}


async def _fill_partitions(client: BrokerClient, topics: Iterable[pb.TopicDescription]) -> None:
    """Replaces the descriptions of partitions that the node does not lead by those of their leaders. A partition that no leader
    describes keeps its error, NOT_LEADER, with the reason."""
    partial = {topic.name: topic for topic in topics if any(map(_is_led_elsewhere, topic.partitions))}
    if not partial:
        return
    metadata = await client.metadata(list(partial))
    by_leader: dict[int, dict[tuple[str, int], pb.PartitionDescription]] = {}
    for name, info in metadata.topics.items():
        for one in filter(_is_led_elsewhere, partial[name].partitions[: info.partition_count]):
            leader = info.leaders[one.partition]
            if leader != NO_LEADER:
                by_leader.setdefault(leader, {})[name, one.partition] = one
            elif one.partition in info.problems:
                one.error.message = info.problems[one.partition]
    timeout_ms = min(client.config.request_timeout_ms, client.config.api_timeout_ms)
    requests = {node_id: pb.DescribeTopicsRequest(names=sorted({name for name, _ in led})) for node_id, led in by_leader.items()}
    asked = [client.call_once(node_id, request, pb.DescribeTopicsResponse, timeout_ms) for node_id, request in requests.items()]
    for (node_id, led), response in zip(by_leader.items(), await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(response, BaseException) and not isinstance(response, BrokerdError):
            raise response
        told, why = {}, "does not lead it yet, or not any more: try again"
        if isinstance(response, BrokerdError):
            why = f"did not answer: {response.message}"
        else:
            told = {(topic.name, one.partition): one for topic in response.topics for one in topic.partitions}
        for key, one in led.items():
            if key in told and not _is_led_elsewhere(told[key]):
                one.CopyFrom(told[key])
            else:
                one.error.message = f"its leader, node {node_id}, {why}"


def _is_led_elsewhere(partition: pb.PartitionDescription) -> bool:
    return isinstance(error_in(partition), NotLeaderError)


async def create_partitions(client: BrokerClient, name: str, total_count: int, *, validate_only: bool = False) -> None:
    """Increases a topic's number of partitions; a retry after a lost response finds them done. Raises the broker's error."""
    request = pb.CreatePartitionsRequest(name=name, total_count=total_count, validate_only=validate_only)
    failures: list[BrokerdError] = []
    try:
        await client.call(request, pb.CreatePartitionsResponse, failures=failures)
    except InvalidPartitionsError:
        if validate_only or all(map(_is_undecided, failures)):
            raise
        if (await client.metadata([name])).topic(name).partition_count != total_count:
            raise


async def alter_topic_configs(
    client: BrokerClient, name: str, *, set_: Mapping[str, str], unset: Sequence[str] = (), validate_only: bool = False
) -> None:
    """Changes settings of a topic; those in `unset` revert to the broker's. Raises the broker's error."""
    request = pb.AlterTopicConfigsRequest(name=name, set=dict(set_), unset=unset, validate_only=validate_only)
    await client.call(request, pb.AlterTopicConfigsResponse)


async def reassign_partition(
    client: BrokerClient, name: str, partition: int, replicas: Sequence[int], *, is_order_only: bool = False
) -> None:
    """Sets the replicas of a partition, the preferred leader first; an empty list cancels a move. `is_order_only`: only reorders,
    and is refused if `replicas` are not the current or, during a move, the future ones; with an empty list, the first of these
    becomes leader. Returns once the change is recorded; `describe_cluster` shows its progress. Raises the broker's error."""
    request = pb.AlterPartitionReassignmentsRequest()
    request.partitions.add(name=name, partition=partition, replicas=replicas, is_order_only=is_order_only)

    async def attempt(timeout_ms: int) -> None:
        response = await client.call_once(ANY_NODE, request, pb.AlterPartitionReassignmentsResponse, timeout_ms)
        if [(result.name, result.partition) for result in response.results] != [(name, partition)]:
            raise senseless("AlterPartitionReassignments", "it has results for other partitions than the one that was requested")
        error = error_in(response.results[0])
        if error is not None:
            raise error

    await client.retried(attempt)


async def elect_unclean_leader(
    client: BrokerClient, name: str, partition: int, *, validate_only: bool = False
) -> Sequence[pb.CopyEnd]:
    """Makes an out-of-sync replica the leader if no in-sync replica is alive; records it lacks are lost. Returns the live replicas;
    the first becomes leader. `validate_only`: changes nothing, and returns the same. Raises the broker's error; that of a retry
    after a lost response says so."""
    request = pb.ElectUncleanLeaderRequest(name=name, partition=partition, validate_only=validate_only)
    failures: list[BrokerdError] = []
    try:
        response = await client.call(request, pb.ElectUncleanLeaderResponse, failures=failures)
    except InvalidRequestError as error:
        if not validate_only:
            _note_lost_response(error, failures, "elected a copy")
        raise
    return made_plain(response).copies


async def drain_node(client: BrokerClient, node_id: int, *, validate_only: bool = False) -> pb.DrainNodeResponse:
    """Moves all partitions of a node to other nodes. Call it again to see the progress. Raises the broker's error."""
    return made_plain(await client.call(pb.DrainNodeRequest(node_id=node_id, validate_only=validate_only), pb.DrainNodeResponse))


def _read_results(what: str, names: Iterable[str], results: Iterable[pb.TopicResult]) -> dict[str, bytes | WireError]:
    """The id of each topic, or its error. Raises UnknownServerError if the response does not match the request."""
    read = {result.name: error_in(result) or result.topic_id for result in results}
    if set(read) != set(names):
        raise senseless(what, f"it has results for {len(read)} topics, not for those that were requested")
    return read


def _description(topic: pb.TopicDescription) -> pb.TopicDescription:
    check_topic("DescribeTopics", topic.name, topic.topic_id)
    return made_plain(topic)


def offset_count(partition: pb.PartitionDescription) -> int:
    """Offsets between start and end; some have no record for readers (transaction markers, aborted records). -1 = unknown."""
    return partition.high_watermark - partition.log_start_offset if partition.high_watermark >= 0 else -1


def undecided_count(partition: pb.PartitionDescription) -> int:
    """Offsets that are not visible to read_committed readers yet; -1 = unknown."""
    return partition.high_watermark - partition.last_stable_offset if partition.high_watermark >= 0 else -1
