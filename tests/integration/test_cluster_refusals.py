"""Goal: a node with the wrong store, cluster name, directory or id exits with one sentence that says what to check, and neither it
nor the cluster loses anything. Method: `brokerd start` as a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from brokerd.client import blocking
from brokerd.clock import SystemClock
from brokerd.cluster.keys import Keys
from brokerd.coordination.client import CoordinationClient
from brokerd.testing import Broker, Cluster, Topic
from tests.integration.conftest import Terminal
from tests.support.clock import HastyClock
from tests.support.ports import held_port
from tests.support.wait import DEADLINE_S, wait_until

NAME = "testing"  # the name of every testing Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with data, which the tests do not change."""
    with Cluster(2) as cluster:
        filled(cluster)
        yield cluster


def filled(cluster: Cluster) -> Topic:
    topic = cluster.create_topic("orders", 4)
    topic.append({"value": f"v{number}", "partition": number % 4} for number in range(40))
    return topic


def files(directory: Path) -> dict[str, bytes]:
    """The files of a data directory, without those that each start and stop writes: the lock, the node epoch and derived files."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".lock"}


def command_of(directory: Path, cluster: str, coordination: str, node_id: int) -> list[str]:
    code = "import sys; from brokerd.cli import main; sys.exit(main())"
    flags = ["--data-dir", str(directory), "--port", "0", "--node-id", str(node_id)]
    of_cluster = ["--cluster", cluster, "--coordination", coordination] if cluster else []
    return [sys.executable, "-c", code, "start", *flags, *of_cluster]


class Process(subprocess.Popen[str]):
    """A process with its output."""

    stdout: IO[str]
    stderr: IO[str]


def starting(directory: Path, cluster: str, coordination: str, node_id: int) -> Process:
    """Starts a node."""
    command = command_of(directory, cluster, coordination, node_id)
    return Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(directory: Path, cluster: str, coordination: str, node_id: int) -> tuple[int, str]:
    """Exit code and last output of a node that must exit by itself."""
    command = command_of(directory, cluster, coordination, node_id)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout == "", "it is not ready"
    lines = [line for line in done.stderr.splitlines() if line.startswith("brokerd")]
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


def refused(directory: Path, text: str, *, cluster: str = NAME, coordination: str, node_id: int) -> None:
    """Asserts that a node refuses to start on a directory and does not change it."""
    before = files(directory)
    code, said = start(directory, cluster, coordination, node_id)
    assert code == 1
    assert text in said
    assert files(directory) == before


def test_a_store_that_was_emptied() -> None:
    with Cluster(2) as cluster:
        topic = filled(cluster)
        cluster.stop_coordination()
        cluster.start_coordination(is_empty=True)
        anew = "the registration of node {} ended: registering it anew"
        wait_until(lambda: all(anew.format(number) in node.log for number, node in cluster.nodes.items()))
        topic.append({"value": f"w{number}", "partition": number % 4} for number in range(40))
        assert len(topic.rows()) == 80, "nodes that run go on"
        directory = cluster.nodes[2].directory / "data"
        cluster.kill(2)
        text = "etcd knows no cluster 'testing', but this node's data directory is in use: check coordination"
        refused(directory, text, coordination=cluster.coordination, node_id=2)


def test_a_cluster_name_that_is_not_the_directorys(cluster: Cluster) -> None:
    cluster.kill(2)
    directory = cluster.nodes[2].directory / "data"
    text = "etcd knows no cluster 'testin', but this node's data directory is in use: check coordination"
    refused(directory, text, cluster="testin", coordination=cluster.coordination, node_id=2)
    text = "belongs to node 2 of cluster 'testing': start it with cluster.name = testing, node.id = 2, and coordination.servers"
    refused(directory, text, cluster="", coordination="", node_id=2)
    comes_back(cluster)


def comes_back(cluster: Cluster) -> None:
    """Asserts that node 2 starts as before, with all its data."""
    cluster.restart(2)
    wait_until(lambda: cluster.leader("orders", 1) == cluster.leader("orders", 3) == 2)
    assert len(cluster.topic("orders").rows()) == 40


def test_a_cluster_of_newer_nodes(tmp_path: Path) -> None:
    with Cluster(1) as cluster:
        put(cluster, Keys(NAME).feature_level, b"1000000")
        text = "the cluster's feature level is 1000000, and this version of brokerd knows none above"
        refused(tmp_path / "new", text, coordination=cluster.coordination, node_id=2)


def put(cluster: Cluster, key: str, value: bytes) -> None:
    """Writes a key of a cluster's store."""

    async def work() -> None:
        client = CoordinationClient([cluster.coordination.removeprefix("etcd://")], SystemClock())
        await client.transact({}, {key: value})
        await client.close()

    asyncio.run(work())


def test_a_directory_of_another_cluster(cluster: Cluster) -> None:
    with Cluster(1) as other:
        filled(other)
        other.kill(1)
        directory = other.nodes[1].directory / "data"
        text = "the data directory belongs to cluster 'testing' with id "
        refused(directory, text, coordination=cluster.coordination, node_id=1)
        other.restart(1)
        assert len(other.topic("orders").rows()) == 40


def test_a_directory_of_a_node_alone(cluster: Cluster, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic("orders").append(["v"])
    text = "the data directory belongs to a node alone, not to cluster 'testing'"
    refused(tmp_path / "data", text, coordination=cluster.coordination, node_id=0)


def test_a_directory_of_another_node(cluster: Cluster) -> None:
    cluster.kill(2)
    directory = cluster.nodes[2].directory / "data"
    text = "node.id is 1, but the data directory belongs to node 2: set node.id = 2; or data.dir may be another node's"
    refused(directory, text, coordination=cluster.coordination, node_id=1)
    comes_back(cluster)


def test_a_node_id_that_is_in_use(cluster: Cluster, tmp_path: Path) -> None:
    code, said = start(tmp_path / "new", NAME, cluster.coordination, 2)
    assert code == 1
    assert f"node id 2 is in use by {cluster.nodes[2].bootstrap_servers}, with another data directory: set another node.id" in said
    assert files(tmp_path / "new") == {}
    assert cluster.leader("orders", 1) == 2
    assert len(cluster.topic("orders").rows()) == 40


def test_a_copy_of_the_directory_of_a_node_that_runs(cluster: Cluster, tmp_path: Path) -> None:
    """A cloned machine would end the registration of the original and lead without what was written since."""
    shutil.copytree(cluster.nodes[2].directory / "data", tmp_path / "copy")
    code, said = start(tmp_path / "copy", NAME, cluster.coordination, 2)
    assert code == 1
    assert f"node 2 is running at {cluster.nodes[2].bootstrap_servers} with a copy of this data directory: to add a node" in said
    assert "the registration of node 2 ended" not in cluster.nodes[2].log
    assert len(cluster.topic("orders").rows()) == 40


def test_what_had_its_only_copy_on_a_lost_disk_is_said(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(2) as cluster:
        terminal.use(cluster.bootstrap_servers)
        cluster.create_topic("orders", 1)
        owner = cluster.leader("orders", 0)
        other = 3 - owner
        cluster.kill(owner)
        cluster.expire(owner)
        shutil.rmtree(Path(cluster.nodes[owner].directory) / "data")
        cluster.restart(owner)
        lost = f"no copy with all records is alive: they are on node {owner}'s former directory; put it back, or delete the topic"
        wait_until(lambda: f"  orders-0 has no leader at present: {lost}\n" in terminal.run("cluster", "status")[1])
        with monkeypatch.context() as patched:
            # The command gives up soon, although it has more than one attempt, and each attempt its time.
            patched.setattr(blocking, "SystemClock", lambda: HastyClock(step_ms=500))
            code, _, err = terminal.run("consume", "orders", "--exit")
        assert (code, lost in err) == (1, True)
        for words in (["reassign", "orders", "0", "--replicas", str(other)], ["move-leader", "orders", "0", str(owner)]):
            code, _, err = terminal.run("cluster", *words, "--wait")
            assert (code, err.endswith(f"{lost}\n")) == (1, True)
            terminal.run("cluster", "reassign", "orders", "0", "--stop")
        terminal.run("cluster", "reassign", "orders", "0", "--replicas", str(other))
        code, _, err = terminal.run("cluster", "drain", str(owner), "--wait")
        assert (code, "cannot be moved at present" in err) == (1, True)
        assert terminal.run("topics", "delete", "orders")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_waits_for_coordination_ends_at_once_when_it_is_asked(number: signal.Signals, tmp_path: Path) -> None:
    with held_port() as port, starting(tmp_path / "new", NAME, f"etcd://127.0.0.1:{port}", 1) as node:
        waits = f"waiting for it, as long as it takes (coordination.servers is etcd://127.0.0.1:{port})"
        assert waits in next(line for line in node.stderr if "does not answer (" in line)
        node.send_signal(number)
        assert node.wait(DEADLINE_S) == -signal.SIGTERM
    assert files(tmp_path / "new") == {}


def test_coordination_that_hangs_up_is_not_waited_for(tmp_path: Path) -> None:
    """etcd closes the connection of a node without TLS or without a certificate."""

    def hang_up(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,))
        thread.start()
        code, said = start(tmp_path / "new", NAME, f"etcd://127.0.0.1:{listener.getsockname()[1]}", 1)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert code == 1
    assert "does not answer (it closes connections at once: if it speaks TLS" in said
