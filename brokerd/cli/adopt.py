"""`brokerd cluster adopt`: makes the data directory of a node alone the first node of a new cluster
(brokerd/server/cluster/adoption.py)."""

from __future__ import annotations

import argparse
import asyncio
import os

from brokerd.cli.output import show
from brokerd.cli.parser import UsageError
from brokerd.cli.start import broker_config
from brokerd.clock import SystemClock
from brokerd.errors import DataDirectoryError, counted
from brokerd.server.cluster.adoption import adopt
from brokerd.server.cluster.node import coordination_client
from brokerd.storage.files import RealFiles


def run(args: argparse.Namespace) -> None:
    """Adopts, and says what is next. Raises UsageError, DataDirectoryError, CoordinationError."""
    config = broker_config(args)
    if not config.cluster_name:
        raise UsageError(f"{args.prog}: --cluster must name the new cluster")
    if not os.path.isdir(config.data_dir):
        raise DataDirectoryError(f"{config.data_dir}: there is no such directory")

    async def adopted() -> int:
        client = coordination_client(config, SystemClock())
        try:
            return await adopt(config, RealFiles(config.data_dir), SystemClock(), client)
        finally:
            await client.close()

    topics = asyncio.run(adopted())
    given = f"--node-id {config.node_id} --cluster {config.cluster_name} --coordination {config.coordination_servers}"
    line = f"{config.data_dir} is a node of the new cluster, with {counted(topics, 'topic')}; start it with {given}"
    show(args, {"cluster": config.cluster_name, "node_id": config.node_id, "topics": topics}, [line])
