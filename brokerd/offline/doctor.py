"""Checks a data directory offline: every header and payload CRC, every index, snapshot and checkpoint against the log.

`check_data_dir` changes nothing. The repairs are those that need an operator's decision; the next start does the rest. They rebuild
the checkpoint, accept damage as lost (a hole), give up damage with everything after it, take out a batch that cannot be decoded, or
decide the outcome of members whose markers are lost. rebuild.py rebuilds the directory's other files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from brokerd.datadir.checkpoint import Found, read_checkpoint, write_checkpoint
from brokerd.datadir.coordination import read_node_epoch
from brokerd.datadir.node_state import ProducerIds, read_meta, take_clean_mark
from brokerd.datadir.partition_directories import cut_log
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import BrokerdError, DataDirectoryError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.offline.lost_markers import (
    CheckedPartition,
    LostMarker,
    decide,
    decide_by_markers,
    find_lost_markers,
    findings_of,
    problem_of_log,
)
from brokerd.offline.own_logs import if_unusable, is_transaction_log
from brokerd.offline.partition_check import Finding, PartitionCheck, Severity
from brokerd.partition.log_state import CheckpointEntry
from brokerd.record.header import crc_seed
from brokerd.storage.damage import Hole, read_holes, write_holes
from brokerd.storage.files import Files, RealFiles
from brokerd.storage.names import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    DECIDED_MEMBERS,
    HOLES,
    META,
    NODE_EPOCH,
    PRODUCER_IDS,
    TOPICS,
    parse_partition_directory,
)
from brokerd.storage.segment_walk import batches_of
from brokerd.transaction.markers import Outcome

_CONSEQUENCES = {
    META: "With `--rebuild-lost` the cluster gets a new id and this node is 0; nothing else depends on it.",
    NODE_EPOCH: "With `--rebuild-lost` it continues far above the last one known; nothing is lost by that.",
    PRODUCER_IDS: "With `--rebuild-lost` ids continue far above all ids in the logs; nothing is lost by that.",
    TOPICS: "All records are there, but only this file holds names and settings of topics; if damaged, it is still legible. "
    "`--rebuild-lost --name ID=NAME ...` restores the names of topics, where ID is the first 32 digits of a partition's directory. "
    "Their settings must be set again, and topics that were being deleted come back.",
}


class _Directory(NamedTuple):
    """The files that describe the data directory."""

    topics: TopicStore
    checkpoint: Found | None
    node_epoch: int | None  # None if it is lost
    findings: list[Finding]


def check_data_dir(path: str, *, decodes_records: bool = False) -> list[Finding]:
    """All findings, in order of the files. `decodes_records`: also check that readers can decode each batch. Raises
    DataDirectoryError if a broker uses the directory, or if it is no data directory.
    """
    files = RealFiles(path, must_exist=True)
    try:
        names = files.listdir()
        if META not in names and not any(map(parse_partition_directory, names)):
            raise DataDirectoryError(f"{path} is not a data directory of brokerd: it has no file '{META}' and no partitions")
        files.lock()
        directory = _read_directory(files)
        findings = directory.findings
        checks = _partition_checks(files, directory, decodes_records=decodes_records)
        for check in checks:
            found = check.run()
            findings.extend(found)
            consequences = _if_own_log(check, found, is_read_only=directory.checkpoint is None)
            findings.extend(consequences or _if_incomplete(files, check, directory.checkpoint or Found({})))
        if not any(finding.path == TOPICS for finding in findings):
            findings.extend(_unknown_directories(files, directory.topics))
        if directory.checkpoint is not None:
            findings.extend(findings_of(files, _lost_markers(files, directory.checkpoint, checks)))
        return findings
    finally:
        files.close()


def _if_own_log(check: PartitionCheck, found: list[Finding], *, is_read_only: bool) -> list[Finding]:
    """What errors in one of the broker's internal logs lead to: the broker uses such a log as a whole or not at all."""
    is_unusable = is_read_only or any(finding.severity is Severity.ERROR for finding in found)
    consequence = if_unusable(check.tp)
    if consequence is None or not is_unusable:
        return []
    return [Finding(Severity.ERROR, check.tp.directory_name, consequence, check.name)]


def _if_incomplete(files: Files, check: PartitionCheck, checkpoint: Found) -> list[Finding]:
    """The error for a transaction log whose batches are intact but which ends too early, as after a rebuilt checkpoint."""
    if not is_transaction_log(check.tp):
        return []
    problem = problem_of_log(files, check.tp, checkpoint.of(check.tp).log_start_offset)
    if not problem:
        return []
    text = f"{problem}: the broker does not start, or commits could be lost or done twice. Restore the whole directory from a copy"
    return [Finding(Severity.ERROR, check.tp.directory_name, text, check.name)]


def rebuild_checkpoint(path: str) -> list[Finding]:
    """Rebuilds a missing or damaged checkpoint, assuming that the intact part of each log is durable. Returns notes on what it
    wrote. Raises DataDirectoryError if the checkpoint is intact.
    """
    with _locked(path) as files:
        directory = _read_directory(files)
        if directory.checkpoint is not None:
            raise DataDirectoryError("the checkpoint is in order; nothing to do")
        node_epoch = _node_epoch(directory)
        entries, findings = {}, []
        for check in _partition_checks(files, directory):
            check.run()
            # Each start raises the epoch by one, so no epoch since the last batch was higher.
            epoch = max(check.epochs.latest, 0) + node_epoch
            entries[check.tp] = CheckpointEntry(check.first_offset, check.end_offset, check.first_offset, epoch)
            text = f"{check.name} holds offsets {check.first_offset} to {check.end_offset}"
            findings.append(Finding(Severity.NOTE, CHECKPOINT, text, check.name, check.end_offset))
        _replace_checkpoint(files, node_epoch, entries)
        return findings


def accept_damaged(path: str) -> list[Finding]:
    """Accepts each damaged range as lost: it becomes a hole, and reading it is an error. From the next start on the rest of the
    partition is served and takes appends. Returns notes on holes, and findings on lost markers. Raises DataDirectoryError.
    """
    return _with_damaged(path, _accept)


def give_up_damaged(path: str) -> list[Finding]:
    """In each damaged partition, permanently gives up the first damaged batch and everything after it. Their offsets become a
    hole and are not reused. Returns notes on what was given up, and findings on lost markers. Raises DataDirectoryError. May be
    repeated after a crash.
    """
    return _with_damaged(path, _give_up)


def take_out(path: str, partition: str, offset: int) -> list[Finding]:
    """Takes the batch at `offset` out of a partition (named topic-number): readers skip it from the next start on. Its bytes stay:
    its offsets are not reused, and its producer's sequence numbers still count. Returns a note. Raises DataDirectoryError, and
    changes nothing, if there is no such batch. Idempotent.
    """
    with _locked(path) as files:
        check = next((check for check in _durable_checks(files)[2] if check.name == partition), None)
        if check is None:
            raise DataDirectoryError(f"there is no partition '{partition}': give it as TOPIC-NUMBER, such as events-0")
        if not check.first_offset <= offset < check.durable_end:
            raise DataDirectoryError(
                f"offset {offset} of {partition} cannot be taken out: only durable batches can be, offsets "
                f"{check.first_offset} to {check.durable_end - 1}; a start of the broker recovers later ones"
            )
        headers = (header for _, _, header in batches_of(files, check.tp, offset))
        header = next((one for one in headers if one.next_offset > offset), None)
        if header is None or header.base_offset > offset:
            raise DataDirectoryError(f"{partition} has no whole batch at offset {offset}: for damage use `--accept-damaged`")
        check.holes = read_holes(files, check.tp.directory_name, crc_seed(check.tp))
        _write_holes(files, check, [Hole(header.base_offset, header.next_offset, is_taken_out=True)])
        text = f"{partition}: offsets {header.base_offset} to {header.last_offset}, one batch, are taken out: readers skip them"
        return [Finding(Severity.NOTE, f"{check.tp.directory_name}/{HOLES}", text, partition, header.base_offset)]


def _with_damaged(path: str, repair: Callable[[Files, PartitionCheck], list[Finding]]) -> list[Finding]:
    with _locked(path) as files:
        node_epoch, checkpoint, checks = _durable_checks(files)
        findings: list[Finding] = []
        for check in checks:
            check.run()
            if check.damaged:
                findings.extend(repair(files, check))
        if findings:
            # Last, since it drops the clean mark, which alone may have had the latest durable ends.
            _replace_checkpoint(files, node_epoch, checkpoint.entries)
            lost = _lost_markers(files, checkpoint, checks)
            decide_by_markers(files, lost)
            findings.extend(findings_of(files, lost))
        return findings


def decide_members(path: str, producer_ids: Collection[int] = (), *, is_committed: bool) -> list[Finding]:
    """Decides that members whose markers are lost are committed or aborted: those of `producer_ids`, or all whose outcome is
    unknown. The next start carries it out; until then it may be repeated or changed. Returns notes. Raises DataDirectoryError.
    """
    outcome = Outcome.COMMITTED if is_committed else Outcome.ABORTED
    with _locked(path) as files:
        _, checkpoint, checks = _durable_checks(files)
        for check in checks:
            check.run()
        chosen = decide(files, _lost_markers(files, checkpoint, checks), outcome, producer_ids)
        text = f"the next start takes the records of producer {{}} for {outcome.value}"
        return [Finding(Severity.NOTE, DECIDED_MEMBERS, text.format(producer_id)) for producer_id in chosen]


def _lost_markers(files: Files, checkpoint: Found, checks: Iterable[PartitionCheck]) -> list[LostMarker]:
    """The lost markers; `checks` must have run."""
    partitions = [
        CheckedPartition(check.tp, check.name, checkpoint.of(check.tp), bool(check.holes or check.damaged)) for check in checks
    ]
    return find_lost_markers(files, partitions)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[Files]:
    """The data directory, locked against brokers. Raises DataDirectoryError."""
    files = RealFiles(path, must_exist=True)
    try:
        files.lock()
        yield files
    finally:
        files.close()


def _durable_checks(files: Files) -> tuple[int, Found, list[PartitionCheck]]:
    """The node epoch, the checkpoint, and a check of each partition (not yet run). Raises DataDirectoryError if the node epoch is
    lost, or the checkpoint, since durable ends are unknown then.
    """
    directory = _read_directory(files)
    if directory.checkpoint is None:
        raise DataDirectoryError("the checkpoint is missing or damaged; rebuild it first")
    return _node_epoch(directory), directory.checkpoint, _partition_checks(files, directory)


def _node_epoch(directory: _Directory) -> int:
    if directory.node_epoch is None:
        raise DataDirectoryError("the node epoch is missing or damaged; rebuild it first, with `--rebuild-lost`")
    return directory.node_epoch


def _accept(files: Files, check: PartitionCheck) -> list[Finding]:
    _write_holes(files, check, check.damaged)
    return [
        Finding(
            Severity.NOTE,
            f"{check.tp.directory_name}/{HOLES}",
            f"{check.name}: offsets {hole.first_offset} to {hole.until_offset - 1} are accepted as lost, the log continues",
            check.name,
            hole.first_offset,
        )
        for hole in check.damaged
    ]


def _give_up(files: Files, check: PartitionCheck) -> list[Finding]:
    assert check.cut is not None
    first, end = check.damaged[0].first_offset, check.end_offset
    # The hole first: after a crash between the two, it covers the remaining data.
    _write_holes(files, check, [Hole(first, end)])
    cut_log(files, check.tp, *check.cut)
    text = f"{check.name}: offsets {first} to {end - 1} are given up ({max(check.durable_end - first, 0)} were durable)"
    return [Finding(Severity.NOTE, check.tp.directory_name, text, check.name, first)]


def _write_holes(files: Files, check: PartitionCheck, holes: list[Hole]) -> None:
    directory = check.tp.directory_name
    if directory not in files.listdir():
        files.mkdir(directory)
        files.sync_dir()
    write_holes(files, directory, crc_seed(check.tp), [*check.holes, *holes])


def _replace_checkpoint(files: Files, node_epoch: int, entries: dict[TopicIdPartition, CheckpointEntry]) -> None:
    write_checkpoint(files, node_epoch, entries)
    _remove_clean_mark(files)


def _remove_clean_mark(files: Files) -> None:
    if CLEAN_SHUTDOWN in files.listdir():
        files.unlink(CLEAN_SHUTDOWN)
        files.sync_dir()


def _read_directory(files: Files) -> _Directory:
    findings: list[Finding] = []
    topics, node_epoch = TopicStore(files), None

    def lost(name: str, reason: str) -> None:
        text = f"{reason} The broker does not start. {_CONSEQUENCES[name]}"
        findings.append(Finding(Severity.ERROR, name, text))

    try:
        if read_meta(files) is None:
            lost(META, f"the file {META} of the data directory is missing.")
    except BrokerdError as error:
        lost(META, f"{error}.")
    try:
        node_epoch = read_node_epoch(files)
    except BrokerdError as error:
        lost(NODE_EPOCH, f"{error}.")
    try:
        topics.open()
    except BrokerdError as error:
        lost(TOPICS, f"{error}.")
    try:
        ProducerIds(files).open()
    except BrokerdError as error:
        lost(PRODUCER_IDS, f"{error}.")
    checkpoint = read_checkpoint(files, node_epoch or 0)
    if checkpoint is None:
        text = (
            "the checkpoint is missing or damaged: the broker starts read-only; `--rebuild-checkpoint` takes the logs as they are"
        )
        findings.append(Finding(Severity.ERROR, CHECKPOINT, text))
    else:
        for tp, clean in take_clean_mark(files, -1 if node_epoch is None else node_epoch, keep=True).items():
            checkpoint.entries[tp] = checkpoint.of(tp).known_durable(clean.log_end_offset)
    return _Directory(topics, checkpoint, node_epoch, findings)


def _partition_checks(files: Files, directory: _Directory, *, decodes_records: bool = False) -> list[PartitionCheck]:
    def check(tp: TopicIdPartition, name: str) -> PartitionCheck:
        entry = directory.checkpoint.of(tp) if directory.checkpoint is not None else None
        return PartitionCheck(files, tp, name, entry, decodes_records=decodes_records)

    checks = []
    if any(finding.path == TOPICS for finding in directory.findings):
        for name in files.listdir():
            tp = parse_partition_directory(name)
            if tp is not None:
                checks.append(check(tp, name))
    for topic in directory.topics.all():
        tps = [TopicIdPartition(topic.id, partition) for partition in range(topic.partition_count)]
        checks.extend(check(tp, str(TopicPartition(topic.name, tp.partition))) for tp in tps)
    return checks


def _unknown_directories(files: Files, topics: TopicStore) -> list[Finding]:
    known = {topic.id: topic.partition_count for topic in topics.all()}
    findings = []
    for name in files.listdir():
        tp = parse_partition_directory(name)
        if tp is not None and tp.partition >= known.get(tp.topic_id, 0):
            text = "the directory of a deleted topic: the next start removes it"
            if tp.topic_id not in topics.deleting:
                text = "the directory belongs to no known topic; the broker leaves it alone if it holds data"
            findings.append(Finding(Severity.WARNING, name, text))
    return findings
