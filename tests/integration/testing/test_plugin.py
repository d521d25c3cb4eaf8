"""Goal: the fixtures work under pytest, in parallel too, and cost a project that does not use them nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.identities import AUTH_FILE, TOKENS

# Loads the module, not the entry point: this environment may predate it. tests/test_wheel.py tests the entry point.
PLUGIN = ("-p", "no:brokerd", "-p", "brokerd.testing.plugin", "-p", "no:cacheprovider")

USES = """
import pytest
from brokerd import Producer


@pytest.fixture
def brokerd_settings():
    return {"num.partitions": 3}


@pytest.mark.parametrize("number", range(4))
def test_a_topic(brokerd_broker, brokerd_topic, number):
    brokerd_topic.append([f"v{number}"])
    with Producer(bootstrap_servers=brokerd_broker.bootstrap_servers) as producer:
        producer.send(brokerd_topic.name, f"w{number}", partition=2)
    assert {row.value for row in brokerd_topic.rows()} == {f"v{number}".encode(), f"w{number}".encode()}
"""

SECURED = """
import pytest
from brokerd.testing import Broker


@pytest.fixture
def brokerd_settings():
    return {"auth.file": "auth.toml"}


@pytest.fixture
def brokerd_client():
    return {"auth.token.file": "boss.token"}


def test_a_topic(brokerd_topic):
    brokerd_topic.append(["v"])
    assert len(brokerd_topic.rows()) == 1
"""

CLUSTER = """
import pytest


@pytest.fixture
def brokerd_settings():
    return {"num.partitions": 3}


def test_a_topic(brokerd_cluster):
    topic = brokerd_cluster.create_topic("topic")
    topic.append([f"v{number}" for number in range(100)])
    assert [brokerd_cluster.leader("topic", partition) for partition in range(3)] == [1, 2, 3]
    assert len(topic.rows()) == 100


def test_with_a_fault_that_meets_nothing(brokerd_cluster):
    brokerd_cluster.nodes[3].kill_after("Produce")
"""

FAILS = """
def test_that_fails(brokerd_broker):
    print(f"broker {brokerd_broker.pid} in {brokerd_broker.directory}")
    raise KeyboardInterrupt


def test_with_a_fault_that_meets_nothing(brokerd_broker):
    brokerd_broker.kill_after("Produce")


def test_that_fails_before_its_fault(brokerd_broker):
    brokerd_broker.kill_after("Produce")
    assert False
"""

USES_NOT = """
import os
import sys


def test_nothing_is_imported():
    assert [name for name in os.environ if name.startswith("GRPC_")] == []
    assert [name for name in sys.modules if name.split(".")[0] in ("grpc", "pyarrow", "pyspark", "numpy", "asyncio")] == []
    assert sorted(name for name in sys.modules if name.startswith("brokerd")) == [
        "brokerd", "brokerd.testing", "brokerd.testing.plugin"
    ]
"""


def pytest_run(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on one file, in its own directory."""
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *PLUGIN, *options, str(directory)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}  # this process has a client
    environment = {**clean, "TMPDIR": str(directory)}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory, env=environment)


def left_behind(directory: Path) -> list[Path]:
    return list(directory.glob("brokerd-testing-*"))


def test_fixtures_in_one_process(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, USES, "-p", "no:xdist")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert left_behind(tmp_path) == []


def test_fixtures_under_xdist(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, USES, "-n", "2")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert left_behind(tmp_path) == []


def test_a_cluster(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, CLUSTER, "-p", "no:xdist")
    assert done.returncode == 1, done.stdout
    assert "2 passed, 1 error" in done.stdout
    assert "ERROR test_it.py::test_with_a_fault_that_meets_nothing" in done.stdout
    assert left_behind(tmp_path) == []


def test_fixtures_with_authentication(tmp_path: Path) -> None:
    (tmp_path / "auth.toml").write_text(AUTH_FILE)
    (tmp_path / "boss.token").write_text(TOKENS["boss"])
    done = pytest_run(tmp_path, SECURED, "-p", "no:xdist")
    assert done.returncode == 0, done.stdout


def test_a_run_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, FAILS, "-p", "no:xdist", "-s")
    assert done.returncode == 2, done.stdout
    pid = done.stdout.partition("broker ")[2].partition(" ")[0]
    assert not Path("/proc", pid).exists()
    assert left_behind(tmp_path) == []


def test_a_fault_that_met_nothing_fails_its_test_and_none_that_has_failed_before(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, FAILS, "-p", "no:xdist", "-k", "with_a_fault or before_its_fault")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 deselected, 1 error" in done.stdout
    assert "UnmetFaultError: no request came for a fault that the test has ordered" in done.stdout
    assert "ERROR test_it.py::test_with_a_fault_that_meets_nothing" in done.stdout


def test_a_project_that_uses_nothing_pays_nothing(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, USES_NOT, "-p", "no:xdist", "-p", "no:timeout", "-p", "no:_hypothesis_pytestplugin")
    assert done.returncode == 0, done.stdout
