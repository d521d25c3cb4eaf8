"""Runs a guide of docs/ as a reader would: writes its files and runs its commands in one shell, with three changes. The broker
listens on a free port; the next command waits for that, as a reader types no faster, while commands give up after ten seconds; and
nothing is installed: the PATH is that of an activated environment. No assertions here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import SkipTest

from tests.support.ports import held_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PORT = "9192"
_TOOLS = ("curl", "openssl")  # that a reader has, and a machine for tests perhaps not
_TIMEOUT_S = 800  # below a test's 900 s, so that the output of a hanging guide is seen
_START = re.compile(r"^brokerd start .*&$", re.MULTILINE)
_BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def run_guide(
    name: str, directory: Path, ports: Mapping[str, str] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs all ```bash blocks of a page in one shell in `directory`, where blocks with a title become files. The shell stops at the
    first command that fails, and kills what it started. `ports` maps further ports in the page to free ones. `environment` is added
    to the shell's. Raises SkipTest if the guide uses a tool that is not installed."""
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
            commands.append(_START.sub(r"\g<0>\nlistens", fitted))
    missing = [tool for tool in _TOOLS if any(f"{tool} " in text for text in commands) and shutil.which(tool) is None]
    if missing:
        raise SkipTest(f"{name} needs {' and '.join(missing)}")
    listens = f"listens() {{ until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do kill -0 $!; sleep 0.05; done; }}"
    script = "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", listens, *commands])
    environment = {
        **os.environ,
        **more,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROKERD_PORT": port,
        "BROKERD_BOOTSTRAP_SERVER": f"127.0.0.1:{port}",
    }
    environment.pop("PYSPARK_PYTHON", None)  # set for these tests, not by a reader
    return subprocess.run(
        ["bash", "-c", script], cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
