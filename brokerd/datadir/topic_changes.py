"""Topic changes: create, grow, alter, delete. Each is a generator of steps (steps.py) that yields its disk I/O as jobs.

The order matters. New partitions are durable before the topics file names them, and the file is durable before the change is
visible. A deleted topic is gone from the file before its data is removed (topic_store.py handles an uncertain write). The caller
ensures that only one change is in progress at a time. All look-ups, checks and changes in memory happen between two jobs, so they
are consistent. A validate-only request calls the same check_* method that the change itself starts with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from brokerd.config.broker import BrokerConfig, checked_topic_config
from brokerd.config.settings import settings_of, unknown_setting
from brokerd.config.topic import TopicConfig, normalized
from brokerd.datadir.checkpoint import Checkpoint
from brokerd.datadir.partition_directories import create_directories, discard_directories, remove_directories
from brokerd.datadir.partition_opening import PartitionOpening
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import COORDINATOR, Topic, TopicStore, check_topic_name
from brokerd.errors import (
    Fate,
    InvalidConfigError,
    InvalidPartitionsError,
    PolicyViolationError,
    StorageError,
    TopicAlreadyExistsError,
    counted,
)
from brokerd.ids import TopicIdPartition, new_topic_id
from brokerd.partition.log_state import LogState
from brokerd.steps import Steps
from brokerd.storage.files import Files
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class TopicChanges:
    """Creates, grows, alters and deletes topics; see the module docstring."""

    _config: BrokerConfig
    _files: Files
    _spares: SpareFiles
    _topics: TopicStore
    _partitions: PartitionTable
    _opening: PartitionOpening
    _checkpoint: Checkpoint

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Steps[Topic]:
        """Creates a topic, durably on completion. `partitions`: 0 = num.partitions. Raises the errors of `check_create`,
        StorageError."""
        topic = self.check_create(name, partitions, configs)
        yield from self._add_partitions(topic, range(topic.partition_count))
        return topic

    def create_coordinator(self) -> Steps[None]:
        """Creates the coordinator's log, durably on completion. Raises StorageError."""
        self._opening.check_writable()
        yield from self._add_partitions(COORDINATOR, range(COORDINATOR.partition_count))

    def hold(self, topic: Topic, numbers: Sequence[int]) -> Steps[Topic]:
        """Adopts a topic as the cluster has it now, and adds partitions `numbers`, new and empty, to this directory. Durable on
        completion. Raises InvalidConfigError, StorageError.
        """
        self._opening.check_writable()
        held = topic._replace(held=tuple(sorted({*self._topics.held(topic.id), *numbers})))
        config = self._opening.config_of(held)
        yield from self._add_partitions(held, numbers)
        self._partitions.configure(held, config)
        return held

    def check_create(self, name: str, partitions: int, configs: Mapping[str, str], before: Sequence[Topic] = ()) -> Topic:
        """The topic that `create` would create after those in `before`; creates nothing.

        Raises InvalidTopicError, TopicAlreadyExistsError, InvalidPartitionsError, InvalidConfigError, PolicyViolationError,
        StorageError.
        """
        check_topic_name(name)
        if self._topics.has(name) or any(topic.name == name for topic in before):
            raise TopicAlreadyExistsError(f"topic '{name}' already exists")
        count = partitions or self._config.num_partitions
        self._check_count(name, count, count, sum(topic.partition_count for topic in before))
        if len(self._topics) + len(before) >= self._config.max_topics:
            raise PolicyViolationError(f"the limit of topics is reached: max.topics is {self._config.max_topics}")
        config = checked_topic_config(self._config, configs)
        self._opening.check_writable()
        return Topic(name, new_topic_id(), count, normalized(config, configs))

    def grow(self, name: str, total: int) -> Steps[Topic]:
        """Adds partitions up to `total`, durably on completion. Raises the errors of `check_grow`, StorageError."""
        grown = self.check_grow(name, total)
        yield from self._add_partitions(grown, range(self._topics.by_name(name).partition_count, total))
        return grown

    def check_grow(self, name: str, total: int) -> Topic:
        """The topic as `grow` would leave it; changes nothing. Raises InvalidPartitionsError, UnknownTopicOrPartitionError,
        PolicyViolationError, StorageError.
        """
        topic = self._topics.by_name(name)
        if total <= topic.partition_count:
            raise InvalidPartitionsError(
                f"topic '{name}' cannot have {counted(total, 'partition')}: the number can only grow, from the current "
                f"{topic.partition_count} to at most {self._config.max_partitions_per_topic} (max.partitions.per.topic)"
            )
        self._check_count(name, total, total - topic.partition_count)
        self._opening.check_writable()
        return topic._replace(partition_count=total)

    def alter(self, name: str, set_configs: Mapping[str, str], unset: Iterable[str]) -> Steps[Topic]:
        """Changes settings, durably on completion. Raises the errors of `check_alter`, StorageError."""
        changed = self.check_alter(name, set_configs, unset)
        yield from self._topics.put(changed)
        self._partitions.configure(changed, self._opening.config_of(changed))
        return changed

    def check_alter(self, name: str, set_configs: Mapping[str, str], unset: Iterable[str]) -> Topic:
        """The topic as `alter` would leave it; changes nothing. Raises InvalidConfigError, UnknownTopicOrPartitionError,
        StorageError.
        """
        topic = self._topics.by_name(name)
        removed = set(unset)
        known = settings_of(TopicConfig)
        for setting in sorted(removed - set(known)):
            raise InvalidConfigError(unknown_setting(setting, known, where="(topic setting)", listed=TopicConfig.LISTED).message)
        configs = {key: value for key, value in topic.configs.items() if key not in removed} | dict(set_configs)
        config = checked_topic_config(self._config, configs)
        self._opening.check_writable()
        return topic._replace(configs=normalized(config, configs))

    def check_delete(self, name: str) -> Topic:
        """The topic that `delete` would delete; deletes nothing. Raises UnknownTopicOrPartitionError, StorageError."""
        topic = self._topics.by_name(name)
        self._opening.check_writable()
        return topic

    def delete(self, name: str, on_deleted: Callable[[Topic], None] | None = None) -> Steps[Topic]:
        """Deletes a topic, durably on completion. Calls `on_deleted` once the topic is invisible, before its files are removed.
        Raises the errors of `check_delete`; with fate UNKNOWN the topic is gone, but its files stay until the next start, which
        finds it either deleted or still complete.
        """
        topic = self.check_delete(name)
        failed: StorageError | None = None
        try:
            yield from self._topics.remove(topic)
        except StorageError as error:
            if error.fate is not Fate.UNKNOWN:
                raise
            failed = error
        tps = [TopicIdPartition(topic.id, partition) for partition in range(topic.partition_count)]
        self._partitions.remove(tps)
        self._checkpoint.forget(tps)
        if on_deleted is not None:
            on_deleted(topic)
        if failed is not None:
            raise failed
        try:
            yield lambda: remove_directories(self._files, tps)
        except OSError as error:
            logger.warning("topic %s is deleted, its files are removed at the next start: %s", topic.name, error)
        else:
            self._topics.forget(topic.id)
        if not self._spares.is_whole:
            yield self._spares.restore
        return topic

    def settle(self) -> Steps[None]:
        """Makes the visible topics durable after a change of unknown fate. Raises StorageError."""
        self._opening.check_writable()
        yield from self._topics.settle()

    def _add_partitions(self, topic: Topic, partitions: Sequence[int]) -> Steps[None]:
        """Creates the logs durably, then the topic. On StorageError the directories are removed, as far as possible."""
        tps = [TopicIdPartition(topic.id, partition) for partition in partitions]
        config = self._opening.config_of(topic)
        made: dict[TopicIdPartition, LogState] = {}

        def make() -> None:
            create_directories(self._files, tps)
            made.update({tp: self._opening.recover(topic, config, tp) for tp in tps})

        try:
            yield make
            yield from self._topics.put(topic)
        except (OSError, StorageError) as error:
            yield lambda: discard_directories(self._files, tps)
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"topic '{topic.name}' could not be created ({error.strerror})") from error
        opened = [self._opening.open(topic, config, tp, state) for tp, state in made.items()]
        for partition in opened:
            self._partitions.add(partition)
        self._partitions.elect(opened)

    def _check_count(self, name: str, total: int, added: int, added_before: int = 0) -> None:
        if total < 1:
            raise InvalidPartitionsError(
                f"topic '{name}' cannot have {total} partitions: give 1 to {self._config.max_partitions_per_topic} "
                "(max.partitions.per.topic), or 0 for num.partitions"
            )
        if total > self._config.max_partitions_per_topic:
            raise InvalidPartitionsError(
                f"topic '{name}' cannot have {total} partitions: "
                f"max.partitions.per.topic is {self._config.max_partitions_per_topic}"
            )
        if self._topics.partition_count() + added_before + added > self._config.max_partitions:
            raise PolicyViolationError(
                f"topic '{name}' cannot have {counted(total, 'partition')}: {added} more would exceed the "
                f"{self._config.max_partitions} allowed for all topics together (max.partitions)"
            )
