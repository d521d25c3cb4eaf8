"""Guides of docs/ that need no Spark: their commands run as written, and their configuration files are valid."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import pytest

from brokerd.config.load import load_broker_config
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.guides import DOCS, run_guide
from tests.support.ports import held_port
from tests.support.real_etcd import ETCD, MISSING


def outcome(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def shell(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """One command of a guide, in an activated environment."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_backup_and_restore(tmp_path: Path) -> None:
    done = run_guide("backup.md", tmp_path)
    assert done.returncode == 0, outcome(done)
    lines = done.stdout.splitlines()
    assert lines.count("./backup: all in order, nothing to do") == lines.count("./data: all in order, nothing to do") == 1
    assert lines.count("a:1") == lines.count("b:2") == 1, "the copy of the topic, with its keys"
    assert lines.count("1") == lines.count("2") == 1, "what the restored directory holds"
    assert (tmp_path / "data-before").is_dir()


def test_reading_from_python(tmp_path: Path) -> None:
    done = run_guide("consumer.md", tmp_path)
    assert done.returncode == 0, outcome(done)
    rows = [line for line in done.stdout.splitlines() if line.startswith("b'")]
    assert sorted(row.rsplit(" ", 2)[0] for row in rows) == sorted(["b'ada' b'1'", "b'ada' b'3'", "b'bob' b'2'"] * 2)
    assert {"billed b'1'", "3 rows"} <= set(done.stdout.splitlines())
    bills = sorted(line for line in done.stdout.splitlines() if line.startswith("bill for"))
    assert bills == ["bill for 1", "bill for 2", "bill for 3"]
    assert -1 < done.stdout.find("bill b'ada' b'1'") < done.stdout.find("bill b'ada' b'3'")


def test_asyncio(tmp_path: Path) -> None:
    done = run_guide("asyncio.md", tmp_path)
    assert done.returncode == 0, outcome(done)
    lines = done.stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("b'ada'")) == ["b'ada' b'1'"]
    values = [line for line in lines if line.startswith("b'bob'")]
    assert values == [f"b'bob' b'{number}'" for number in range(2, 1000)]


def test_security(tmp_path: Path) -> None:
    """The guide's settings and its command work together, on one machine and with the files in one directory."""
    done = run_guide("security.md", tmp_path, {"broker.example": "localhost", "/etc/brokerd": str(tmp_path)})
    assert done.returncode == 0, outcome(done)
    etl, ops = [line for line in done.stdout.splitlines() if line.startswith("sha256:")]
    assert (tmp_path / "etl.token").stat().st_mode & 0o777 == 0o600
    auth = tmp_path / "auth.toml"
    auth.write_text(auth.read_text().replace("sha256:...", ops, 1).replace("sha256:...", etl, 1))
    flags = {"data.dir": str(tmp_path / "data"), "port": "0", "metrics.port": "0"}
    running = RunningDaemon(load_broker_config(path=str(tmp_path / "brokerd.toml"), environ={}, flags=flags))
    running.start()
    try:
        (command,) = re.findall(r"^brokerd topics create .*?(?=^```)", (DOCS / "security.md").read_text(), re.MULTILINE | re.DOTALL)
        created = shell(command.replace("broker.example:9192", f"localhost:{running.daemon.port}"), tmp_path)
        assert created.stdout == "created topic 'events-clicks' with 8 partitions\n", outcome(created)
    finally:
        running.stop()


def test_mutual_tls(tmp_path: Path) -> None:
    """The certificates that the guide makes identify a broker and a client to each other."""
    done = run_guide("security.md", tmp_path, {"broker.example": "localhost"})
    assert done.returncode == 0, outcome(done)
    (tmp_path / "mutual.toml").write_text('[principals.etl]\ncertificates = ["etl.example"]\nadmin = ["*"]\n')
    with running_daemon(
        tmp_path / "data",
        host="localhost",
        ssl_certificate_file=str(tmp_path / "cert.pem"),
        ssl_key_file=str(tmp_path / "key.pem"),
        ssl_client_auth="required",
        ssl_client_ca_file=str(tmp_path / "etl-cert.pem"),
        auth_file=str(tmp_path / "mutual.toml"),
    ) as running:
        tls = "-X security.protocol=SSL -X ssl.ca.file=cert.pem -X ssl.certificate.file=etl-cert.pem -X ssl.key.file=etl-key.pem"
        created = shell(f"brokerd topics create events --partitions 1 -b localhost:{running.daemon.port} {tls}", tmp_path)
    assert created.stdout == "created topic 'events' with 1 partition\n", outcome(created)


@pytest.mark.slow
def test_several_nodes(tmp_path: Path) -> None:
    if ETCD is None:
        raise SkipTest(MISSING)
    with contextlib.ExitStack() as stack:
        client, peer, *nodes = (stack.enter_context(held_port()) for _ in range(5))
        peers = f"http://127.0.0.1:{peer}"
        done = run_guide(
            "cluster.md",
            tmp_path,
            {
                "2379": str(client),
                "919$node": f"$(echo {' '.join(map(str, nodes))} | cut -d ' ' -f $node)",
                **{f"919{number}": str(port) for number, port in enumerate(nodes, 1)},
            },
            ETCD_LISTEN_CLIENT_URLS=f"http://127.0.0.1:{client}",
            ETCD_ADVERTISE_CLIENT_URLS=f"http://127.0.0.1:{client}",
            ETCD_LISTEN_PEER_URLS=peers,
            ETCD_INITIAL_ADVERTISE_PEER_URLS=peers,
            ETCD_INITIAL_CLUSTER=f"default={peers}",
        )
    assert done.returncode == 0, outcome(done)
    assert sorted(line for line in done.stdout.splitlines() if line in ("1", "2")) == ["1", "1", "2"], outcome(done)
    assert "3 nodes, 7 partitions, 0 without a leader" in done.stdout
    assert "the new cluster, with 1 topic" in done.stdout
