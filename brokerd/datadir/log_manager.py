"""All logs of one data directory: opening after whatever happened, topics, retention, the checkpoint, closing.

Opening follows the nine steps of ARCHITECTURE.md ("Recovery"); what one partition needs is in recovery.py. Timers and
threads are the daemon's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.datadir.believed_time import BelievedTime
from brokerd.datadir.checkpoint import CheckpointFile, read_checkpoint
from brokerd.datadir.closing import end_logs
from brokerd.datadir.epoch_slots import make_epoch_slots
from brokerd.datadir.node_state import (
    CleanLogs,
    ProducerIds,
    check_not_foreign,
    create_meta,
    read_clock,
    read_epoch,
    read_meta,
    take_clean_mark,
    write_clean_mark,
    write_clock,
    write_epoch,
)
from brokerd.datadir.partition_directories import remove_leftovers
from brokerd.datadir.retention import delete_records, retire, roll_expired
from brokerd.datadir.steps import Job, Steps, run_here
from brokerd.datadir.topic_changes import LogsOfTopics, TopicChanges
from brokerd.datadir.topic_store import Topic, TopicStore
from brokerd.errors import (
    DataDirectoryError,
    LogDamagedError,
    StorageError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.entries import NEW_PARTITION, CheckpointEntry, CleanLog
from brokerd.partition.log_state import LogResources
from brokerd.partition.log_walk import RecoveryInput
from brokerd.partition.partition_log import PartitionLog
from brokerd.partition.recovery import PartitionRecovery, Recovered
from brokerd.storage.files import Files
from brokerd.storage.names import LOG_SUFFIX, offset_file, parse_partition_directory
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.patient_files import PatientFiles
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)

_NO_CHECKPOINT = "the checkpoint of the data directory is missing or damaged; `brokerd doctor` tells what to do"


class RecoveryReport(NamedTuple):
    """What opening a data directory found."""

    was_clean: bool
    unclean: int  # logs that were not closed cleanly
    partitions: int
    cut_bytes: dict[TopicPartition, int]  # torn tails that were cut off
    damaged: dict[TopicPartition, LogDamagedError]
    read_only_reason: str  # why nothing is written at all; "" = everything is in order
    unknown_directories: list[str]  # hold data of no topic that is known; left alone


class CheckpointJob:
    """The checkpoint as it stood when the job was made; `run` may be called in a thread."""

    def __init__(
        self, file: CheckpointFile, spares: SpareFiles, number: int, entries: dict[TopicIdPartition, CheckpointEntry]
    ) -> None:
        self._file = file
        self._spares = spares
        self._number = number
        self._entries = entries

    def run(self) -> None:
        """Writes it. Raises OSError: then the old one still stands, or perhaps does, and the next job will try again."""
        self._file.write(self._entries, self._number)
        self._spares.restore()

    def run_on_full_disk(self) -> None:
        """The same for one that makes room: a full disk takes it too. Raises OSError."""
        self._file.write(self._entries, self._number, makes_room=True)
        self._spares.restore()


class LogManager:
    """See the module. Used by one thread, but where a method says otherwise."""

    def __init__(self, config: BrokerConfig, files: Files, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._open_files = OpenFiles(files, limit=config.log_max_open_files)
        self._files = files = PatientFiles(files, self._open_files.make_room)
        self._spares = SpareFiles(files)
        self._checkpoint = CheckpointFile(files, self._spares)
        self._entries: dict[TopicIdPartition, CheckpointEntry] = {}
        self._kept_entries: dict[TopicIdPartition, CheckpointEntry] = {}
        self._checkpoint_at_ms = 0
        self._producer_ids = ProducerIds(files)
        self._logs: dict[TopicIdPartition, PartitionLog] = {}
        self._resources: LogResources | None = None
        self._read_only_reason = ""
        self._time = BelievedTime(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms(), seen_wall_ms=None)
        self.topics = TopicStore(files, self._spares)
        logs = LogsOfTopics(self._check_writable, self._make, self._unmake, self._add, self._configure, self._forget)
        self.changes = TopicChanges(config, files, self._spares, self.topics, logs)
        self.cluster_id = ""
        self.node_id = -1  # known once it is open
        self.leader_epoch = 0

    # Opening and closing

    def open(self) -> RecoveryReport:
        """Opens the data directory and every log in it, for appends where nothing is wrong. Raises DataDirectoryError."""
        path = self._config.data_dir
        try:
            return self._open()
        except OSError as error:
            raise DataDirectoryError(f"{path} cannot be opened: {error.strerror} {error.filename or ''}".rstrip()) from error
        except DataDirectoryError as error:
            if path in error.message:
                raise
            raise DataDirectoryError(f"{path}: {error.message}") from error

    def _open(self) -> RecoveryReport:
        # 1: lock, version, epoch
        check_not_foreign(self._files)
        self._files.lock()
        self._spares.find()
        meta = read_meta(self._files)
        if meta is None:
            if any(parse_partition_directory(name) for name in self._files.listdir()):
                raise DataDirectoryError(
                    "the data directory holds partitions, but its file 'meta' is missing; `brokerd doctor` tells more"
                )
            self._checkpoint.write({}, self._checkpoint.capture())
            write_epoch(self._files, 0)
            self.topics.create()
            self._producer_ids.create()
            meta = create_meta(self._files, max(0, self._config.node_id))
        elif self._config.node_id not in (-1, meta.node_id):
            raise DataDirectoryError(
                f"node.id is {self._config.node_id}, but the data directory belongs to node {meta.node_id}: set node.id = "
                f"{meta.node_id}, or leave it out; or data.dir is another node's"
            )
        self.cluster_id = meta.cluster_id
        self.node_id = meta.node_id
        self.topics.open()
        self._producer_ids.open()
        ended_epoch = read_epoch(self._files)
        self.leader_epoch = ended_epoch + 1
        self._raise_epoch()
        # 2: the clean mark
        clean = take_clean_mark(self._files, ended_epoch, keep=bool(self._read_only_reason))
        # 3: the checkpoint
        entries = read_checkpoint(self._files)
        self._checkpoint.written = entries or {}
        unknown = remove_leftovers(self._files, self.topics) if not self._read_only_reason else []
        # Should their topics be known again one day, what was durable must be known too.
        unknown_tps = {parse_partition_directory(name) for name in unknown}
        self._entries = {tp: entry for tp, entry in (entries or {}).items() if tp in unknown_tps}
        if entries is None and self.topics.partition_count():
            self._read_only_reason = self._read_only_reason or _NO_CHECKPOINT
        self._resources = LogResources(
            self._files, self._spares, self._open_files, self._config.max_producer_ids, self.write_checkpoint
        )
        # 4 to 7, each partition
        cut = self._recover_all(entries or {}, clean, ended_epoch)
        self._look_at_clock()
        # 8
        if not self._read_only_reason:
            self._settle_directory()
        self._checkpoint_at_ms = self._clock.monotonic_ms()
        unclean = sum(tp not in clean for tp in self._logs)
        return RecoveryReport(
            was_clean=bool(clean) and not unclean,
            unclean=unclean,
            partitions=len(self._logs),
            cut_bytes=cut,
            damaged={TopicPartition(log.topic, log.tp.partition): log.damage for log in self._logs.values() if log.damage},
            read_only_reason=self._read_only_reason,
            unknown_directories=unknown,
        )

    def _look_at_clock(self) -> None:
        """Believes the wall clock, or what the data directory saw last (believed_time.py); silent producers are forgotten by it."""
        seen = read_clock(self._files)
        if seen is None:
            stamps = [segment.max_append_timestamp for log in self._logs.values() for segment in log.segments]
            seen = max((stamp for stamp in stamps if stamp >= 0), default=None)
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        self._time = BelievedTime(now_ms=now_ms, wall_ms=wall_ms, seen_wall_ms=seen)
        self.expire_producers(wall_ms)

    def _raise_epoch(self) -> None:
        """Makes this start's epoch durable. Where that cannot be, nothing may be appended; what is there is served."""
        try:
            write_epoch(self._files, self.leader_epoch, self._spares)
        except OSError as error:
            self._read_only_reason = f"this start could not be noted ({error.strerror}); see to the disk and restart"
            logger.error("the data directory is read-only: %s", self._read_only_reason)

    def _settle_directory(self) -> None:
        """The checkpoint, and room for the next start. On a full disk the old checkpoint stands, which is true still, and the spare
        files are for those who make room.
        """
        try:
            self._checkpoint_now().run()
            make_epoch_slots(self._files)
        except OSError as error:
            logger.warning("the checkpoint could not be written at the start (%s): it is tried again", error.strerror)

    def _recover_all(
        self, entries: Mapping[TopicIdPartition, CheckpointEntry], clean: CleanLogs, ended_epoch: int
    ) -> dict[TopicPartition, int]:
        cut = {}
        for topic in self.topics.list():
            config = topic_config(topic.configs, self._config.topic_defaults())
            for partition in range(topic.partition_count):
                tp = TopicIdPartition(topic.id, partition)
                entry = entries.get(tp, NEW_PARTITION)
                if tp in clean:
                    entry = entry.known_durable(clean[tp].log_end_offset)
                try:
                    found = self._recover(topic, config, tp, entry, clean.get(tp), ended_epoch)
                except OSError as error:
                    reason = f"its recovery could not write ({error.strerror}); see to the disk and restart"
                    logger.error("%s-%d is read-only: %s", topic.name, partition, reason)
                    found = self._recover(topic, config, tp, entry, clean.get(tp), ended_epoch, read_only_reason=reason)
                    self._kept_entries[tp] = entry
                self._add(topic, config, {tp: found})
                log, cut_bytes = self._logs[tp], found.cut_bytes
                if cut_bytes:
                    cut[TopicPartition(topic.name, partition)] = cut_bytes
                    logger.warning(
                        "%s: cut a torn tail of %d bytes, the log ends at offset %d", log.name, cut_bytes, log.log_end_offset
                    )
                if log.damage:
                    self._kept_entries[tp] = entry
                    logger.error("%s", log.damage)
        return cut

    def _recover(
        self,
        topic: Topic,
        config: TopicConfig,
        tp: TopicIdPartition,
        entry: CheckpointEntry,
        clean: CleanLog | None,
        ended_epoch: int,
        read_only_reason: str = "",
    ) -> Recovered:
        given = RecoveryInput(
            tp=tp,
            name=str(TopicPartition(topic.name, tp.partition)),
            index_interval_bytes=config.index_interval_bytes,
            max_producer_ids=self._config.max_producer_ids,
            max_epoch=ended_epoch,
            free_producer_number=self._producer_ids.next_id,
            checkpoint=entry,
            clean=clean,
            read_only_reason=self._read_only_reason or read_only_reason,
        )
        return PartitionRecovery(self._files, self._open_files, given).run()

    def close(self) -> None:
        """Flushes all, writes snapshots, the checkpoint and the clean mark, and gives the lock back. Call it once, last.

        Logs that have stopped are left as they are: the next start recovers them.
        """
        try:
            if self._resources is not None and not self._read_only_reason:
                self._close_logs()
        finally:
            self._open_files.close()
            self._files.close()

    def _close_logs(self) -> None:
        clean = end_logs(self._files, self._logs.values())
        self._note_clock(self._believed_wall_ms(self._clock.wall_ms()))
        try:
            with contextlib.suppress(OSError):  # an older one is true as well
                self.write_checkpoint()
            write_clean_mark(self._files, self.leader_epoch, clean, self._spares)
        except OSError as error:
            logger.warning("could not end cleanly (%s): the next start recovers the logs", error.strerror)
        unclean = [log.name for tp, log in self._logs.items() if tp not in clean]
        if unclean:
            logger.warning("%d logs did not end cleanly, %s first: the next start recovers them", len(unclean), unclean[0])

    # Topics: each change at once, waiting for the disk. `changes` has them as steps.

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

    def _check_writable(self) -> None:
        if self._read_only_reason:
            raise StorageError(f"the data directory is read-only: {self._read_only_reason}")

    def _make(self, topic: Topic, config: TopicConfig, tp: TopicIdPartition) -> Recovered:
        return self._recover(topic, config, tp, NEW_PARTITION, None, self.leader_epoch - 1)

    def _unmake(self, tp: TopicIdPartition) -> None:
        self._open_files.drop(f"{tp.directory_name}/{offset_file(0, LOG_SUFFIX)}")

    def _add(self, topic: Topic, config: TopicConfig, recovered: Mapping[TopicIdPartition, Recovered]) -> None:
        assert self._resources is not None
        for tp, found in recovered.items():
            self._logs[tp] = PartitionLog(tp, topic.name, config, self._resources, found.state, leader_epoch=self.leader_epoch)

    def _configure(self, topic: Topic, config: TopicConfig) -> None:
        for partition in range(topic.partition_count):
            self._logs[TopicIdPartition(topic.id, partition)].core.config = config

    def _forget(self, topic: Topic) -> None:
        for partition in range(topic.partition_count):
            tp = TopicIdPartition(topic.id, partition)
            log = self._logs.pop(tp, None)
            self._kept_entries.pop(tp, None)
            self._entries.pop(tp, None)
            if log is not None:
                log.mark_deleted()

    # Logs

    def partition(self, tp: TopicIdPartition) -> PartitionLog:
        """Raises UnknownTopicIdError, UnknownTopicOrPartitionError."""
        log = self._logs.get(tp)
        if log is None:
            topic = self.topics.by_id(tp.topic_id)
            raise UnknownTopicOrPartitionError(
                f"topic '{topic.name}' has {topic.partition_count} partitions, there is no {tp.partition}"
            )
        return log

    def partitions(self) -> list[PartitionLog]:
        """All logs."""
        return list(self._logs.values())

    @property
    def dirty_bytes(self) -> int:
        """Bytes of all logs that are appended and not yet flushed."""
        return sum(log.core.flushes.dirty_bytes for log in self._logs.values())

    @property
    def free_producer_id(self) -> int:
        """The lowest producer id that nobody has been given."""
        return self._producer_ids.next_id

    @property
    def has_producer_id(self) -> bool:
        """True if next_producer_id has nothing to wait for."""
        return self._producer_ids.has_next

    def next_producer_id(self) -> int:
        """A producer id that was never given before. Raises StorageError."""
        run_here(self.reserve_producer_ids())
        return self._producer_ids.take()

    def reserve_producer_ids(self) -> Steps[None]:
        """Makes next_producer_id wait for nothing; one at a time. Raises StorageError."""
        self._check_writable()
        try:
            yield from self._producer_ids.reserve()
        except OSError as error:
            raise StorageError(f"no producer id could be made ({error.strerror})", retry_after_ms=200) from error

    def retention_pass(self, now_wall_ms: int) -> int:
        """Removes segments that retention or delete_records gave up, waiting for the disk; returns how many. Raises OSError."""
        for log in self.roll_expired(now_wall_ms):
            with contextlib.suppress(OSError):  # that log has stopped, which says it to whoever appends
                log.flush()
        return run_here(self.retire(now_wall_ms))

    def roll_expired(self, now_wall_ms: int) -> list[PartitionLog]:
        """The first half of retention: closes last segments that have expired. Their logs are to be flushed before `retire`."""
        if self._read_only_reason:
            return []
        now = self._believed_wall_ms(now_wall_ms)
        return roll_expired(self._logs.values(), now_wall_ms=now, earliest_append_ms=self._earliest_append_ms())

    def retire(self, now_wall_ms: int) -> Steps[int]:
        """The second half: moves log starts, and removes segments; returns how many. Raises OSError."""
        if self._read_only_reason:
            return 0
        now = self._believed_wall_ms(now_wall_ms)
        yield lambda: self._note_clock(now)
        return (
            yield from retire(
                self.partitions(),
                self._files,
                self._spares,
                self._checkpoint,
                self._log_starts_job,
                now_wall_ms=now,
                earliest_append_ms=self._earliest_append_ms(),
            )
        )

    def delete_records(self, asked: Sequence[tuple[PartitionLog, int]]) -> Steps[list[WireError | None]]:
        """Moves the log starts of many partitions; see retention.py."""
        return delete_records(asked, self._log_starts_job)

    def expire_producers(self, now_wall_ms: int) -> int:
        """Forgets producers silent for producer.id.expiration.ms; returns how many."""
        before = self._believed_wall_ms(now_wall_ms) - self._config.producer_id_expiration_ms
        return sum(log.core.expire_producers(before) for log in self._logs.values())

    def stamp_wall_ms(self) -> int:
        """The time that an append is stamped with, ms."""
        wall_ms = self._clock.wall_ms()
        return wall_ms if self._time.gap_ms >= 0 else self._time.stamp(now_ms=self._clock.monotonic_ms(), wall_ms=wall_ms)

    def _believed_wall_ms(self, now_wall_ms: int) -> int:
        now_ms = self._clock.monotonic_ms()
        believed_ms = self._time.believe(now_ms=now_ms, wall_ms=now_wall_ms)
        news = self._time.take_news()
        if news:
            logger.warning("%s", news)
        return believed_ms

    def _earliest_append_ms(self) -> int:
        """What was appended since the start is no older than this, ms since 1970, whatever it is stamped with."""
        return self._time.earliest_append(now_ms=self._clock.monotonic_ms())

    def _note_clock(self, believed_ms: int) -> None:
        with contextlib.suppress(OSError):  # on a full disk an older one must do
            write_clock(self._files, believed_ms)

    # Checkpoint

    def checkpoint_job(self, now_ms: int) -> CheckpointJob | None:
        """A write of the checkpoint if one is due: something moved, and log.checkpoint.interval.ms have passed since the last."""
        if self._read_only_reason or now_ms - self._checkpoint_at_ms < self._config.log_checkpoint_interval_ms:
            return None
        assert self._resources is not None
        if not self._resources.moved and not self._checkpoint.is_behind:
            return None
        self._checkpoint_at_ms = now_ms
        return self._checkpoint_now()

    def write_checkpoint_if_due(self, now_ms: int) -> bool:
        """As checkpoint_job, at once; True if it was written. Raises OSError."""
        job = self.checkpoint_job(now_ms)
        if job is not None:
            job.run()
        return job is not None

    def write_checkpoint(self) -> None:
        """Writes the checkpoint now. Raises OSError."""
        self._log_starts_job()()

    def _log_starts_job(self) -> Job:
        return self._checkpoint_now().run_on_full_disk

    def _checkpoint_now(self) -> CheckpointJob:
        return CheckpointJob(self._checkpoint, self._spares, self._checkpoint.capture(), self._present_entries())

    def _present_entries(self) -> dict[TopicIdPartition, CheckpointEntry]:
        """A copy of all entries; only those that moved are rebuilt."""
        assert self._resources is not None
        for log in self._resources.moved:
            if log.tp in self._logs:
                self._entries[log.tp] = self._kept_entries.get(log.tp) or log.checkpoint_entry()
        self._resources.moved.clear()
        return dict(self._entries)
