"""Checks a data directory offline: every header and payload CRC, every index, snapshot and checkpoint against the log.

`check_data_dir` changes nothing. The two repairs write one file, the checkpoint, and only because an operator asked: the
next start does the rest. Other files of the directory that are lost are rebuild.py's.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.errors import BrokerdError, DataDirectoryError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.log.checkpoint import NEW_PARTITION, CheckpointEntry, CheckpointFile, read_checkpoint
from brokerd.log.files import Files, RealFiles
from brokerd.log.names import CHECKPOINT, CLEAN_SHUTDOWN, LEADER_EPOCH, META, PRODUCER_IDS, TOPICS, parse_partition_directory
from brokerd.log.node_state import ProducerIds, read_epoch, read_meta
from brokerd.log.partition_check import Finding, PartitionCheck, Severity
from brokerd.log.topic_store import TopicStore

_CONSEQUENCES = {
    META: "With `--rebuild-lost` the cluster gets a new id and this node is 0; nothing else depends on it.",
    LEADER_EPOCH: "With `--rebuild-lost` it goes on far above all epochs in the logs; nothing is lost by that.",
    PRODUCER_IDS: "With `--rebuild-lost` ids go on far above all in the logs; nothing is lost by that.",
    TOPICS: "Records are all there, but names and settings of topics stand in this file alone; a damaged one is text to look into. "
    "`--rebuild-lost --name ID=NAME ...` gives topics their names back, ID being the first 32 digits of a partition's directory. "
    "Their settings are to be set again, and topics that were being deleted come back.",
}


class _Directory(NamedTuple):
    """What the data directory says of itself."""

    topics: TopicStore
    checkpoint: dict[TopicIdPartition, CheckpointEntry] | None
    epoch: int
    findings: list[Finding]


def check_data_dir(path: str) -> list[Finding]:
    """All that is wrong or worth knowing, in order of the files. Raises DataDirectoryError if a broker uses the directory,
    or if there is none.
    """
    files = RealFiles(path, must_exist=True)
    try:
        names = files.listdir()
        if META not in names and not any(map(parse_partition_directory, names)):
            raise DataDirectoryError(f"{path} is not a data directory of brokerd: it has no file '{META}' and no partitions")
        files.lock()
        directory = _read_directory(files)
        findings = directory.findings
        for check in _partition_checks(files, directory):
            findings.extend(check.run())
        if not any(finding.path == TOPICS for finding in findings):
            findings.extend(_unknown_directories(files, directory.topics))
        return findings
    finally:
        files.close()


def rebuild_checkpoint(path: str) -> list[Finding]:
    """Writes the checkpoint anew where it is missing or damaged, believing what is whole in each log to be durable. Returns what
    it wrote, as notes. Raises DataDirectoryError if there is a good one.
    """
    files = RealFiles(path, must_exist=True)
    try:
        files.lock()
        directory = _read_directory(files)
        if directory.checkpoint is not None:
            raise DataDirectoryError("the checkpoint is in order; nothing to do")
        entries, findings = {}, []
        for check in _partition_checks(files, directory):
            check.run()
            entries[check.tp] = CheckpointEntry(check.first_offset, check.end_offset, check.first_offset)
            text = f"{check.name} holds offsets {check.first_offset} to {check.end_offset}"
            findings.append(Finding(Severity.NOTE, CHECKPOINT, text, check.name, check.end_offset))
        _replace_checkpoint(files, entries)
        return findings
    finally:
        files.close()


def give_up_damaged(path: str) -> list[Finding]:
    """Gives up, in each damaged partition, the first damaged batch and all behind it: the next start cuts there. Returns what is
    given up, as notes. Raises DataDirectoryError.
    """
    files = RealFiles(path, must_exist=True)
    try:
        files.lock()
        directory = _read_directory(files)
        if directory.checkpoint is None:
            raise DataDirectoryError("the checkpoint is missing or damaged; rebuild it first")
        entries, findings = dict(directory.checkpoint), []
        for check in _partition_checks(files, directory):
            check.run()
            if check.first_damaged_offset is not None:
                entry = entries[check.tp]
                end = check.first_damaged_offset
                entries[check.tp] = CheckpointEntry(min(entry.recovery_point, end), end, min(entry.log_start_offset, end))
                text = f"{check.name}: offsets from {end} on are given up ({entry.durable_end - end} were durable)"
                findings.append(Finding(Severity.NOTE, CHECKPOINT, text, check.name, end))
        if findings:
            _replace_checkpoint(files, entries)
        return findings
    finally:
        files.close()


def _replace_checkpoint(files: Files, entries: dict[TopicIdPartition, CheckpointEntry]) -> None:
    file = CheckpointFile(files)
    file.write(entries, file.capture())
    if CLEAN_SHUTDOWN in files.listdir():
        files.unlink(CLEAN_SHUTDOWN)
        files.sync_dir()


def _read_directory(files: Files) -> _Directory:
    findings: list[Finding] = []
    topics, epoch = TopicStore(files), 2**31 - 1

    def lost(name: str, reason: str) -> None:
        text = f"{reason} The broker does not start. {_CONSEQUENCES[name]}"
        findings.append(Finding(Severity.ERROR, name, text))

    try:
        if read_meta(files) is None:
            lost(META, f"the file {META} of the data directory is missing.")
    except BrokerdError as error:
        lost(META, f"{error}.")
    try:
        epoch = read_epoch(files)
    except BrokerdError as error:
        lost(LEADER_EPOCH, f"{error}.")
    try:
        topics.open()
    except BrokerdError as error:
        lost(TOPICS, f"{error}.")
    try:
        ProducerIds(files).open()
    except BrokerdError as error:
        lost(PRODUCER_IDS, f"{error}.")
    entries = read_checkpoint(files)
    if entries is None:
        text = (
            "the checkpoint is missing or damaged: the broker starts read-only; `--rebuild-checkpoint` takes the logs as they are"
        )
        findings.append(Finding(Severity.ERROR, CHECKPOINT, text))
    return _Directory(topics, entries, epoch, findings)


def _partition_checks(files: Files, directory: _Directory) -> list[PartitionCheck]:
    checks = []
    if any(finding.path == TOPICS for finding in directory.findings):
        for name in files.listdir():
            tp = parse_partition_directory(name)
            if tp is not None:
                entry = (directory.checkpoint or {}).get(tp, NEW_PARTITION)
                checks.append(PartitionCheck(files, tp, name, entry, max_epoch=directory.epoch))
    for topic in directory.topics.list():
        for partition in range(topic.partition_count):
            tp = TopicIdPartition(topic.id, partition)
            entry = (directory.checkpoint or {}).get(tp, NEW_PARTITION)
            checks.append(PartitionCheck(files, tp, str(TopicPartition(topic.name, partition)), entry, max_epoch=directory.epoch))
    return checks


def _unknown_directories(files: Files, topics: TopicStore) -> list[Finding]:
    known = {topic.id: topic.partition_count for topic in topics.list()}
    findings = []
    for name in files.listdir():
        tp = parse_partition_directory(name)
        if tp is not None and tp.partition >= known.get(tp.topic_id, 0):
            text = "the directory of a deleted topic: the next start removes it"
            if tp.topic_id not in topics.deleting:
                text = "the directory belongs to no known topic; the broker leaves it alone if it holds data"
            findings.append(Finding(Severity.WARNING, name, text))
    return findings
