"""After a start, a broker's objects are exempt from garbage collection, which would block its event loop. Runs in a child process,
because the collector is process-wide.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.wait import DEADLINE_S

_PROGRAM = """
import gc, os, signal, sys
from brokerd.cli import main
from brokerd.cli import start

def end_when_ready(state):
    if state == start.READY:
        os.kill(os.getpid(), signal.SIGTERM)

start.notify = end_when_ready
code = main(["start", "--data-dir", sys.argv[1], "--port", "0"])
print(code, len(gc.get_objects()), gc.get_freeze_count())
"""


def test_what_there_is_when_a_broker_is_ready_is_collected_no_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "data")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.splitlines()
    code, walked, left_out = map(int, told[-1].split())
    assert code == 0
    assert left_out > 10 * walked, (left_out, walked)
