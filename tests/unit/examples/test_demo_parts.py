"""Goal: the demo's progress fits the terminal, Java is found as Spark finds it, and a signal ends all processes at once."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.wait import DEADLINE_S, wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_parts.progress
    import demo_parts.session

    yield demo_parts
    for name in [name for name in sys.modules if name.startswith("demo_parts")]:
        del sys.modules[name]


@pytest.mark.parametrize("columns", [20, 40, 60, 79, 80, 81, 200])
@pytest.mark.parametrize("rows", [0, 1, 300_000, 123_456_789])
def test_progress_never_reaches_the_terminals_last_column(parts: Any, columns: int, rows: int) -> None:
    rate = f" {rows * 10:>11,} rows/s" if rows else ""
    line = parts.progress.drawn("write", rows, 123_456_789, rate, columns=columns)
    assert len(line) < columns
    assert "write" in line


def test_progress_elsewhere_is_a_line_at_each_quarter(parts: Any) -> None:
    out = io.StringIO()
    bar = parts.progress.ProgressBar("read ", 100, out)
    for rows in (0, 10, 30, 31, 60, 100):
        bar.update(rows, 1.0)
    bar.finish()
    assert "\x1b" not in out.getvalue()
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["30%", "60%", "100%"]


def test_spark_runs_the_java_of_java_home_whatever_the_path_has(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    for home, path, is_found in (
        ("", java.parent, True),
        ("", tmp_path, False),
        (tmp_path, tmp_path, True),
        (tmp_path / "removed", java.parent, False),
    ):
        monkeypatch.setenv("JAVA_HOME", str(home))
        monkeypatch.setenv("PATH", str(path))
        assert (parts.session.java_problem() is None) == is_found, (home, path)


def test_spark_starts_outside_the_main_thread_where_it_would_take_ctrl_c(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(parts.session.SparkContext, "getOrCreate", lambda _: threads.append(threading.current_thread()))
    monkeypatch.setattr(parts.session.SparkSession, "builder", SimpleNamespace(getOrCreate=lambda: "session"))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # restored at the end
    assert parts.session.quiet_session(tmp_path, "test") == "session"
    assert threads
    assert threading.main_thread() not in threads


# A shell's background jobs and their children ignore SIGINT, so the program restores the default handlers first.
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
    wait_until(lambda: _has_ended(child))  # killed by now, but perhaps not reaped yet


def _has_ended(pid: int) -> bool:
    """True for a process that is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
