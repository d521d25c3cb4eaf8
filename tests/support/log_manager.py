"""The log manager with what tests want done at once: each sequence of steps from its beginning to its end, waiting for the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from brokerd.datadir import log_manager
from brokerd.datadir.topic_store import Topic
from tests.support.steps import run_here


class LogManager(log_manager.LogManager):
    """The daemon has the steps of these run by its Admin, and retention by its background tasks."""

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
        """Removes segments that retention or delete_records gave up; returns how many. Raises OSError."""
        for log in self.retention.roll_expired():
            with contextlib.suppress(OSError):  # that log has stopped, which says it to whoever appends
                log.flush()
        return run_here(self.retention.retire())

    def write_checkpoint_if_due(self, now_ms: int) -> bool:
        """As checkpoint_job, at once; True if it was written. Raises OSError."""
        job = self.checkpoint_job(now_ms)
        if job is not None:
            job()
        return job is not None

    @property
    def dirty_bytes(self) -> int:
        """Bytes of all logs that are appended and not yet flushed."""
        return sum(log.core.flushes.dirty_bytes for log in self.partitions.of_clients())
