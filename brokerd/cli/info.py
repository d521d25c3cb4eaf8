"""`brokerd info`: prints the versions, limits and nodes of a broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from brokerd import __version__
from brokerd.cli.output import cluster_text, fields, show, table
from brokerd.cli.parser import connect
from brokerd.client.metadata import Metadata
from brokerd.wire.v1.metadata_pb2 import GetServerInfoResponse


def run(args: argparse.Namespace) -> None:
    """Prints the answers of the broker. Raises BrokerdError, UsageError."""
    with connect(args) as client:
        server = client.server_info()
        cluster = client.metadata([])
    limits = sorted((limit.name, limit.value) for limit in server.limits)
    document = {
        "cluster_name": server.cluster_name or None,
        **fields(server, "cluster_id node_id software_version min_wire_version max_wire_version"),
        "client_version": __version__,
        "limits": dict(limits),
        "nodes": [fields(node, "node_id host port") for node in cluster.nodes.values()],
    }
    show(args, document, _lines(server, cluster, limits))


def _lines(server: GetServerInfoResponse, cluster: Metadata, limits: Sequence[tuple[str, int]]) -> Iterator[str]:
    yield f"broker {server.software_version}, node {server.node_id} of cluster {cluster_text(server)}"
    yield f"  wire versions {server.min_wire_version} to {server.max_wire_version}; this command is of version {__version__}"
    nodes = [(node.node_id, node.address) for node in cluster.nodes.values()]
    yield table(("NODE", "ADDRESS"), nodes, indent="  ")
    yield table(("LIMIT", "VALUE"), limits, indent="  ")
