"""Checks a data directory offline: every header and payload CRC, every index, snapshot and checkpoint against the log.

`check_data_dir` changes nothing. The repairs are those that need an operator's decision; the next start does the rest. They rebuild
the checkpoint, accept damage as lost (a hole), give up damage with everything after it, take out a batch that cannot be decoded, or
decide the outcome of members whose markers are lost. rebuild.py rebuilds the directory's other files.

In a cluster, a repaired copy counts as complete: it stays in the in-sync set, and if it is elected, records that only other copies
have are lost. So a repair needs the operator's word that no other copy is left, and covers only those partitions (`only_copies`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from brokerd.coordinator.markers import Outcome
from brokerd.datadir.checkpoint import lost_leader_epoch, read_checkpoint, write_checkpoint
from brokerd.datadir.node_state import Meta, read_meta, read_node_epoch, take_clean_mark
from brokerd.datadir.partition_directories import cut_log
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import BrokerdError, DataDirectoryError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.offline.coordinator_log import IF_UNUSABLE, is_coordinator_log
from brokerd.offline.lost_markers import (
    decide,
    decide_by_markers,
    find_lost_markers,
    findings_of,
    problem_of_log,
)
from brokerd.offline.partition_check import OUTDATED, Finding, PartitionCheck, Severity, decoding_problem
from brokerd.partition.log_state import LOST_ENTRY, CheckpointEntry
from brokerd.record.batch import RecordBatch
from brokerd.record.header import crc_seed
from brokerd.record.schema import payload_crc
from brokerd.storage.files import Files, RealFiles
from brokerd.storage.holes import Hole, read_holes, write_holes
from brokerd.storage.names import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    DECIDED_MEMBERS,
    HOLES,
    META,
    NODE_EPOCH,
    TOPICS,
    parse_partition_directory,
)
from brokerd.storage.segment_walk import batches_of

_CONSEQUENCES = {
    META: "`--rebuild-lost` gives the cluster a new id and this node the id 0; for a node alone nothing else depends on them. "
    "One of several cannot come back to its cluster without this file: start it with an empty directory, and it gets its copies "
    "from the other nodes. Rebuild only what has no other copy: it is a node alone then, from which the records can be read.",
    NODE_EPOCH: "`--rebuild-lost` continues far above the last known one, and loses nothing.",
    TOPICS: "All records are intact, but only this file holds names and settings of topics; a damaged file can still be read by "
    "eye. `--rebuild-lost --name ID=NAME ...` restores the names, where ID is the first 32 digits of a partition's directory. "
    "Settings must be set again, and topics that were being deleted come back. One of several nodes gets all of this from etcd.",
}

_END_UNKNOWN = (
    "this is the coordinator's log, of transactions and of group offsets, and the checkpoint is lost, which tells where it ends: "
    "the broker does not start until that is rebuilt"
)


class _Directory:
    """A data directory, and the files that describe it. `entries`: the checkpoint's, with durable ends raised to those in the
    clean-shutdown mark; from the mark alone if the checkpoint is lost. `findings` concern these files.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.topics = TopicStore(files)
        self.meta: Meta | None = None  # None if it is lost
        self._node_epoch: int | None = None  # None if it is lost
        self.findings: list[Finding] = []
        for name, read in (
            (META, self._read_meta),
            (NODE_EPOCH, self._read_node_epoch),
            (TOPICS, self.topics.open),
        ):
            try:
                read()
            except BrokerdError as error:
                text = f"{error}. The broker does not start. {_CONSEQUENCES[name]}"
                self.findings.append(Finding(Severity.ERROR, name, text))
        found = read_checkpoint(files, self.elections)
        self.entries = found or {}
        self.is_checkpoint_lost = found is None
        if self.is_checkpoint_lost:
            text = "the checkpoint is missing or damaged: the broker starts read-only, or not at all; see `--rebuild-checkpoint`"
            self.findings.append(Finding(Severity.ERROR, CHECKPOINT, text))
        for tp, clean in take_clean_mark(files, -1 if self._node_epoch is None else self._node_epoch, keep=True).items():
            self.entries[tp] = self.entries.get(tp, LOST_ENTRY).known_durable(clean.log_end_offset)

    def _read_meta(self) -> None:
        self.meta = read_meta(self.files)
        if self.meta is None:
            raise DataDirectoryError(f"the file {META} of the data directory is missing")

    def _read_node_epoch(self) -> None:
        self._node_epoch = read_node_epoch(self.files)

    def check_only_copies(self, names: Collection[str], only_copies: Collection[str], held: Collection[str]) -> None:
        """Checks that the partitions `names` may be repaired. Raises DataDirectoryError if they may have other copies, or if one of
        `only_copies` is not in `held`, the partitions of this directory.
        """
        if self.meta is None and names:
            raise DataDirectoryError(
                f"the file {META} is lost, which says whether this is a node of a cluster, and other nodes may have whole copies: "
                "nothing was changed. Put it back from a backup, or rebuild it with `--rebuild-lost`: the node is alone then"
            )
        if only_copies and self.meta is not None and not self.meta.cluster_name:
            raise DataDirectoryError("this is the directory of a node alone, without other copies: leave --only-copy out")
        others = sorted(set(only_copies) - set(held))
        if others:
            raise DataDirectoryError(f"--only-copy: there is no partition '{others[0]}' here, and nothing was changed")
        if names and not only_copies and self.meta is not None and self.meta.cluster_name:
            first, *more = sorted(names)
            what = f"{first} and {len(more)} more" if more else first
            raise DataDirectoryError(
                f"this is node {self.meta.node_id} of cluster '{self.meta.cluster_name}', and other nodes may have whole copies of "
                f"{what}: nothing was changed. A repaired copy passes for whole, and may lead without what the others have. See "
                "`brokerd cluster status`: where another copy is in sync, take this one away with `brokerd cluster reassign` and "
                "give it back, or start this node with an empty directory. Where no other copy is left, name the partition, as in "
                f"`--only-copy {first}`; the others stay as they are"
            )

    @property
    def has_topics(self) -> bool:
        """False if the topics file is lost."""
        return not any(finding.path == TOPICS for finding in self.findings)

    @property
    def node_epoch(self) -> int:
        """The node epoch. Raises DataDirectoryError if it is lost."""
        if self._node_epoch is None:
            raise DataDirectoryError("the node epoch is missing or damaged; rebuild it first, with `--rebuild-lost`")
        return self._node_epoch

    @property
    def elections(self) -> int:
        """How often starts have raised the leader epochs: each start of a standalone node raises them by one. 0 in a cluster, where
        the controller elects, and an epoch above etcd's would make the node conclude that etcd was set back to an older state.
        """
        return 0 if self._node_epoch is None or (self.meta is not None and self.meta.cluster_name) else self._node_epoch

    def durable_checks(self) -> list[PartitionCheck]:
        """A check of each partition, not yet run. Raises DataDirectoryError if the node epoch is lost, or the checkpoint, without
        which durable ends are unknown."""
        if self.is_checkpoint_lost:
            raise DataDirectoryError("the checkpoint is missing or damaged; rebuild it first")
        _ = self.node_epoch
        return self.checks()

    def checks(self, *, of_unknown_topics: bool = False, decodes_records: bool = False) -> list[PartitionCheck]:
        """A check of each partition, not yet run."""
        partitions: dict[TopicIdPartition, str] = {}
        if of_unknown_topics or not self.has_topics:
            found = ((parse_partition_directory(name), name) for name in self.files.listdir())
            partitions.update((tp, name) for tp, name in found if tp is not None)
        for topic in self.topics.all():
            for number in topic.partitions_here:
                partitions[TopicIdPartition(topic.id, number)] = str(TopicPartition(topic.name, number))
        return [
            PartitionCheck(
                self.files,
                tp,
                name,
                self.entries.get(tp, LOST_ENTRY),
                is_durable_end_known=not self.is_checkpoint_lost,
                decodes_records=decodes_records,
            )
            for tp, name in partitions.items()
        ]

    def unknown_directories(self) -> Iterator[Finding]:
        """Findings on partition directories that belong to no topic."""
        known = {topic.id: topic.partitions_here for topic in self.topics.all()}
        for name in self.files.listdir():
            tp = parse_partition_directory(name)
            if tp is not None and tp.partition not in known.get(tp.topic_id, ()):
                text = "the directory of a deleted topic: the next start removes it"
                if tp.topic_id not in self.topics.deleting:
                    text = "the directory belongs to no known topic; the broker leaves it alone if it holds data"
                yield Finding(Severity.WARNING, name, text)


@contextlib.contextmanager
def locked(path: str) -> Iterator[Files]:
    """The files of a data directory, locked against brokers. Raises DataDirectoryError."""
    with contextlib.closing(RealFiles(path, must_exist=True)) as files:
        names = files.listdir()
        if META not in names and not any(map(parse_partition_directory, names)):
            raise DataDirectoryError(f"{path} is not a data directory of brokerd: it has no file '{META}' and no partitions")
        files.lock()
        yield files


def check_data_dir(path: str, *, decodes_records: bool = False) -> list[Finding]:
    """All findings, in order of the files. `decodes_records`: also check that readers can decode each batch. Raises
    DataDirectoryError if a broker uses the directory, or if it is no data directory.
    """
    with locked(path) as files:
        directory = _Directory(files)
        findings = directory.findings
        checks = directory.checks(decodes_records=decodes_records)
        for check in checks:
            found = check.run()
            findings.extend(found)
            if is_coordinator_log(check.tp) and not check.is_given_up:
                if directory.is_checkpoint_lost:
                    findings.append(check.finding(Severity.ERROR, "", _END_UNKNOWN))
                is_unusable = any(finding.severity is Severity.ERROR for finding in found)
                findings.extend(_of_coordinator_log(files, check, is_unusable=is_unusable))
        if directory.has_topics:
            findings.extend(directory.unknown_directories())
        if not directory.is_checkpoint_lost:
            findings.extend(findings_of(files, find_lost_markers(files, checks)))
        if directory.meta is not None and any(finding.severity is Severity.ERROR for finding in findings):
            findings[:0] = _of_cluster(directory.meta)
        return findings


def _of_cluster(meta: Meta) -> Iterator[Finding]:
    """The note that precedes all other findings on a cluster's node: other nodes may have good copies."""
    if meta.cluster_name:
        text = (
            f"this is node {meta.node_id} of cluster '{meta.cluster_name}', and other nodes may have good copies: look at `brokerd "
            "cluster status` first. Where another copy is in sync, neither repair this one nor restore it: take it away with "
            "`brokerd cluster reassign` and give it back, or start this node with an empty directory. What follows is for "
            "partitions without another copy: name them with `--only-copy`"
        )
        yield Finding(Severity.NOTE, META, text)


def _of_coordinator_log(files: Files, check: PartitionCheck, *, is_unusable: bool) -> Iterator[Finding]:
    """The consequence of errors in the coordinator's log, of which the broker needs every record; and the error of a log whose
    batches are intact but which ends too early, as after a rebuilt checkpoint."""
    if is_unusable:
        yield check.finding(Severity.ERROR, "", IF_UNUSABLE)
    elif problem := problem_of_log(files, check):
        consequence = "the broker does not start, since commits could be lost or repeated"
        yield check.finding(Severity.ERROR, "", f"{problem}: {consequence}. Restore the whole directory from a copy")


def rebuild_checkpoint(path: str, only_copies: Collection[str] = ()) -> list[Finding]:
    """Rebuilds a missing or damaged checkpoint. The intact part of each log and everything below the ends in the clean-shutdown
    mark, the newest intact snapshot and the holes count as durable; the rest counts as a torn tail. In a cluster, this holds for
    `only_copies`; all other partitions count as damaged at their ends, where acknowledged records may be missing. Returns notes on
    what it wrote. Raises DataDirectoryError if the checkpoint is intact.
    """
    with locked(path) as files:
        directory = _Directory(files)
        if not directory.is_checkpoint_lost:
            raise DataDirectoryError("the checkpoint is in order; nothing to do")
        node_epoch = directory.node_epoch
        entries, findings = {}, []
        checks = directory.checks(of_unknown_topics=True)  # their topics may be restored later
        held = [check.name for check in checks]
        directory.check_only_copies(held, only_copies, held)
        for check in checks:
            is_lost = check.tp.directory_name not in files.listdir()
            check.run()
            epoch = lost_leader_epoch(check.epochs, directory.elections)
            entries[check.tp] = CheckpointEntry(check.first_offset, check.end_offset, check.first_offset, epoch)
            text = f"it starts at offset {check.first_offset}, and its next record gets offset {check.end_offset}"
            if check.damaged:
                text += "; it is damaged, as `brokerd doctor` says now"
            if is_lost:  # a new, empty partition would assign its offsets again
                entries[check.tp] = entries[check.tp]._replace(durable_end=check.end_offset + 1)
                text = "its directory is missing: it counts as damaged"
            elif only_copies and check.name not in only_copies:
                entries[check.tp] = entries[check.tp]._replace(durable_end=check.end_offset + 1)
                text += "; it counts as damaged there: take it away with `brokerd cluster reassign`, and give it back"
            elif check.torn_bytes:
                text += f"; the next start cuts {check.torn_bytes} bytes there, since nothing tells whether they were durable"
            findings.append(Finding(Severity.NOTE, CHECKPOINT, text, check.name, check.end_offset))
        _replace_checkpoint(files, node_epoch, entries)
        return findings


def accept_damaged(path: str, only_copies: Collection[str] = ()) -> list[Finding]:
    """Accepts each damaged range as lost: it becomes a hole, and reading it is an error. From the next start on, the broker serves
    the rest of the partition and accepts appends. In a cluster, repairs `only_copies` alone. Returns notes on holes, and findings
    on lost markers and lost files of the directory. Raises DataDirectoryError.
    """
    return _with_damaged(path, only_copies, _accept)


def give_up_damaged(path: str, only_copies: Collection[str] = ()) -> list[Finding]:
    """In each damaged partition, permanently gives up the first damaged batch and everything after it. Their offsets become a
    hole and are not reused. Otherwise like `accept_damaged`. May be repeated after a crash.
    """
    return _with_damaged(path, only_copies, _give_up)


def take_out(path: str, partition: str, offset: int, only_copies: Collection[str] = ()) -> list[Finding]:
    """Takes the batch at `offset` out of a partition (named topic-number): readers skip it from the next start on. Its bytes stay:
    its offsets are not reused, and its producer's sequence numbers still count. In the coordinator's log, of which every record is
    needed, the batch counts as lost instead. Returns a note. Raises DataDirectoryError, and changes nothing, if there is no such
    batch, if it is the coordinator's and intact, or if another node of the cluster may have it intact. Idempotent.
    """
    with locked(path) as files:
        directory = _Directory(files)
        check = next((check for check in directory.durable_checks() if check.name == partition), None)
        if check is None:
            raise DataDirectoryError(f"there is no partition '{partition}': give it as TOPIC-NUMBER, such as events-0")
        durable_end = check.entry.durable_end
        if not check.first_offset <= offset < durable_end:
            raise DataDirectoryError(
                f"offset {offset} of {partition} cannot be taken out: only durable batches can be, offsets "
                f"{check.first_offset} to {durable_end - 1}; a start of the broker recovers later ones"
            )
        batches = batches_of(files, check.tp, offset)  # the reference keeps the batch's file open
        found = next((one for one in batches if one[2].next_offset > offset), None)
        if found is None or found[2].base_offset > offset:
            raise DataDirectoryError(f"{partition} has no whole batch at offset {offset}: for damage use `--accept-damaged`")
        file, position, header = found
        is_own = is_coordinator_log(check.tp)
        batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
        problem = decoding_problem(check.tp, batch)
        if is_own and problem is None:
            raise DataDirectoryError(f"the batch of {partition} at offset {offset} is intact: without it commits could be lost")
        is_changed = payload_crc(batch.payload) != header.payload_crc  # if not, no other copy can be decoded either
        if only_copies or problem is None or is_changed:
            directory.check_only_copies([partition], only_copies, [partition])
        check.holes = read_holes(files, check.tp.directory_name, crc_seed(check.tp))
        _write_holes(files, check, [Hole(header.base_offset, header.next_offset, is_taken_out=not is_own)])
        what = "count as lost" if is_own else "are taken out: readers skip them"
        text = f"offsets {header.base_offset} to {header.last_offset}, one batch, {what}"
        return [check.finding(Severity.NOTE, HOLES, text, header.base_offset)]


def _with_damaged(
    path: str, only_copies: Collection[str], repair: Callable[[Files, PartitionCheck], list[Finding]]
) -> list[Finding]:
    with locked(path) as files:
        directory = _Directory(files)
        checks = directory.durable_checks()
        findings: list[Finding] = []
        for check in checks:
            check.run()
            if check.is_outdated and check.damaged:
                raise DataDirectoryError(f"{check.name} is not repaired, nor is any other partition: {OUTDATED}")
        damaged = [check.name for check in checks if check.damaged]
        directory.check_only_copies(damaged, only_copies, [check.name for check in checks])
        for check in checks:
            if check.damaged and (not only_copies or check.name in only_copies):
                findings.extend(repair(files, check))
        if findings:
            # Last, since it drops the clean-shutdown mark, which may be the only file with the latest durable ends.
            for check in checks:
                if directory.entries.get(check.tp, LOST_ENTRY).leader_epoch == LOST_ENTRY.leader_epoch:
                    epoch = lost_leader_epoch(check.epochs, directory.elections)
                    directory.entries[check.tp] = check.entry._replace(leader_epoch=epoch)
            _replace_checkpoint(files, directory.node_epoch, directory.entries)
            lost = find_lost_markers(files, checks)
            decide_by_markers(files, lost)
            findings.extend(findings_of(files, lost))
        return directory.findings + findings


def decide_members(path: str, producer_ids: Collection[int] = (), *, is_committed: bool) -> list[Finding]:
    """Decides that members whose markers are lost are committed or aborted: those of `producer_ids`, or all whose outcome is
    unknown. The next start applies the decision; until then it may be repeated or changed. Returns notes. Raises
    DataDirectoryError.
    """
    outcome = Outcome.COMMITTED if is_committed else Outcome.ABORTED
    with locked(path) as files:
        checks = _Directory(files).durable_checks()
        for check in checks:
            check.run()
        chosen = decide(files, find_lost_markers(files, checks), outcome, producer_ids)
        text = f"the next start takes the records of producer {{}} for {outcome.value}"
        return [Finding(Severity.NOTE, DECIDED_MEMBERS, text.format(producer_id)) for producer_id in chosen]


def _accept(files: Files, check: PartitionCheck) -> list[Finding]:
    _write_holes(files, check, check.damaged)
    text = "offsets {} to {} are accepted as lost, the log continues"
    return [
        check.finding(Severity.NOTE, HOLES, text.format(hole.first_offset, hole.until_offset - 1), hole.first_offset)
        for hole in check.damaged
    ]


def _give_up(files: Files, check: PartitionCheck) -> list[Finding]:
    assert check.cut is not None
    first, end = check.damaged[0].first_offset, check.end_offset
    # The hole first: after a crash between the two steps, it covers the remaining data.
    _write_holes(files, check, [Hole(first, end)])
    cut_log(files, check.tp, *check.cut)
    text = f"offsets {first} to {end - 1} are given up ({max(check.entry.durable_end - first, 0)} were durable)"
    return [check.finding(Severity.NOTE, "", text, first)]


def _write_holes(files: Files, check: PartitionCheck, holes: list[Hole]) -> None:
    directory = check.tp.directory_name
    if directory not in files.listdir():
        files.mkdir(directory)
        files.sync_dir()
    write_holes(files, directory, crc_seed(check.tp), [*check.holes, *holes])


def _replace_checkpoint(files: Files, node_epoch: int, entries: dict[TopicIdPartition, CheckpointEntry]) -> None:
    """Writes the checkpoint, and removes the clean-shutdown mark."""
    write_checkpoint(files, node_epoch, entries)
    if CLEAN_SHUTDOWN in files.listdir():
        files.unlink(CLEAN_SHUTDOWN)
        files.sync_dir()
