"""Child processes whose output tests read. They are killed at the end of the block, whatever fails in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def child(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process with piped output, run in the project's root directory."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, env=env, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def resident_bytes(pid: int | str = "self", *, most: bool = False) -> int:
    """The resident set of a process, or its peak since exec (ru_maxrss would include the parent's)."""
    field = "VmHWM:" if most else "VmRSS:"
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) * 1_024


def first_line(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline()
