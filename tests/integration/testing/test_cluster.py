"""Goal: `with Cluster()` runs several real brokers, each of which can be broken alone, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import BrokerdError, ClientError, ConfigError
from brokerd.ids import NO_LEADER
from brokerd.testing import BrokerFailedError, Cluster, UnmetFaultError
from tests.integration.testing.processes import in_session_of, is_alive
from tests.support.child import child, first_line
from tests.support.wait import wait_until

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "testing.md").read_text()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test's temporary directories are created."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One cluster for tests that leave it intact."""
    with Cluster() as cluster:
        yield cluster


def test_its_nodes_are_brokers_that_share_topics(cluster: Cluster) -> None:
    assert cluster.bootstrap_servers == ",".join(cluster.nodes[node].bootstrap_servers for node in (1, 2, 3))
    topic = cluster.create_topic("shared", 6, {"retention.ms": "60000"})
    assert [cluster.leader("shared", partition) for partition in range(6)] == [1, 2, 3, 1, 2, 3]
    topic.append({"value": f"v{number}", "partition": number} for number in range(6))
    assert [row.value for row in cluster.topic("shared").rows()] == [b"v%d" % number for number in range(6)]
    assert [row.value for row in cluster.nodes[2].topic("shared").rows()] == [b"v%d" % number for number in range(6)]
    assert repr(cluster) == f"<Cluster of 3 nodes at {cluster.bootstrap_servers}>"


def test_settings_are_every_nodes() -> None:
    with Cluster(2, {"num.partitions": 4}, log_level="debug") as cluster:
        cluster.create_topic("four")
        assert [cluster.leader("four", partition) for partition in range(4)] == [1, 2, 1, 2]
        wait_until(lambda: all(" DEBUG " in node.log for node in cluster.nodes.values()))


@pytest.mark.parametrize("name", ["node.id", "cluster.name", "coordination.servers", "port", "advertised.port", "data.dir"])
def test_what_each_node_has_for_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is no setting of a testing Cluster: it gives each node its own"):
        Cluster(config={name: "1"})


@pytest.mark.parametrize("nodes", [0, 17, "3", True, 2.0])
def test_a_number_of_nodes_that_cannot_be_is_refused(nodes: Any) -> None:
    with pytest.raises(ConfigError, match="give a number from 1 to 16"):
        Cluster(nodes)


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'num\.partition'"):
        Cluster(num_partition=1)
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is no setting"):
        Cluster(client={"bootstrap.servers": "127.0.0.1:1"})


def test_what_is_not_there_is_named(cluster: Cluster) -> None:
    for act in (cluster.kill, cluster.restart, cluster.pause, cluster.resume, cluster.isolate, cluster.heal, cluster.expire):
        with pytest.raises(ConfigError, match="there is no node 4: this cluster has 1 to 3"):
            act(4)
    cluster.create_topic("two", 2)
    with pytest.raises(ConfigError, match="topic 'two' has no partition 2: it has 0 to 1"):
        cluster.leader("two", 2)


def test_a_cluster_is_of_use_between_start_and_close(temporary: Path) -> None:
    cluster = Cluster(1)
    with pytest.raises(BrokerdError, match=r"the cluster is not open: use it in `with Cluster\(\) as cluster:`, or call start"):
        cluster.create_topic("t")
    assert repr(cluster) == "<Cluster: not started>"
    cluster.start()
    with pytest.raises(BrokerdError, match="was started before"):
        cluster.start()
    cluster.close()
    cluster.close()
    with pytest.raises(BrokerdError, match="this Cluster was closed, and its data is gone: make another"):
        cluster.kill(1)
    assert repr(cluster) == "<Cluster: closed>"
    assert list(temporary.iterdir()) == []


def test_of_a_node_that_does_not_start_its_directory_alone_is_left(temporary: Path) -> None:
    (temporary / "auth.toml").write_text("nonsense")
    with pytest.raises(BrokerFailedError, match=r"node 1: the broker did not start: .*auth") as caught:
        Cluster(config={"auth.file": str(temporary / "auth.toml")}).start()
    (left,) = temporary.glob("brokerd-testing-*")
    assert f"its directory, which is kept, is {left}" in str(caught.value)


def test_a_node_that_is_killed_comes_back_with_its_data() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic("t", 3)
        topic.append({"value": "v", "partition": number} for number in range(3))
        cluster.kill(1)  # its keeper process has the test's clients
        cluster.expire(1)
        wait_until(lambda: cluster.leader("t", 0) == NO_LEADER)
        topic.append({"value": "w", "partition": number} for number in (1, 2))
        with pytest.raises(BrokerFailedError, match="was killed"):
            _ = cluster.nodes[1].pid
        cluster.restart(1)
        wait_until(lambda: cluster.leader("t", 0) == 1)
        assert Counter(row.value for row in topic.rows()) == {b"v": 3, b"w": 2}


def test_faults_of_a_node_happen_there(cluster: Cluster) -> None:
    topic = cluster.create_topic("faulty", 3)
    led = {cluster.leader("faulty", number): number for number in range(3)}
    fault, pid = cluster.nodes[2].kill_after("Produce"), cluster.nodes[2].pid
    topic.append({"value": "v", "partition": led[node]} for node in (1, 3))
    assert cluster.nodes[2].pid == pid
    topic.append([{"value": "v", "partition": led[2]}])
    assert fault.has_happened
    assert cluster.nodes[2].pid != pid
    assert len(topic.rows()) == 3


def test_a_fault_that_met_nothing_is_told_at_the_end(temporary: Path) -> None:
    with pytest.raises(UnmetFaultError), Cluster(2) as cluster:
        cluster.nodes[2].kill_after("Produce")
    assert list(temporary.iterdir()) == []


def test_the_coordination_store_survives_all_nodes_and_an_outage() -> None:
    with Cluster(2) as cluster:
        topic = cluster.create_topic("t", 2)
        topic.append({"value": "v", "partition": number} for number in range(2))
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.stop_coordination()
        with pytest.raises(BrokerFailedError, match=r"the broker did not start: etcd at 127\.0\.0\.1:\d+ does not answer"):
            cluster.restart(1)
        cluster.start_coordination()
        for node in cluster.nodes:
            cluster.restart(node)
        assert len(topic.rows()) == 2


def test_a_fork_has_no_cluster_and_ends_none(cluster: Cluster) -> None:
    cluster.create_topic("of-the-parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (lambda: cluster.kill(1), lambda: cluster.topic("of-the-parent"), lambda: cluster.nodes):
                with pytest.raises(ClientError, match="made before this process was forked"):
                    call()
            cluster.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert all(is_alive(node.pid) for node in cluster.nodes.values())


def test_the_guides_example() -> None:
    (example,) = re.findall(r"^```python\n(from brokerd\.testing import Cluster\n.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", example], check=True)


PROGRAM = """
import ctypes, signal
from brokerd.testing import Cluster
from brokerd.testing.warm_process import warm_pid
with Cluster() as cluster:
    cluster.create_topic("t")
    if ctypes.CDLL(None).fork() == 0:
        signal.pause()  # holds copies of every socket, as Python does not know of this fork
    print(warm_pid(), flush=True)
    signal.pause()
"""


def test_all_of_it_ends_with_a_killed_test(tmp_path: Path) -> None:
    with child([sys.executable, "-c", PROGRAM], env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        warm = int(first_line(process))
        forks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        try:
            assert len(in_session_of(warm)) == 9, "warm process, coordination, three keepers, three brokers, client"
            process.kill()
            wait_until(lambda: not in_session_of(warm), what="the warm process and all its forks are gone")
            wait_until(lambda: not list(tmp_path.iterdir()), what="the temporary directory is gone")
        finally:
            for pid in set(forks) - {warm}:
                os.kill(pid, signal.SIGKILL)
