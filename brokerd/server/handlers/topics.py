"""Changes of topics: CreateTopics, DeleteTopics, CreatePartitions, AlterTopicConfigs, DeleteRecords, AlterPartitionReassignments.
Also DrainNode, which moves many partitions at once.

Behaviour of all
- Entries of a request are handled independently, in order: one can fail and the next succeed. Changes are durable when answered.
- validate_only makes the same checks, but no changes.

CreateTopics
- A replication factor above the number of live nodes is INVALID_REPLICATION_FACTOR.

DeleteTopics
- Requests waiting on one of its partitions are answered at once: fetches with UNKNOWN_TOPIC_ID, acks=all with an unknown fate.

AlterTopicConfigs
- All or nothing. An unknown setting is refused with the nearest known one, also in `unset`.

DeleteRecords
- One write makes all new log starts durable before the response.
- Answered once the new log start is durable on all in-sync replicas; after 20 s with REQUEST_TIMED_OUT, though it has moved here.
- A failed write moves nothing; if its last step failed, the fate is unknown: the log start may have moved after a restart.
- An offset beyond the high watermark is OFFSET_OUT_OF_RANGE; one below the current log start changes nothing.
- A parked fetch whose offset is now below the log start is answered at once.

AlterPartitionReassignments, DrainNode
- Answered once the change is in the coordination store and in this node's image; the controller then moves replicas step by step.
- Replicas are added before others are removed, so a partition stays available.
- A dead node gets no replicas, but keeps those it has unless they are moved. Any node may be drained, alive or not.
- The coordinator's log is moved like other partitions, by callers with every right on every topic.
- A node without a cluster refuses both.

ElectUncleanLeader: recovers a partition whose in-sync copies are lost for good (automatic in Kafka, by
unclean.leader.election.enable).
- INVALID_REQUEST while an in-sync copy is alive: it leads, or is about to. Answered when the two requests above are.
- Nodes that do not answer are left out. NOT_READY if the partition, or the chosen node, has changed meanwhile.
- The elected copy is then the only one in sync. A copy that would have to truncate acknowledged records stays out of sync.
- A move in progress ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from brokerd.datadir.topic_store import COORDINATOR, Topic
from brokerd.errors import UnknownTopicIdError, counted
from brokerd.ids import TopicIdPartition, nodes_text
from brokerd.partition.core import HIGH_WATERMARK
from brokerd.partition.partition import Partition
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import fails_with, malformed
from brokerd.server.paging import LISTED_MAX, Pauses
from brokerd.server.requests import check_config_texts, check_not_negative, first_double, partitions_of
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.wire.v1 import topics_pb2 as pb

_REPLICATED_MS = 20_000  # DeleteRecords waits this long for other replicas; clients wait for 30 s


async def create(broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.CreateTopicsRequest) -> pb.CreateTopicsResponse:
    """One result per requested topic, in the same order."""
    for topic in request.topics:
        check_config_texts("topics.configs", chain(topic.configs, topic.configs.values()))
        check_not_negative("topics.replication_factor", topic.replication_factor)
    response = pb.CreateTopicsResponse()
    checked: list[Topic] = []  # for validate_only: later topics of the request must see earlier ones
    for topic in request.topics:
        result = response.results.add(name=topic.name)
        with fails_with(result, "creating a topic"):
            authorizer.require_name(Right.ADMIN, topic.name)
            wanted = (topic.name, topic.partitions, dict(topic.configs))
            if request.validate_only:
                broker.cluster.topics.check_factor(topic.name, topic.replication_factor)
                checked.append(broker.topic_changes.check_create(*wanted, checked))
            else:
                with broker.audit.change(f"created topic '{topic.name}'"):
                    result.topic_id = (await broker.cluster.topics.create(*wanted, topic.replication_factor)).id
    return response


async def delete(broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.DeleteTopicsRequest) -> pb.DeleteTopicsResponse:
    """One result per requested topic."""
    response = pb.DeleteTopicsResponse()
    for name in request.names:
        result = response.results.add(name=name)
        with fails_with(result, f"deleting topic {name!r}"):
            authorizer.require_name(Right.ADMIN, name)
            with broker.audit.change(f"deleted topic '{name}'"):
                result.topic_id = (await broker.cluster.topics.delete(name)).id
    return response


async def create_partitions(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.CreatePartitionsRequest
) -> pb.CreatePartitionsResponse:
    """The topic, or its error."""
    result = pb.TopicResult(name=request.name)
    with fails_with(result, "creating partitions"):
        authorizer.require_name(Right.ADMIN, request.name)
        if request.validate_only:
            topic = broker.topic_changes.check_grow(request.name, request.total_count)
        else:
            with broker.audit.change(f"gave topic '{request.name}' {request.total_count} partitions"):
                topic = await broker.cluster.topics.grow(request.name, request.total_count)
        result.topic_id = topic.id
    return pb.CreatePartitionsResponse(result=result)


async def alter(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.AlterTopicConfigsRequest
) -> pb.AlterTopicConfigsResponse:
    """The topic, or its error."""
    check_config_texts("set", chain(request.set, request.set.values()))
    check_config_texts("unset", request.unset)
    both = sorted(set(request.set) & set(request.unset))
    if both:
        raise malformed("unset", f"'{both[0]}' is in set too")
    result = pb.TopicResult(name=request.name)
    change = (request.name, dict(request.set), list(request.unset))
    with fails_with(result, "changing a topic's settings"):
        authorizer.require_name(Right.ADMIN, request.name)
        if request.validate_only:
            topic = broker.topic_changes.check_alter(*change)
        else:
            settings = [f"{name}={value.strip()}" for name, value in sorted(request.set.items())]
            settings += [f"{name} unset" for name in sorted(request.unset)]
            with contextlib.ExitStack() as lines:
                for setting in reversed(settings):
                    lines.enter_context(broker.audit.change(f"altered topic '{request.name}': {setting}"))
                topic = await broker.cluster.topics.alter(*change)
        result.topic_id = topic.id
    return pb.AlterTopicConfigsResponse(result=result)


async def delete_records(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.DeleteRecordsRequest
) -> pb.DeleteRecordsResponse:
    """One result per requested partition, in the same order."""
    for entry in request.partitions:
        if entry.before_offset < HIGH_WATERMARK:
            raise malformed(
                "partitions.before_offset", f"is {entry.before_offset}, but must be an offset, or -1 for the high watermark"
            )
    tps = partitions_of("partitions", request.partitions)
    response = pb.DeleteRecordsResponse()
    found: list[tuple[Partition, int, pb.PartitionDeleteRecordsResult]] = []
    pauses = Pauses(broker.turns)
    for tp, entry in zip(tps, request.partitions, strict=True):
        await pauses.after()
        result = response.results.add(topic_id=tp.topic_id, partition=tp.partition, log_start_offset=-1)
        with fails_with(result, "deleting records"):
            authorizer.require_id(Right.ADMIN, tp.topic_id)
            found.append((broker.partitions.leader(tp), entry.before_offset, result))
    starts = [(partition, before_offset) for partition, before_offset, _ in found]
    old_starts = [partition.ends.log_start_offset for partition, _, _ in found]
    errors = await broker.admin.run(broker.retention.delete_records(starts))
    until_ms = broker.clock.monotonic_ms() + _REPLICATED_MS
    for (partition, before_offset, result), old_start, error in zip(found, old_starts, errors, strict=True):
        with fails_with(result, f"deleting records of {partition.name}"):
            asked = "the high watermark" if before_offset == HIGH_WATERMARK else f"offset {before_offset}"
            with broker.audit.change(f"deleted records of {partition.name} below {asked}") as change:
                if error is not None:
                    raise error
                start = partition.ends.log_start_offset
                change.what = f"deleted records of {partition.name} below offset {start}" if start > old_start else ""
                await broker.cluster.has_log_start(partition, (until_ms - broker.clock.monotonic_ms()) / 1000)
            result.log_start_offset = partition.ends.log_start_offset
    return response


async def reassign(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.AlterPartitionReassignmentsRequest
) -> pb.AlterPartitionReassignmentsResponse:
    """One result per requested partition, in the same order."""
    for entry in request.partitions:
        check_not_negative("partitions.partition", entry.partition)
        for node_id in entry.replicas:
            check_not_negative("partitions.replicas", node_id)
        double = first_double(entry.replicas)
        if double is not None:
            raise malformed("partitions.replicas", f"name node {double} twice: a node has one copy of a partition")
    response = pb.AlterPartitionReassignmentsResponse()
    for entry in request.partitions:
        result = response.results.add(name=entry.name, partition=entry.partition)
        with fails_with(result, "moving a partition"):
            if entry.name == COORDINATOR.name:
                authorizer.require_everything("move the log of transactions and groups")
            else:
                authorizer.require_name(Right.ADMIN, entry.name)
            asked = (entry.name, entry.partition, tuple(entry.replicas))
            with broker.audit.change(_asked_move(entry)) as change:
                if not await broker.cluster.topics.reassign(*asked, is_order_only=entry.is_order_only):
                    change.what = ""
    return response


def _asked_move(entry: pb.PartitionReassignment) -> str:
    name = f"'{entry.name}-{entry.partition}'"
    if entry.is_order_only:
        return f"moved the lead of partition {name} to {nodes_text(entry.replicas[:1]) if entry.replicas else 'its first replica'}"
    if not entry.replicas:
        return f"stopped the move of partition {name}"
    return f"moved partition {name} to {nodes_text(entry.replicas)}"


async def drain(broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.DrainNodeRequest) -> pb.DrainNodeResponse:
    """How many partitions go to other nodes, and which cannot."""
    check_not_negative("node_id", request.node_id)
    response = pb.DrainNodeResponse()
    with fails_with(response, "draining a node"):
        authorizer.require_everything("drain a node")
        with broker.audit.change("" if request.validate_only else f"drained node {request.node_id}") as change:
            drain = await broker.cluster.topics.drain(request.node_id, validate_only=request.validate_only)
            drained = f"drained node {request.node_id}: {counted(drain.begun, 'partition')} go to other nodes"
            change.what = drained if drain.begun and not request.validate_only else ""
        response.moving = len(drain.moving)
        going = dict.fromkeys(drain.moving, "") if request.validate_only else {}
        response.more_staying = _list(broker, response.staying, drain.staying)
        response.more_going = _list(broker, response.going, going)
        response.more_waiting = _list(broker, response.waiting, drain.waiting)
    return response


def _list(broker: BrokerParts, listed: Any, found: Mapping[TopicIdPartition, str]) -> int:
    """Lists partitions with reasons, at most LISTED_MAX; returns how many more there are."""
    for tp, reason in islice(found.items(), LISTED_MAX):
        listed.add(name=_name_of(broker, tp), partition=tp.partition, reason=reason)
    return max(len(found) - LISTED_MAX, 0)


async def elect_unclean(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: pb.ElectUncleanLeaderRequest
) -> pb.ElectUncleanLeaderResponse:
    """The live copies, the new leader's first."""
    check_not_negative("partition", request.partition)
    response = pb.ElectUncleanLeaderResponse()
    name = f"'{request.name}-{request.partition}'"
    with fails_with(response, f"an unclean election for {name}"):
        authorizer.require_everything("let a copy lead that is not in sync")
        authorizer.require_name(Right.ADMIN, request.name)
        what = "" if request.validate_only else f"let a copy that is not in sync lead partition {name}"
        with broker.audit.change(what) as change:
            copies = await broker.cluster.topics.elect_unclean(request.name, request.partition, validate_only=request.validate_only)
            change.what = what and f"{what}: node {copies[0].node_id}"
        response.copies.extend(copies)
    return response


def _name_of(broker: BrokerParts, tp: TopicIdPartition) -> str:
    """The topic's name; its id if this node does not know the topic any more."""
    topic = COORDINATOR if tp.topic_id == COORDINATOR.id else None
    with contextlib.suppress(UnknownTopicIdError):
        topic = topic or broker.topics.by_id(tp.topic_id)
    return topic.name if topic is not None else tp.topic_id.hex()
