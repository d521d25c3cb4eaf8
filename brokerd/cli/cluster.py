"""`brokerd cluster`: prints the nodes of a cluster, and the leaders and replicas of its partitions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from brokerd.cli.output import NONE, dashed, fields, known, listed, placed, show, table
from brokerd.cli.parser import connect
from brokerd.cli.topic_lookup import with_nearest_name
from brokerd.client.response_checks import error_in
from brokerd.errors import counted
from brokerd.ids import NO_LEADER, address_of
from brokerd.wire.v1.metadata_pb2 import MetadataResponse, PartitionMetadata


def print_nodes(args: argparse.Namespace) -> None:
    """Prints one line per node. Raises BrokerdError, UsageError."""
    with connect(args) as client:
        cluster, coordinator_id = client.describe_cluster([]), client.find_coordinator()
    show(args, _node_documents(cluster, coordinator_id), [_node_table(cluster, coordinator_id)])


def print_status(args: argparse.Namespace) -> None:
    """Prints nodes and partitions. Raises BrokerdError, UsageError."""
    with connect(args) as client:
        cluster, coordinator_id = client.describe_cluster(args.topics or None), client.find_coordinator()
        for topic in cluster.topics if args.topics else ():
            error = error_in(topic)
            if error is not None:
                raise with_nearest_name(client, topic.name, error)
    document = {
        "cluster_id": cluster.cluster_id,
        "controller_id": known(cluster.controller_id),
        "coordinator_id": known(coordinator_id),
        "nodes": _node_documents(cluster, coordinator_id),
        "partitions": [_partition_document(name, partition) for name, partition in _partitions(cluster)],
    }
    show(args, document, _status_lines(cluster, coordinator_id))


def _status_lines(cluster: MetadataResponse, coordinator_id: int) -> Iterator[str]:
    partitions = list(_partitions(cluster))
    leaderless = sum(partition.leader == NO_LEADER for _, partition in partitions)
    behind = sum(len(partition.isr) < len(partition.replicas) for _, partition in partitions)
    yield (
        f"cluster {cluster.cluster_id}: {counted(len(cluster.nodes), 'node')}, {counted(len(partitions), 'partition')}, "
        f"{leaderless} without a leader, {behind} with replicas that are not in sync"
    )
    yield _node_table(cluster, coordinator_id, indent="  ")
    if partitions:
        rows = [
            (name, one.partition, dashed(one.leader), dashed(one.leader_epoch), listed(one.replicas), listed(one.isr))
            for name, one in partitions
        ]
        yield table(("TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR"), rows, indent="  ")
    for name, one in partitions:
        if one.HasField("error"):
            yield f"  {name}-{one.partition}: {one.error.message}"


def _partitions(cluster: MetadataResponse) -> Iterator[tuple[str, PartitionMetadata]]:
    """Partitions with the names of their topics; those of topics that are deleted meanwhile are left out."""
    for topic in sorted(cluster.topics, key=lambda one: one.name):
        for partition in topic.partitions:
            yield topic.name, partition


def _partition_document(name: str, partition: PartitionMetadata) -> dict[str, Any]:
    return {
        "topic": name,
        **fields(partition, "partition leader_epoch error"),
        **placed(partition),
    }


def _node_table(cluster: MetadataResponse, coordinator_id: int, *, indent: str = "") -> str:
    rows = []
    for node in cluster.nodes:
        roles = {"controller": cluster.controller_id, "coordinator": coordinator_id}
        held = ", ".join(role for role, node_id in roles.items() if node_id == node.node_id)
        rows.append((node.node_id, address_of(node.host, node.port), node.rack or NONE, held or NONE))
    return table(("NODE", "ADDRESS", "RACK", "ROLE"), rows, indent=indent)


def _node_documents(cluster: MetadataResponse, coordinator_id: int) -> list[dict[str, Any]]:
    return [
        {
            **fields(node, "node_id host port"),
            "rack": node.rack or None,
            "is_controller": node.node_id == cluster.controller_id,
            "is_coordinator": node.node_id == coordinator_id,
        }
        for node in cluster.nodes
    ]
