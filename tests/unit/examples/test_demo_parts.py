"""Goal: the demo's figures say what they measure, what Spark said is shown when it is wanted, progress fits its place, and a
signal ends it all at once."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.wait import DEADLINE_S, wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Batch(NamedTuple):
    """A micro-batch as Spark reports it."""

    numInputRows: int  # noqa: N815 (Spark's name)
    durationMs: Mapping[str, int]  # noqa: N815


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_parts.progress
    import demo_parts.session
    import demo_parts.timing

    yield demo_parts
    for name in [name for name in sys.modules if name.startswith("demo_parts")]:
        del sys.modules[name]


def test_first_micro_batch_is_in_one_figure_and_not_in_the_other(parts: Any) -> None:
    batches = [Batch(100, {"triggerExecution": 9_000}), Batch(0, {"triggerExecution": 50}), Batch(300, {"triggerExecution": 500})]
    timing = parts.timing.timing_of(batches, 10.0)
    assert timing == (400, 10.0, 300, 0.5)
    whole, later = timing.lines()
    assert whole.split()[:2] == ["40", "rows/s"]
    assert later.split()[:2] == ["600", "rows/s"]


def test_one_micro_batch_has_one_figure(parts: Any) -> None:
    timing = parts.timing.timing_of([Batch(100, {"triggerExecution": 900})], 1.0)
    assert len(timing.lines()) == 1


def test_last_words_are_the_end_of_the_log(parts: Any, tmp_path: Path) -> None:
    assert parts.session.last_words(tmp_path) == ""
    (tmp_path / "spark.log").write_text("".join(f"line {number}\n" for number in range(1_000)))
    words = parts.session.last_words(tmp_path).splitlines()
    assert "Last output of Spark:" in words
    assert words[-1] == "line 999"
    assert len(words) < 50


@pytest.mark.parametrize("columns", [20, 40, 60, 79, 80, 81, 200])
@pytest.mark.parametrize("rows", [0, 1, 300_000, 123_456_789])
def test_progress_never_reaches_the_terminals_last_column(parts: Any, columns: int, rows: int) -> None:
    rate = f" {rows * 10:>11,} rows/s" if rows else ""
    line = parts.progress.drawn("write", rows, 123_456_789, rate, columns=columns)
    assert len(line) < columns
    assert "write" in line


def test_progress_of_the_demo_has_a_bar_at_80_columns(parts: Any) -> None:
    line = parts.progress.drawn("write", 150_000, 300_000, "     612,345 rows/s", columns=80)
    assert abs(line.count("█") - line.count("░")) <= 1 < line.count("█")
    assert line.endswith(" 150,000 of 300,000 rows     612,345 rows/s")


def test_progress_elsewhere_is_a_line_at_each_quarter(parts: Any) -> None:
    out = io.StringIO()
    bar = parts.progress.ProgressBar("read ", 100, out)
    for rows in (0, 10, 30, 31, 60, 100):
        bar.update(rows, 1.0)
    bar.finish()
    assert "\x1b" not in out.getvalue()
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["30%", "60%", "100%"]


def test_progress_is_measured_on_the_terminal_and_drawn_in_what_it_can_show(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with open(controller, "rb", buffering=0) as shown, open(terminal, "w", encoding="ascii") as out:
        parts.progress.ProgressBar("read ", 100, out).update(50, 1.0)
        line = shown.read(1_000).decode().removeprefix("\r\x1b[2K")
    assert len(line) < 60
    assert abs(line.count("#") - line.count(".")) <= 1 < line.count("#")


# A shell's background jobs, and all that they start, ignore SIGINT: so it attends to signals first.
_INTERRUPTED = """
import os, signal, subprocess, sys, threading
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from pathlib import Path
from demo_parts.ending import quick_end
directory = Path(sys.argv[1])
(directory / "data").mkdir(parents=True)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True, stdout=subprocess.PIPE)
def complain():
    child.stdout.read()
    for stream in (1, 2):
        os.write(stream, b"the child is gone\\n")
threading.Thread(target=complain, daemon=True).start()
with quick_end(directory):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # as while Spark starts
    print(child.pid, flush=True)
    try:
        child.wait()
    finally:
        print("the rest was waited for", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_at_once_with_all_that_it_started(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "demo"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(directory)],
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    ) as demo:
        assert demo.stdout is not None
        line = demo.stdout.readline()
        assert line, demo.communicate(timeout=DEADLINE_S)
        child = int(line)
        demo.send_signal(number)
        out, error = demo.communicate(timeout=DEADLINE_S)
    assert (demo.returncode, out, error) == (128 + number, "", "\ninterrupted; everything is cleaned up\n")
    assert not directory.exists()
    wait_until(lambda: _has_ended(child))  # it is killed by then; to take it off the list is another's work


def _has_ended(pid: int) -> bool:
    """True for a process that is gone, or dead and only not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
