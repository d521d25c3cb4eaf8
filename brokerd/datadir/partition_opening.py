"""Opens the partitions of a data directory: recovers existing ones (partition/recovery.py) from the topic settings, the checkpoint
and the clean-shutdown mark, and creates new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.config.topic import TopicConfig
from brokerd.datadir.checkpoint import Entries, lost_leader_epoch
from brokerd.datadir.node_state import CleanLogs
from brokerd.datadir.partition_directories import remove_directories, remove_logs_from_end
from brokerd.datadir.topic_store import Topic, TopicStore, effective_config
from brokerd.errors import LogDamagedError, StorageError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.log_state import FIRST_EPOCH, GIVEN_UP, LOST_ENTRY, NEW_PARTITION, CheckpointEntry, CleanLog, LogState
from brokerd.partition.log_walk import RecoveryInput
from brokerd.partition.partition import LogResources, Partition
from brokerd.partition.recovery import PartitionRecovery

logger = logging.getLogger(__name__)

_MADE = NEW_PARTITION._replace(leader_epoch=FIRST_EPOCH - 1)  # never led yet


class RecoveryReport(NamedTuple):
    """The result of opening a data directory."""

    was_clean: bool
    unclean: int  # logs that were not closed cleanly
    partitions: int
    cut_bytes: dict[TopicPartition, int]  # torn tails that were truncated
    damaged: dict[TopicPartition, LogDamagedError]
    read_only_reason: str  # why the directory is read-only; "" = it is writable
    unknown_directories: list[str]  # directories with records of unknown topics, left as they are


class Opened(NamedTuple):
    """A recovered partition."""

    partition: Partition
    state: LogState
    kept_entry: CheckpointEntry | None  # checkpoint entry to keep, because the log was not fully recovered


class PartitionOpening:
    """Opens and creates partitions; see the module."""

    def __init__(
        self, config: BrokerConfig, resources: LogResources, free_producer_number: int, *, may_be_cut: bool = False
    ) -> None:
        """`free_producer_number`: missing batches may belong to any producer with a lower number. `may_be_cut`: other nodes may
        lead the partitions."""
        self._config = config
        self._resources = resources
        self._free_producer_number = free_producer_number
        self._may_be_cut = may_be_cut
        self.ended_node_epoch = 0  # node epoch of the previous life; 0 in a cluster; set by LogManager.open
        self.read_only_reason = ""  # why nothing may be written to the directory; "" = it is writable

    def check_writable(self) -> None:
        """Raises StorageError if the directory is read-only."""
        if self.read_only_reason:
            raise StorageError(f"the data directory is read-only: {self.read_only_reason}")

    def config_of(self, topic: Topic) -> TopicConfig:
        """The effective settings of a topic. Raises InvalidConfigError."""
        return effective_config(topic, self._config.topic_defaults())

    def all(self, topics: TopicStore, checkpoint: Entries | None, clean: CleanLogs) -> Iterator[Opened]:
        """Opens all partitions of all topics, one after another. `checkpoint`: None if it is lost."""
        found, is_end_known = checkpoint or {}, checkpoint is not None
        for topic in topics.all():
            config = self.config_of(topic)
            for partition in topic.partitions_here:
                tp = TopicIdPartition(topic.id, partition)
                entry = found.get(tp, LOST_ENTRY)
                if tp in clean:
                    entry = entry.known_durable(clean[tp].log_end_offset)
                reason, is_read_only = self.read_only_reason, False
                try:
                    if entry.recovery_point == GIVEN_UP and not reason:
                        remove_logs_from_end(self._resources.files, [tp])
                        remove_directories(self._resources.files, [tp])
                        entry = NEW_PARTITION._replace(leader_epoch=entry.leader_epoch)
                    state = self.recover(topic, config, tp, entry, clean.get(tp), reason, is_end_known=is_end_known)
                except OSError as error:
                    why, is_read_only = f"its recovery could not write ({error.strerror}); repair the disk and restart", True
                    logger.error("%s-%d is read-only: %s", topic.name, partition, why)
                    state = self.recover(topic, config, tp, entry, clean.get(tp), reason or why, is_end_known=is_end_known)
                if tp not in found:
                    state.leader_epoch = lost_leader_epoch(state.epochs, self.ended_node_epoch)
                opened = self.open(topic, config, tp, state)
                yield Opened(opened, state, entry if is_read_only or opened.damage else None)

    def recover(
        self,
        topic: Topic,
        config: TopicConfig,
        tp: TopicIdPartition,
        entry: CheckpointEntry = _MADE,
        clean: CleanLog | None = None,
        read_only_reason: str = "",
        *,
        is_end_known: bool = True,
    ) -> LogState:
        """Recovers a partition, by default a new and empty one. `entry`: as in the checkpoint; for a directory that holds only a
        snapshot, the snapshot's offset for all ends. Call `open` with the result. In any thread. Raises OSError.
        """
        given = RecoveryInput(
            tp=tp,
            name=str(TopicPartition(topic.name, tp.partition)),
            index_interval_bytes=config.index_interval_bytes,
            max_producer_ids=self._config.max_producer_ids,
            free_producer_number=self._free_producer_number,
            checkpoint=entry,
            clean=clean,
            read_only_reason=read_only_reason,
            may_be_cut=self._may_be_cut,
            is_durable_end_known=is_end_known,
        )
        return PartitionRecovery(self._resources.files, self._resources.open_files, given).run()

    def open(self, topic: Topic, config: TopicConfig, tp: TopicIdPartition, state: LogState) -> Partition:
        """The partition, writable unless its log has stopped. It has no role yet."""
        return Partition(tp, topic.name, config, self._resources, state)
