"""The findings of `brokerd doctor`, damage for it to find, and a directory's content."""

from __future__ import annotations

import contextlib
from pathlib import Path

from brokerd.datadir.node_state import join_cluster
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.partition_check import Finding, Severity
from brokerd.storage.files import RealFiles


def errors_in(data_dir: Path) -> list[Finding]:
    """The findings that are errors."""
    return [finding for finding in check_data_dir(str(data_dir)) if finding.severity is Severity.ERROR]


def coordinator_segment(data_dir: Path) -> Path:
    """The only segment of the coordinator's log."""
    (path,) = data_dir.glob(f"{COORDINATOR.id.hex()}-0/*.log")
    return path


def topic_segment(data_dir: Path) -> Path:
    """The only segment of a client's partition 0."""
    (path,) = (path for path in data_dir.glob("*-0/*.log") if path.parent.name != f"{COORDINATOR.id.hex()}-0")
    return path


def flip(path: Path, at: int) -> None:
    """Damages one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def join(data_dir: Path) -> None:
    """Makes the directory that of node 3 of cluster prod."""
    with contextlib.closing(RealFiles(str(data_dir))) as files:
        join_cluster(files, 3, "prod")


def tree(root: Path) -> dict[str, bytes]:
    """The content of all files except the lock."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}
