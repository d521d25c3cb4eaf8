"""All logs of one data directory: startup with recovery, topics, retention, the checkpoint, shutdown.

Startup follows the nine steps in ARCHITECTURE.md ("Recovery"); partition/recovery.py recovers one partition. The daemon provides
timers and threads.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.node_state import (
    CleanLogs,
    ClusterIdentity,
    DecidedMembers,
    Meta,
    check_cluster,
    check_not_foreign,
    create_meta,
    create_node_epoch,
    read_decided,
    read_meta,
    read_node_epoch,
    take_clean_mark,
    write_clean_mark,
    write_node_epoch,
)
from brokerd.datadir.partition_directories import remove_leftovers
from brokerd.datadir.partition_opening import Opened, PartitionOpening, RecoveryReport
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.replica_changes import ReplicaChanges
from brokerd.datadir.retention import Retention
from brokerd.datadir.topic_changes import TopicChanges
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import DataDirectoryError, counted
from brokerd.ids import PRODUCER_NUMBERS, TopicPartition
from brokerd.partition.partition import FlushTask, LogResources, Partition
from brokerd.steps import Job
from brokerd.storage.files import Files, is_no_space, is_too_many_open
from brokerd.storage.names import parse_partition_directory
from brokerd.storage.open_files import OpenFiles, PatientFiles
from brokerd.storage.refusals import Refusals
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")
_CLOSING_THREADS_MAX = 32
_LOGS_PER_THREAD = 8  # fewer are not worth a thread
_NO_CHECKPOINT = "the checkpoint of the data directory is missing or damaged; run `brokerd doctor` for advice"


class LogManager:
    """Owns everything in one open data directory. Not thread-safe, except where a method says otherwise."""

    def __init__(self, config: BrokerConfig, files: Files, clock: Clock, *, cluster: ClusterIdentity | None = None) -> None:
        """`cluster`: the cluster that this node belongs to; None = a node alone."""
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._open_files = OpenFiles(files, limit=config.log_max_open_files)
        self._files = files = PatientFiles(files, self._open_files)
        self._spares = SpareFiles(files)
        self.checkpoint_problem = ""  # why the durable ends of the logs are unknown
        self.topics = TopicStore(files, self._spares)
        self.partitions = PartitionTable(self.topics, elects_itself=cluster is None)
        self.resources = LogResources(files, self._spares, self._open_files, config.max_producer_ids)
        self.resources.refusals = self.refusals = Refusals(config.data_dir, clock)
        self._checkpoint = Checkpoint(
            files, self._spares, self.partitions, self.resources.moved, interval_ms=config.log_checkpoint_interval_ms
        )
        # A node alone learns which producer numbers have been issued once its coordinator is loaded (CoordinatorHost).
        free = PRODUCER_NUMBERS if cluster is None else 0
        self._opening = PartitionOpening(config, self.resources, free, may_be_cut=cluster is not None)
        self._is_open = False
        self.time = DirectoryTime(files, clock)
        self.retention = Retention(files, self._spares, self.partitions, self._checkpoint, self.time)
        self.changes = TopicChanges(config, files, self._spares, self.topics, self.partitions, self._opening, self._checkpoint)
        self.replicas = ReplicaChanges(files, self.topics, self.partitions, self._opening, self._checkpoint)
        self.cluster_id = self.directory_id = ""  # set by `open`
        self.node_id = -1  # set by `open`
        self.node_epoch = 0  # set by `open`
        self.decided_members = DecidedMembers()

    # Opening and closing

    def open(self) -> RecoveryReport:
        """Opens the data directory and recovers every log in it; damaged or unwritable logs open read-only. Raises
        DataDirectoryError.
        """
        path = self._config.data_dir
        try:
            return self._open()
        except OSError as error:
            raise DataDirectoryError(f"{path} cannot be opened: {_why_not_opened(error)}, and start again") from error
        except DataDirectoryError as error:
            if path in error.message:
                raise
            raise DataDirectoryError(f"{path}: {error.message}") from error

    def _open(self) -> RecoveryReport:
        # 1: lock, version
        check_not_foreign(self._files)
        self._files.lock()
        self._spares.find()
        meta = self._known_meta() or self._create()
        self.cluster_id, self.directory_id = meta.cluster_id, meta.directory_id
        self.node_id = self.partitions.node_id = meta.node_id
        self.topics.open()
        self.decided_members = read_decided(self._files)
        ended = read_node_epoch(self._files)
        elections = self._opening.ended_node_epoch = ended if self.partitions.elects_itself else 0
        # 2: the checkpoint, the node epoch
        found = read_checkpoint(self._files, elections)
        if found is None and (self.topics.all() or any(map(parse_partition_directory, self._files.listdir()))):
            self.checkpoint_problem = self._opening.read_only_reason = _NO_CHECKPOINT
        self._register(ended)
        # 3: the clean mark
        clean = take_clean_mark(self._files, ended, keep=bool(self._opening.read_only_reason))
        unknown = remove_leftovers(self._files, self.topics) if not self._opening.read_only_reason else []
        # Keep the entries of unknown directories: their durable ends are needed if the topics are restored.
        unknown_tps = {parse_partition_directory(name) for name in unknown}
        written = found or {}
        kept = {tp: entry for tp, entry in written.items() if tp in unknown_tps}
        self._checkpoint.open(self.node_epoch, written, kept)
        # 4 to 7, each partition
        cut = self._take_all(self._opening.all(self.topics, found, clean))
        self._is_open = True  # not before: `close` would write a checkpoint without the partitions that could not be opened
        self.partitions.elect(self.partitions)
        self.time.open(self.partitions)
        self.expire_producers()
        # 8
        self.retention.is_off = bool(self._opening.read_only_reason)
        if not self._opening.read_only_reason:
            self._settle_directory()
        self._checkpoint.captured(self._clock.monotonic_ms())
        unclean = sum(partition.tp not in clean for partition in self.partitions)
        return RecoveryReport(
            was_clean=bool(clean) and not unclean,
            unclean=unclean,
            partitions=len(self.partitions),
            cut_bytes=cut,
            damaged={TopicPartition(log.topic, log.tp.partition): log.damage for log in self.partitions if log.damage},
            read_only_reason=self._opening.read_only_reason,
            unknown_directories=unknown,
        )

    def _known_meta(self) -> Meta | None:
        """The directory's identity; None if it is not in use yet. Raises DataDirectoryError."""
        meta = read_meta(self._files)
        if meta is None and any(parse_partition_directory(name) for name in self._files.listdir()):
            raise DataDirectoryError(
                "the data directory holds partitions, but its file 'meta' is missing; run `brokerd doctor` for details"
            )
        if meta is not None and self._config.node_id not in (-1, meta.node_id):
            rest = ", or leave it out" if self._cluster is None else ""  # a node of a cluster needs node.id
            raise DataDirectoryError(
                f"node.id is {self._config.node_id}, but the data directory belongs to node {meta.node_id}: set node.id = "
                f"{meta.node_id}{rest}; or data.dir may be another node's"
            )
        if meta is not None:
            check_cluster(meta, self._cluster)
        return meta

    def _create(self) -> Meta:
        write_checkpoint(self._files, 0, {})
        create_node_epoch(self._files)
        self.topics.create()
        return create_meta(self._files, max(0, self._config.node_id), self._cluster)

    def _register(self, ended: int) -> None:
        """Writes this life's node epoch. First syncs the directory: a killed broker may have renamed a checkpoint without syncing,
        and segments are removed according to the checkpoint. On failure the directory becomes read-only. In a read-only directory
        nothing is written: the clean-shutdown mark is valid only for the node epoch on disk.
        """
        self.node_epoch = ended + 1
        if self._opening.read_only_reason:
            return
        try:
            self._files.sync_dir()
            write_node_epoch(self._files, self.node_epoch)
        except OSError as error:
            self._opening.read_only_reason = f"the node epoch could not be written ({error.strerror}); check the disk and restart"
            logger.error("the data directory is read-only: %s", self._opening.read_only_reason)

    def _settle_directory(self) -> None:
        """Writes the checkpoint and creates missing spare files. On a full disk the old checkpoint remains, which is still valid,
        and the spare files are left for operations that free space.
        """
        try:
            self._checkpoint.job()()
        except OSError as error:
            logger.warning("the checkpoint could not be written at the start (%s): it is retried", error.strerror)

    def _take_all(self, opened: Iterable[Opened]) -> dict[TopicPartition, int]:
        """Adds the opened partitions to the table; returns the bytes cut off each torn tail."""
        cut = {}
        for log, state, kept_entry in opened:
            self.partitions.add(log)
            if state.cut_bytes:
                cut[TopicPartition(log.topic, log.tp.partition)] = state.cut_bytes
                text = "%s: cut a torn tail of %d bytes, the log ends at offset %d"
                logger.warning(text, log.name, state.cut_bytes, log.ends.log_end_offset)
            if log.damage:
                logger.error("%s", log.damage)
            if kept_entry is not None:
                self._checkpoint.keep(log.tp, kept_entry, with_epoch=state.is_outdated)
        return cut

    def close(self) -> None:
        """Flushes everything, writes snapshots, the checkpoint and the clean-shutdown mark, and releases the lock. Call it once,
        last. Leaves stopped logs as they are; the next start recovers them.
        """
        try:
            if self._is_open and not self._opening.read_only_reason:
                self._close_logs()
        finally:
            self._open_files.close()
            self._files.close()

    def _close_logs(self) -> None:
        clean = _end_logs(self.partitions)
        self.time.now_ms()
        self.time.note()()
        try:
            with contextlib.suppress(OSError):  # the previous checkpoint is still valid
                self.write_checkpoint()
            write_clean_mark(self._files, self.node_epoch, clean, self._spares)
        except OSError as error:
            logger.warning("could not close cleanly (%s): the next start recovers the logs", error.strerror)
        unclean = [log.name for log in self.partitions if log.tp not in clean]
        if unclean:
            count = counted(len(unclean), "log")
            them = "it" if len(unclean) == 1 else "them"
            logger.warning("%s did not close cleanly, the first is %s: the next start recovers %s", count, unclean[0], them)

    def expire_producers(self) -> int:
        """Expires producers silent for producer.id.expiration.ms; returns how many. A node that does not lead a partition
        remembers them twice as long: it must not know less than the leader, whose clock may be behind."""
        silence_ms, now_ms = self._config.producer_id_expiration_ms, self.time.now_ms()
        return sum(one.producers.expire(now_ms - silence_ms * (1 if one.is_leader else 2)) for one in self.partitions)

    def checkpoint_job(self, now_ms: int) -> Job | None:
        """A checkpoint write; None unless something changed and log.checkpoint.interval.ms have passed since the last. Its result
        updates `refusals`. While the disk refuses writes, one is due even without a change, to detect the disk's recovery.
        """
        if self._opening.read_only_reason:
            return None
        job = self._checkpoint.job_if_due(now_ms, is_forced=self.refusals.since_ms is not None)
        if job is None:
            return None

        def tried() -> None:
            try:
                job()
            except OSError as error:
                if not is_too_many_open(error):
                    self.refusals.refused(error)
                raise
            self.refusals.worked()

        return tried

    def write_checkpoint(self) -> None:
        """Writes the checkpoint now. Raises OSError."""
        self._checkpoint.job(makes_room=True)()


def _end_logs(partitions: Iterable[Partition]) -> CleanLogs:
    """Flushes the logs and writes their indexes and snapshots; returns the logs that closed cleanly. A failure of one log does not
    affect the others. A log whose index or snapshot could not be written still counts as clean.

    Logs are closed in parallel: most of the time is spent waiting for the disk, and concurrent syncs share journal commits. Files
    that are up to date are not rewritten, so idle partitions cost nothing.
    """
    partitions = list(partitions)
    _flush(partitions)
    clean = {}
    for partition, ended in zip(partitions, _for_all(Partition.write_end, partitions), strict=True):
        if isinstance(ended, Exception):
            logger.error("%s: internal error at its end: the next start recovers it", partition.name, exc_info=ended)
        elif ended is not None:
            clean[partition.tp] = ended
    return clean


def _flush(partitions: Iterable[Partition]) -> None:
    tasks = [(partition, task) for partition in partitions if (task := partition.prepare_flush()) is not None]
    for (partition, task), error in zip(tasks, _for_all(FlushTask.run, [task for _, task in tasks]), strict=True):
        if error is None:
            partition.complete_flush(task)
        else:
            partition.fail_flush(task, error)


def _for_all(do: Callable[[T], U], items: Sequence[T]) -> list[U | Exception]:
    """The result or the exception of `do` for each item. Runs in threads if there are many items."""

    def done(item: T) -> U | Exception:
        try:
            return do(item)
        except Exception as error:
            return error

    threads = min(_CLOSING_THREADS_MAX, len(items) // _LOGS_PER_THREAD)
    if threads <= 1:
        return [done(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="brokerd-close") as pool:
        return list(pool.map(done, items))


def _why_not_opened(error: OSError) -> str:
    """The cause, the file, and the remedy."""
    what = f"{error.strerror} ({error.filename})" if error.filename else f"{error.strerror}"
    if is_no_space(error):
        return f"{what}: free some space on its disk"
    if error.errno == errno.EROFS:
        return f"{what}: its file system takes no writes, mount it for writing"
    return f"{what}: check its disk, and who may write there"
