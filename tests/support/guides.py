"""Runs a guide of docs/ as a reader would: its files are written, its commands run one after the other in one shell.

As written, but for two things: the broker listens on a port that is free, and nothing is installed: the PATH is that of an
activated environment. No assertions here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.ports import held_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PORT = "9192"
_TIMEOUT_S = 800  # for what hangs: below the 900 s of a test, so that its output is seen
_BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def run_guide(
    name: str, directory: Path, ports: Mapping[str, str] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The shell that has run all ```bash blocks of a page in `directory`; blocks with a title are files there. It stops at the
    first command that fails, and nothing that it started outlives it. `ports`: free ones in place of others that the page names.
    `environment` is added to its own."""
    with held_port() as port:
        return _run(name, directory, {_PORT: str(port), **(ports or {})}, environment)


def _run(name: str, directory: Path, ports: Mapping[str, str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    commands = []
    port = ports[_PORT]
    for language, title, text in _BLOCK.findall((DOCS / name).read_text()):
        fitted = re.sub("|".join(map(re.escape, ports)), lambda found: ports[found[0]], text)
        if title:
            (directory / title).write_text(fitted)
        elif language == "bash":
            commands.append(fitted)
    script = "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *commands])
    environment = {
        **os.environ,
        **more,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROKERD_PORT": port,
        "BROKERD_BOOTSTRAP_SERVER": f"127.0.0.1:{port}",
    }
    environment.pop("PYSPARK_PYTHON", None)  # of these tests, not of a reader
    return subprocess.run(
        ["bash", "-c", script], cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
