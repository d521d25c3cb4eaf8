"""Recovers the partitions of a data directory, by its settings and what its files say. One partition is partition/recovery.py's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.datadir.checkpoint import Entries
from brokerd.datadir.node_state import CleanLogs
from brokerd.datadir.topic_store import Topic, TopicStore
from brokerd.errors import LogDamagedError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.entries import NEW_PARTITION, CheckpointEntry, CleanLog
from brokerd.partition.log_walk import RecoveryInput
from brokerd.partition.recovery import PartitionRecovery, Recovered
from brokerd.storage.files import Files
from brokerd.storage.open_files import OpenFiles

logger = logging.getLogger(__name__)


class RecoveryReport(NamedTuple):
    """The findings of opening a data directory."""

    was_clean: bool
    unclean: int  # logs that were not closed cleanly
    partitions: int
    cut_bytes: dict[TopicPartition, int]  # torn tails that were truncated
    damaged: dict[TopicPartition, LogDamagedError]
    read_only_reason: str  # why the directory is read-only; "" = it is not
    unknown_directories: list[str]  # hold data of unknown topics; left alone


class Opened(NamedTuple):
    """A partition that was recovered."""

    topic: Topic
    config: TopicConfig
    tp: TopicIdPartition
    entry: CheckpointEntry  # what was known of it
    found: Recovered
    is_read_only: bool  # its files could be read, and not repaired


class PartitionOpening:
    """See the module."""

    def __init__(self, config: BrokerConfig, files: Files, open_files: OpenFiles, free_producer_number: Callable[[], int]) -> None:
        """`free_producer_number`: the lowest producer id that nobody has been given."""
        self._config = config
        self._files = files
        self._open_files = open_files
        self._free_producer_number = free_producer_number

    def all(
        self, topics: TopicStore, entries: Entries, clean: CleanLogs, *, ended_epoch: int, read_only_reason: str
    ) -> Iterator[Opened]:
        """Each partition of all topics, one after the other."""
        for topic in topics.all():
            config = topic_config(topic.configs, self._config.topic_defaults())
            for partition in range(topic.partition_count):
                tp = TopicIdPartition(topic.id, partition)
                entry = entries.get(tp, NEW_PARTITION)
                if tp in clean:
                    entry = entry.known_durable(clean[tp].log_end_offset)
                reason, is_read_only = read_only_reason, False
                try:
                    found = self._recover(topic, config, tp, entry, clean.get(tp), ended_epoch, reason)
                except OSError as error:
                    reason, is_read_only = f"its recovery could not write ({error.strerror}); see to the disk and restart", True
                    logger.error("%s-%d is read-only: %s", topic.name, partition, reason)
                    found = self._recover(topic, config, tp, entry, clean.get(tp), ended_epoch, read_only_reason or reason)
                yield Opened(topic, config, tp, entry, found, is_read_only)

    def new(self, topic: Topic, config: TopicConfig, tp: TopicIdPartition, *, ended_epoch: int) -> Recovered:
        """A partition with an empty directory. In any thread. Raises OSError."""
        return self._recover(topic, config, tp, NEW_PARTITION, None, ended_epoch, "")

    def _recover(
        self,
        topic: Topic,
        config: TopicConfig,
        tp: TopicIdPartition,
        entry: CheckpointEntry,
        clean: CleanLog | None,
        ended_epoch: int,
        read_only_reason: str,
    ) -> Recovered:
        given = RecoveryInput(
            tp=tp,
            name=str(TopicPartition(topic.name, tp.partition)),
            index_interval_bytes=config.index_interval_bytes,
            max_producer_ids=self._config.max_producer_ids,
            max_epoch=ended_epoch,
            free_producer_number=self._free_producer_number(),
            checkpoint=entry,
            clean=clean,
            read_only_reason=read_only_reason,
        )
        return PartitionRecovery(self._files, self._open_files, given).run()
