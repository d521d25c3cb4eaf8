"""Names of files in a data directory. No name contains a string chosen by a client.

lock meta node-epoch clean-shutdown checkpoint topics                     state of the data directory itself
spare-0 to spare-3                                                        space reserved for a full disk
clock                                                                     the wall clock, the log time and the boot clock
decided-members                                                           an operator's decisions on members whose markers are lost
<topic id>-<partition>/<base offset, 20 digits>.log .index                a segment and its index
<topic id>-<partition>/<offset, 20 digits>.snapshot                       producer state below that offset
<topic id>-<partition>/leader-epochs                                      start offset of each leader epoch
<topic id>-<partition>/holes                                              offsets that an operator accepted as lost or took out
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from brokerd.ids import TopicIdPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
SNAPSHOT_SUFFIX = ".snapshot"
LEADER_EPOCHS = "leader-epochs"
HOLES = "holes"
LOCK = "lock"
META = "meta"
NODE_EPOCH = "node-epoch"
CLEAN_SHUTDOWN = "clean-shutdown"
CHECKPOINT = "checkpoint"
TOPICS = "topics"
CLOCK = "clock"
DECIDED_MEMBERS = "decided-members"

TEMPORARY_SUFFIX = ".tmp"
_OWN = {LOCK, META, NODE_EPOCH, CLEAN_SHUTDOWN, CHECKPOINT, TOPICS, CLOCK, DECIDED_MEMBERS}

_OFFSET_FILE = re.compile(r"([0-9]{20})(\.[a-z]+)")
_SPARE = re.compile(r"spare-[0-9]")
_PARTITION = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,9})")


def is_foreign(name: str) -> bool:
    """True for names that brokerd never creates, except hidden files and `lost+found`."""
    return not (
        name.removesuffix(TEMPORARY_SUFFIX) in _OWN
        or _SPARE.fullmatch(name)
        or _PARTITION.fullmatch(name)
        or name.startswith(".")
        or name == "lost+found"
    )


def spare_file(number: int) -> str:
    """Name of a spare file (spare_files.py)."""
    return f"spare-{number}"


def offset_file(offset: int, suffix: str) -> str:
    """Name of a file that belongs to an offset; the names sort by offset."""
    return f"{offset:020d}{suffix}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """(offset, suffix), or None if the name has another form."""
    match = _OFFSET_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets of the files with this suffix among the names of a directory, ascending."""
    parsed = map(parse_offset_file, names)
    return sorted(entry[0] for entry in parsed if entry is not None and entry[1] == suffix)


def parse_partition_directory(name: str) -> TopicIdPartition | None:
    """The partition whose directory has this name, or None."""
    match = _PARTITION.fullmatch(name)
    return TopicIdPartition(bytes.fromhex(match[1]), int(match[2])) if match else None
