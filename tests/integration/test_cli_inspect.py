"""Goal: `offsets`, `topics trim` and `info` show the broker's data and delete exactly what is requested. Method: commands against a
daemon; the rule of trimming alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd import Producer
from brokerd.cli.topics import Trim, planned
from brokerd.client.bounds import LogBounds
from brokerd.client.offsets import GivenOffset, OffsetSpec
from tests.integration.conftest import Terminal
from tests.support.clock import START_WALL_MS
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.findings import topic_segment

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def _topic(daemon: RunningDaemon, terminal: Terminal) -> None:
    """Topic ten: ten records in partition 0, one a minute, and none in partition 1."""
    terminal.use(daemon.address)
    terminal.run("topics", "delete", "ten", "--if-exists")
    terminal.run("topics", "create", "ten", "-p", "2")
    with Producer(bootstrap_servers=daemon.address) as producer:
        for number in range(10):
            producer.send("ten", b"%d" % number, partition=0, timestamp=START_WALL_MS + number * MINUTE_MS)


def shown(terminal: Terminal, *words: str) -> list[dict[str, Any]]:
    code, out, err = terminal.run(*words, "--json")
    assert (code, err) == (0, "")
    return list(json.loads(out))


def test_offsets_of_each_partition(terminal: Terminal) -> None:
    first, second = shown(terminal, "offsets", "ten")
    assert first.pop("size_bytes") > 0
    assert len(first.pop("topic_id")) == 32
    ends = {"log_start_offset": 0, "last_stable_offset": 10, "high_watermark": 10}
    assert first == {"topic": "ten", "partition": 0, **ends, "error": None}
    assert (second["partition"], second["high_watermark"], second["size_bytes"]) == (1, 0, 0)
    code, out, _ = terminal.run("offsets", "--pattern", "^te", "ten")
    assert code == 0
    assert [line.split()[:6] for line in out.splitlines()[:2]] == [
        ["TOPIC", "PARTITION", "START", "STABLE", "END", "OFFSETS"],
        ["ten", "0", "0", "10", "10", "10"],
    ]
    assert out.splitlines()[-1].startswith("10 offsets, ")


def test_offsets_by_time(terminal: Terminal) -> None:
    found = shown(terminal, "offsets", "ten", "--time", str(START_WALL_MS + 3 * MINUTE_MS - 1))
    assert [(one["offset_at_time"], one["timestamp"]) for one in found] == [(3, START_WALL_MS + 3 * MINUTE_MS), (None, None)]
    (none,) = shown(terminal, "offsets", "ten", "-p", "0", "--time", "-1m")
    assert none["offset_at_time"] is None
    code, out, _ = terminal.run("offsets", "ten", "--time", str(START_WALL_MS))
    assert code == 0
    assert out.splitlines()[0].split()[-4:] == ["SIZE", "OFFSET", "RECORD", "TIME"]


@pytest.mark.parametrize(
    ("before", "start"),
    [("4", 4), ("-3", 7), (f"@{START_WALL_MS + 2 * MINUTE_MS}", 2), ("-36500d", 0), ("latest", 10), ("10", 10), ("earliest", 0)],
)
def test_the_oldest_records_are_deleted(terminal: Terminal, before: str, start: int) -> None:
    planned_, _ = shown(terminal, "topics", "trim", "ten", "--before", before, "--dry-run")
    assert (planned_["new_log_start_offset"], planned_["deleted_offsets"]) == (start, start)
    assert shown(terminal, "offsets", "ten")[0]["log_start_offset"] == 0
    code, out, err = terminal.run("topics", "trim", "ten", "--before", before)
    assert (code, err) == (0, "")
    assert out.startswith(f"deleted {start} offsets of topic 'ten' in 2 partitions\n")
    assert ("ten-1: offset 4 lies above the end of the log, 0" in out) == (before == "4")
    assert shown(terminal, "offsets", "ten")[0]["log_start_offset"] == start
    assert terminal.run("consume", "ten", "-e", "-q", "-f", "%s")[1] == "0123456789"[start:]


def test_a_damaged_partition_does_not_hide_the_offsets_of_the_others(terminal: Terminal, tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        terminal.use(daemon.address)
        terminal.run("topics", "create", "two", "-p", "2")
        with Producer(bootstrap_servers=daemon.address) as producer:
            for partition in range(2):
                producer.send("two", b"v", partition=partition, timestamp=START_WALL_MS)
        with topic_segment(tmp_path / "data").open("r+b") as file:
            file.seek(120)
            file.write(b"rot")
        for form in ([], ["--json"]):
            code, out, err = terminal.run("offsets", "two", "--time", f"{START_WALL_MS}", *form)
            assert code == 1
            assert "damaged" in err
            if form:
                assert [one["offset_at_time"] for one in json.loads(out)] == [None, 0]
            else:
                assert [line.split()[-2:-1] for line in out.splitlines()[1:2]] == [["?"]]


def test_one_partition_is_trimmed_and_a_start_never_goes_back(terminal: Terminal) -> None:
    terminal.run("produce", "ten", "-p", "1", "-q", stdin=b"a\nb\n")
    terminal.run("topics", "trim", "ten", "--before", "1", "-p", "1")
    assert [one["log_start_offset"] for one in shown(terminal, "offsets", "ten")] == [0, 1]
    (again,) = shown(terminal, "topics", "trim", "ten", "--before", "0", "-p", "1")
    assert again["deleted_offsets"] == 0


def test_the_new_start_lies_in_the_log() -> None:
    log = LogBounds(10, 50)
    assert planned(0, GivenOffset(5), log, 50) == Trim(0, 10, 10, 5)
    assert planned(0, GivenOffset(60), log, 50) == Trim(0, 10, 50, 60)
    assert planned(0, 1_000, log, 50) == Trim(0, 10, 50, 50), "no record is as new: all are older"
    assert planned(0, GivenOffset(60), log, 45) == Trim(0, 10, 45, 60, 5)
    assert planned(0, GivenOffset(40), log, 45) == Trim(0, 10, 40, 40)
    assert planned(0, OffsetSpec.LATEST, log, 70) == Trim(0, 10, 50, 50), "the log has grown since"
    assert planned(0, OffsetSpec.LATEST, log, 5) == Trim(0, 10, 10, 50, 40)


def test_a_broker_is_described(terminal: Terminal, daemon: RunningDaemon) -> None:
    code, out, _ = terminal.run("info", "--json")
    info = json.loads(out)
    assert code == 0
    assert (info["software_version"], info["client_version"]) == (brokerd.__version__,) * 2
    assert info["limits"]["max.partitions.per.topic"] == 10_000
    (node,) = info["nodes"]
    assert f"{node['host']}:{node['port']}" == daemon.address
    code, out, _ = terminal.run("info")
    assert code == 0
    assert out.startswith(f"broker {brokerd.__version__}, node {node['node_id']} of cluster {info['cluster_id']}\n")
    assert daemon.address in out
    assert "max.partitions.per.topic" in out


def test_a_node_alone_leads_all_and_has_every_role(terminal: Terminal, daemon: RunningDaemon) -> None:
    code, out, _ = terminal.run("cluster", "nodes", "--json")
    (node,) = json.loads(out)
    assert code == 0
    assert f"{node['host']}:{node['port']}" == daemon.address
    assert (node["rack"], node["is_controller"], node["is_coordinator"]) == (None, True, True)
    status = json.loads(terminal.run("cluster", "status", "ten", "--json")[1])
    node_id = node["node_id"]
    assert (status["controller_id"], status["coordinator_id"], status["nodes"]) == (node_id, node_id, [node])
    assert [(one["topic"], one["partition"], one["leader"]) for one in status["partitions"]] == [
        ("ten", 0, node_id),
        ("ten", 1, node_id),
    ]
    assert {(one["leader_epoch"] > 0, *one["replicas"], *one["isr"], one["error"]) for one in status["partitions"]} == {
        (True, node_id, node_id, None)
    }
    code, out, _ = terminal.run("cluster", "status")
    assert code == 0
    assert "1 node," in out
    assert "0 without a leader" in out
    assert "controller, coordinator" in out
    code, out, _ = terminal.run("cluster", "nodes")
    assert daemon.address in out


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("cluster", "status", "tne"), 1, "there is no topic 'tne': did you mean 'ten'?"),
        (("offsets", "tne"), 1, "there is no topic 'tne': did you mean 'ten'?"),
        (("offsets",), 2, "name a TOPIC, or give a --pattern"),
        (("offsets", "ten", "-p", "2"), 1, "topic 'ten' has partitions 0 to 1, not 2"),
        (("offsets", "ten", "--time", "noon"), 2, "--time takes ms since 1970, a time ago such as -10m, or ISO 8601"),
        (("topics", "trim", "ten"), 2, "the following arguments are required: --before"),
        (("topics", "trim", "ten", "--before", "noon"), 2, "--before takes earliest, latest, N"),
        (
            ("topics", "trim", "ten", "--before", "11"),
            2,
            "--before 11 lies above the end of the log in every partition, 10",
        ),
        (("topics", "trim", "ten", "--before", "1", "-p", "1", "--dry-run"), 2, "every partition, 0 at most"),
        (("topics", "trim", "tne", "--before", "1"), 1, "there is no topic 'tne': did you mean 'ten'?"),
        (("info", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=100"), 1, "no broker responded at 127.0.0.1:1"),
    ],
)
def test_mistakes_are_one_sentence(terminal: Terminal, words: tuple[str, ...], code: int, sentence: str) -> None:
    found, out, err = terminal.run(*words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert sentence in err
