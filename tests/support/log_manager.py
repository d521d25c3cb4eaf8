"""The log manager with methods that run administrative steps to their end at once, waiting for the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from brokerd.datadir import log_manager
from brokerd.datadir.topic_store import Topic
from tests.support.steps import run_here


class LogManager(log_manager.LogManager):
    """In the daemon, Admin runs these steps, and background tasks run retention."""

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """See TopicChanges.create."""
        return run_here(self.changes.create(name, partitions, configs))

    def delete_topic(self, name: str) -> Topic:
        """See TopicChanges.delete."""
        return run_here(self.changes.delete(name))

    def create_partitions(self, name: str, total: int) -> Topic:
        """See TopicChanges.grow."""
        return run_here(self.changes.grow(name, total))

    def alter_topic(self, name: str, set_configs: Mapping[str, str], unset: Iterable[str]) -> Topic:
        """See TopicChanges.alter."""
        return run_here(self.changes.alter(name, set_configs, unset))

    def retention_pass(self) -> int:
        """Removes segments below the log start that retention or DeleteRecords moved; returns how many. Raises OSError."""
        for log in self.retention.roll_expired():
            with contextlib.suppress(OSError):  # the log has stopped and reports it to producers
                log.flush()
        return run_here(self.retention.retire())

    def write_checkpoint_if_due(self, now_ms: int) -> bool:
        """Writes the checkpoint if due; True if written. Raises OSError."""
        job = self.checkpoint_job(now_ms)
        if job is not None:
            job()
        return job is not None

    @property
    def dirty_bytes(self) -> int:
        """Bytes of all logs that are appended but not flushed."""
        return sum(log.core.flushes.dirty_bytes for log in self.partitions.of_clients())
