"""All logs of one data directory: opening after any kind of end, topics, retention, the checkpoint, closing.

Opening follows the nine steps in ARCHITECTURE.md ("Recovery"); partition/recovery.py handles one partition. Timers and threads
belong to the daemon.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.config.topic import TopicConfig
from brokerd.datadir.checkpoint import CheckpointFile, read_checkpoint
from brokerd.datadir.checkpointing import Checkpointing, CheckpointJob
from brokerd.datadir.closing import end_logs
from brokerd.datadir.decided_members import DecidedMembers, read_decided
from brokerd.datadir.directory_time import DirectoryTime
from brokerd.datadir.epoch_slots import make_epoch_slots
from brokerd.datadir.node_state import (
    Meta,
    ProducerIds,
    check_not_foreign,
    create_meta,
    read_epoch,
    read_meta,
    take_clean_mark,
    write_clean_mark,
    write_epoch,
)
from brokerd.datadir.partition_directories import remove_leftovers
from brokerd.datadir.partition_opening import Opened, PartitionOpening, RecoveryReport
from brokerd.datadir.retention import delete_records, retire, roll_expired
from brokerd.datadir.steps import Job, Steps, run_here
from brokerd.datadir.topic_changes import LogsOfTopics, TopicChanges
from brokerd.datadir.topic_store import OWN_TOPICS, Topic, TopicStore
from brokerd.errors import (
    DataDirectoryError,
    StorageError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import TopicIdPartition, TopicPartition, new_leader_epoch_id
from brokerd.partition.log_state import LogResources
from brokerd.partition.partition_log import PartitionLog
from brokerd.partition.recovery import Recovered
from brokerd.storage.files import Files
from brokerd.storage.names import LOG_SUFFIX, offset_file, parse_partition_directory
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.patient_files import PatientFiles
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)

_NO_CHECKPOINT = "the checkpoint of the data directory is missing or damaged; run `brokerd doctor` for advice"


class LogManager:
    """See the module docstring. Used by one thread, except where a method says otherwise."""

    def __init__(self, config: BrokerConfig, files: Files, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._open_files = OpenFiles(files, limit=config.log_max_open_files)
        self._files = files = PatientFiles(files, self._open_files.make_room)
        self._spares = SpareFiles(files)
        self._checkpoint = CheckpointFile(files, self._spares)
        self._producer_ids = ProducerIds(files)
        self._logs: dict[TopicIdPartition, PartitionLog] = {}
        self._checkpointing = Checkpointing(
            self._checkpoint, self._spares, self._logs, interval_ms=config.log_checkpoint_interval_ms
        )
        self._opening = PartitionOpening(config, files, self._open_files, lambda: self._producer_ids.next_id)
        self._resources: LogResources | None = None
        self._read_only_reason = ""
        self.time = DirectoryTime(files, clock)
        self.topics = TopicStore(files, self._spares)
        logs = LogsOfTopics(self._check_writable, self._make, self._unmake, self._add, self._configure, self._forget)
        self.changes = TopicChanges(config, files, self._spares, self.topics, logs)
        self.cluster_id = ""
        self.node_id = -1  # known once it is open
        self.leader_epoch = 0
        self.leader_epoch_id = new_leader_epoch_id()
        self.decided_members = DecidedMembers()

    # Opening and closing

    def open(self) -> RecoveryReport:
        """Opens the data directory and every log in it, for appends unless something is wrong. Raises DataDirectoryError."""
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
        meta = self._known_meta() or self._create()
        self.cluster_id = meta.cluster_id
        self.node_id = meta.node_id
        self.topics.open()
        self._producer_ids.open()
        self.decided_members = read_decided(self._files)
        ended_epoch = read_epoch(self._files)
        self.leader_epoch = ended_epoch + 1
        self._raise_epoch()
        # 2: the clean mark
        clean = take_clean_mark(self._files, ended_epoch, keep=bool(self._read_only_reason))
        # 3: the checkpoint
        entries = read_checkpoint(self._files)
        self._checkpoint.written = entries or {}
        unknown = remove_leftovers(self._files, self.topics) if not self._read_only_reason else []
        # If their topics become known again, their durable ends must be known too.
        unknown_tps = {parse_partition_directory(name) for name in unknown}
        kept = {tp: entry for tp, entry in (entries or {}).items() if tp in unknown_tps}
        if entries is None and self.topics.all():
            self._read_only_reason = self._read_only_reason or _NO_CHECKPOINT
        self._resources = LogResources(
            self._files, self._spares, self._open_files, self._config.max_producer_ids, self.write_checkpoint
        )
        self._checkpointing.open(self._resources, kept)
        # 4 to 7, each partition
        opened = self._opening.all(
            self.topics, entries or {}, clean, ended_epoch=ended_epoch, read_only_reason=self._read_only_reason
        )
        cut = self._take_all(opened)
        self.time.open(self._logs.values())
        self.expire_producers()  # whoever was silent by the log time
        # 8
        if not self._read_only_reason:
            self._settle_directory()
        self._checkpointing.captured(self._clock.monotonic_ms())
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

    def _known_meta(self) -> Meta | None:
        """This node's identity; None for a directory that is not in use yet. Raises DataDirectoryError."""
        meta = read_meta(self._files)
        if meta is None and any(parse_partition_directory(name) for name in self._files.listdir()):
            raise DataDirectoryError(
                "the data directory holds partitions, but its file 'meta' is missing; run `brokerd doctor` for details"
            )
        if meta is not None and self._config.node_id not in (-1, meta.node_id):
            raise DataDirectoryError(
                f"node.id is {self._config.node_id}, but the data directory belongs to node {meta.node_id}: set node.id = "
                f"{meta.node_id}, or leave it out; or data.dir may be another node's"
            )
        return meta

    def _create(self) -> Meta:
        self._checkpoint.write({}, self._checkpoint.capture())
        write_epoch(self._files, 0)
        self.topics.create()
        self._producer_ids.create()
        return create_meta(self._files, max(0, self._config.node_id))

    def _raise_epoch(self) -> None:
        """Makes this start's epoch durable. If that fails, nothing may be appended, but existing data is served."""
        try:
            write_epoch(self._files, self.leader_epoch, self._spares)
        except OSError as error:
            self._read_only_reason = f"the leader epoch could not be written ({error.strerror}); check the disk and restart"
            logger.error("the data directory is read-only: %s", self._read_only_reason)

    def _settle_directory(self) -> None:
        """Writes the checkpoint and allocates spare files for the next start. On a full disk the old checkpoint remains, which is
        still true, and the spare files are left for operations that free space.
        """
        try:
            self._checkpointing.job().run()
            make_epoch_slots(self._files)
        except OSError as error:
            logger.warning("the checkpoint could not be written at the start (%s): it is retried", error.strerror)

    def _take_all(self, opened: Iterable[Opened]) -> dict[TopicPartition, int]:
        """Adds the logs of all partitions; returns the torn tails that were cut off, in bytes."""
        cut = {}
        for topic, config, tp, entry, found, is_read_only in opened:
            self._add(topic, config, {tp: found})
            log, cut_bytes = self._logs[tp], found.cut_bytes
            if cut_bytes:
                cut[TopicPartition(topic.name, tp.partition)] = cut_bytes
                logger.warning(
                    "%s: cut a torn tail of %d bytes, the log ends at offset %d", log.name, cut_bytes, log.log_end_offset
                )
            if log.damage:
                logger.error("%s", log.damage)
            if is_read_only or log.damage:
                self._checkpointing.keep(tp, entry)
        return cut

    def close(self) -> None:
        """Flushes everything, writes snapshots, the checkpoint and the clean mark, and releases the lock. Call it once, last.

        Logs that have stopped are left alone: the next start recovers them.
        """
        try:
            if self._resources is not None and not self._read_only_reason:
                self._close_logs()
        finally:
            self._open_files.close()
            self._files.close()

    def _close_logs(self) -> None:
        clean = end_logs(self._files, self._logs.values())
        self.time.now_ms()
        self.time.note()()
        try:
            with contextlib.suppress(OSError):  # an older one is still true
                self.write_checkpoint()
            write_clean_mark(self._files, self.leader_epoch, clean, self._spares)
        except OSError as error:
            logger.warning("could not close cleanly (%s): the next start recovers the logs", error.strerror)
        unclean = [log.name for tp, log in self._logs.items() if tp not in clean]
        if unclean:
            logger.warning("%d logs did not close cleanly, the first is %s: the next start recovers them", len(unclean), unclean[0])

    # Topics: what their changes do to logs

    def _check_writable(self) -> None:
        if self._read_only_reason:
            raise StorageError(f"the data directory is read-only: {self._read_only_reason}")

    def _make(self, topic: Topic, config: TopicConfig, tp: TopicIdPartition) -> Recovered:
        return self._opening.new(topic, config, tp, ended_epoch=self.leader_epoch - 1)

    def _unmake(self, tp: TopicIdPartition) -> None:
        self._open_files.drop(f"{tp.directory_name}/{offset_file(0, LOG_SUFFIX)}")

    def _add(self, topic: Topic, config: TopicConfig, recovered: Mapping[TopicIdPartition, Recovered]) -> None:
        assert self._resources is not None
        for tp, found in recovered.items():
            self._logs[tp] = PartitionLog(
                tp,
                topic.name,
                config,
                self._resources,
                found.state,
                leader_epoch=self.leader_epoch,
                leader_epoch_id=self.leader_epoch_id,
            )

    def _configure(self, topic: Topic, config: TopicConfig) -> None:
        for partition in range(topic.partition_count):
            self._logs[TopicIdPartition(topic.id, partition)].core.config = config

    def _forget(self, topic: Topic) -> None:
        for partition in range(topic.partition_count):
            tp = TopicIdPartition(topic.id, partition)
            log = self._logs.pop(tp, None)
            self._checkpointing.forget(tp)
            if log is not None:
                log.mark_deleted()

    # Logs

    def partition(self, tp: TopicIdPartition) -> PartitionLog:
        """Raises UnknownTopicIdError, UnknownTopicOrPartitionError."""
        log = self._logs.get(tp)
        if log is None or tp.topic_id in OWN_TOPICS:
            topic = self.topics.by_id(tp.topic_id)
            raise UnknownTopicOrPartitionError(
                f"topic '{topic.name}' has partitions 0 to {topic.partition_count - 1}, not {tp.partition}"
            )
        return log

    def get(self, tp: TopicIdPartition) -> PartitionLog | None:
        """The log of a client's topic, if there is one."""
        return self._logs.get(tp) if tp.topic_id not in OWN_TOPICS else None

    def partitions(self) -> list[PartitionLog]:
        """All logs of clients' topics."""
        return [log for log in self._logs.values() if log.tp.topic_id not in OWN_TOPICS]

    def own_log(self, topic: Topic) -> PartitionLog | None:
        """The log of one of the broker's own topics; None if it was never needed."""
        return self._logs.get(TopicIdPartition(topic.id, 0))

    @property
    def free_producer_id(self) -> int:
        """The lowest producer id that has not been assigned."""
        return self._producer_ids.next_id

    @property
    def has_producer_id(self) -> bool:
        """True if next_producer_id need not wait."""
        return self._producer_ids.has_next

    def next_producer_id(self) -> int:
        """A producer id that was never assigned before. Raises StorageError."""
        run_here(self.reserve_producer_ids())
        return self._producer_ids.take()

    def reserve_producer_ids(self) -> Steps[None]:
        """Reserves ids, so that next_producer_id need not wait; one call at a time. Raises StorageError."""
        self._check_writable()
        try:
            yield from self._producer_ids.reserve()
        except OSError as error:
            raise StorageError(f"no producer id could be reserved ({error.strerror})", retry_after_ms=200) from error

    def roll_expired(self) -> list[PartitionLog]:
        """The first half of retention: rolls last segments that have expired. Flush their logs before `retire`."""
        if self._read_only_reason:
            return []
        return roll_expired(self._logs.values(), now_ms=self.time.now_ms())

    def retire(self) -> Steps[int]:
        """The second half: moves log starts and removes segments; returns how many. Raises OSError."""
        if self._read_only_reason:
            return 0
        now = self.time.now_ms()
        yield self.time.note()
        return (yield from self._retire(list(self._logs.values()), now))

    def _retire(self, logs: Sequence[PartitionLog], now_ms: int) -> Steps[int]:
        return (
            yield from retire(
                logs,
                self._files,
                self._spares,
                self._checkpoint,
                self._log_starts_job,
                now_ms=now_ms,
            )
        )

    def delete_records(self, asked: Sequence[tuple[PartitionLog, int]]) -> Steps[list[WireError | None]]:
        """Moves the log starts of many partitions; see retention.py."""
        return delete_records(asked, self._log_starts_job)

    def give_up_below(self, log: PartitionLog, offset: int) -> Steps[WireError | None]:
        """Moves the log start of one log, durably, and removes the segments below it. Returns why the log start could not move.
        Raises OSError if files could not be removed: the next round of retention tries again."""
        (error,) = yield from self.delete_records([(log, offset)])
        if error is None:
            yield from self._retire([log], self.time.now_ms())
        return error

    def expire_producers(self) -> int:
        """Forgets producers idle for producer.id.expiration.ms; returns how many."""
        before = self.time.now_ms() - self._config.producer_id_expiration_ms
        return sum(log.core.expire_producers(before) for log in self._logs.values())

    # Checkpoint

    def checkpoint_job(self, now_ms: int) -> CheckpointJob | None:
        """A checkpoint write, if one is due: something changed, and log.checkpoint.interval.ms have passed since the last one."""
        return None if self._read_only_reason else self._checkpointing.job_if_due(now_ms)

    def write_checkpoint(self) -> None:
        """Writes the checkpoint now. Raises OSError."""
        self._log_starts_job()()

    def _log_starts_job(self) -> Job:
        return self._checkpointing.job().run_on_full_disk
