"""Makes a standalone node's data directory the first node of a new cluster, with its topics. Offline: no broker uses the directory.

The topics are written to the store first, then the cluster's name into the directory. After an interruption in between, the next
run writes the topics again unless a node has used them. The node becomes the coordinator even if it has no coordinator's log yet:
only it knows the producer ids used in its partitions. The cluster takes the directory's cluster id, so that the two match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from brokerd.clock import Clock
from brokerd.cluster.changes import OPERATIONS_MAX, create_topic
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry
from brokerd.config.broker import BrokerConfig
from brokerd.coordination.client import CoordinationClient, KeyValue
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.node_state import join_cluster
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import CoordinationError, DataDirectoryError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.server.cluster.directory import entry_of
from brokerd.server.cluster.topics import run
from brokerd.storage.files import Files


async def adopt(config: BrokerConfig, files: Files, clock: Clock, client: CoordinationClient) -> int:
    """Returns the number of topics. `config` names the cluster and the node's id. Raises DataDirectoryError, and CoordinationError,
    also if another cluster has that name."""
    logs = LogManager(replace(config, node_id=-1), files, clock)
    report = await asyncio.to_thread(logs.open)
    try:
        if report.read_only_reason:
            raise DataDirectoryError(f"the data directory is read-only: {report.read_only_reason}")
        await _write(config, logs, client)
        await asyncio.to_thread(join_cluster, files, config.node_id, config.cluster_name)
    finally:
        await asyncio.to_thread(logs.close)
    return len(logs.topics)


async def _write(config: BrokerConfig, logs: LogManager, client: CoordinationClient) -> None:
    keys = Keys(config.cluster_name)
    await client.check()
    found = (await client.read(keys.prefix)).items
    image = ClusterImage(keys)
    for item in found:
        image.put(*item)
    if image.cluster_id not in ("", logs.cluster_id):
        raise CoordinationError(
            f"there is a cluster '{config.cluster_name}' already, and this data directory is not of it: a node alone can only "
            "become the first node of a new cluster, so choose another name; nothing was changed"
        )
    if not image.cluster_id:
        await client.transact({keys.cluster_id: 0}, {keys.cluster_id: logs.cluster_id.encode()})
    remains = [item for item in found if item.key != keys.cluster_id]
    if _is_cut_off(image, remains):
        for at in range(0, len(remains), OPERATIONS_MAX):
            some = {item.key: item.mod_revision for item in remains[at : at + OPERATIONS_MAX]}
            await client.transact(some, {}, tuple(some))
        for item in remains:
            image.delete(item.key)
    isr = (InSyncReplica(config.node_id, logs.directory_id),)
    epochs = {partition.tp: partition.leader_epoch for partition in logs.partitions}
    for topic in {COORDINATOR.id: COORDINATOR, **{topic.id: topic for topic in logs.topics.all()}}.values():
        tps = [TopicIdPartition(topic.id, number) for number in range(topic.partition_count)]
        entry = entry_of(topic)
        if image.topic(topic.id) is None and image.topic_id(topic.name) is None:
            entries = [PartitionEntry((config.node_id,), isr, leader_epoch=epochs.get(tp, 0)) for tp in tps]
            if await run(client, create_topic(image, topic.id, entry, entries)) is None:
                raise CoordinationError(f"topic '{topic.name}' was written by somebody else meanwhile: try again")
        elif image.topic(topic.id) != entry or any((held := image.partition(tp)) is None or held.entry.isr != isr for tp in tps):
            raise CoordinationError(
                f"topic '{topic.name}' of cluster '{config.cluster_name}' is not the one in this data directory, or is on another "
                "node: nodes have joined the cluster before it was complete, or it was made from another copy of the directory; "
                "choose another name"
            )


def _is_cut_off(image: ClusterImage, found: Sequence[KeyValue]) -> bool:
    """True if these keys are left by an interrupted run: no node has used them, since the first election changes them. The
    directory may have changed since that run."""
    is_new = all(item.create_revision == item.mod_revision for item in found)
    has_run = image.nodes or image.tombstones or any(at.entry.leader != NO_LEADER for _, at in image.partitions())
    return is_new and not has_run
