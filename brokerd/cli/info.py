"""`brokerd info`: versions, features, limits and nodes of a broker."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from brokerd.cli.output import print_json, table
from brokerd.cli.parser import Subparsers, add_client_options, client_config, hasty
from brokerd.config.client import ClientConfig

if TYPE_CHECKING:
    from brokerd.client.metadata import Metadata, ServerInfo


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "info",
        help="print a broker's versions, features, limits and nodes",
        description="Prints the versions, features, limits and nodes of a broker.",
        epilog="examples:\n  brokerd info\n  brokerd info --bootstrap-server broker.example:9192 --json\n",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Asks the broker and prints. Raises BrokerdError, UsageError."""
    from brokerd.client.blocking import BlockingClient

    config = hasty(client_config(args, ClientConfig))
    with BlockingClient(config) as client:
        server = client.server_info()
        cluster = client.metadata([])
    if args.json:
        print_json(_document(server, cluster))
    else:
        _print(server, cluster)
    return 0


def _print(server: ServerInfo, cluster: Metadata) -> None:
    from brokerd import __version__

    print(f"broker {server.software_version}, node {server.node_id} of cluster {server.cluster_id}")
    print(f"  wire versions {server.min_wire_version} to {server.max_wire_version}; this command is of version {__version__}")
    print(f"  features: {', '.join(sorted(server.features))}")
    nodes = [(node.node_id, node.address, node.rack or "-") for node in cluster.nodes.values()]
    print(table(("NODE", "ADDRESS", "RACK"), nodes, indent="  "))
    print(table(("LIMIT", "VALUE"), sorted(server.limits.items()), indent="  "))


def _document(server: ServerInfo, cluster: Metadata) -> dict[str, Any]:
    from brokerd import __version__

    return {
        "cluster_id": server.cluster_id,
        "node_id": server.node_id,
        "software_version": server.software_version,
        "min_wire_version": server.min_wire_version,
        "max_wire_version": server.max_wire_version,
        "client_version": __version__,
        "features": sorted(server.features),
        "limits": dict(sorted(server.limits.items())),
        "controller_id": cluster.controller_id,
        "nodes": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack or None}
            for node in cluster.nodes.values()
        ],
    }
