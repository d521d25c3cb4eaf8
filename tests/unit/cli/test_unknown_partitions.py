"""Goal: no command shows a partition as empty because its leader does not respond."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import pytest

from brokerd.cli import main
from brokerd.wire.v1.topics_pb2 import DeleteRecordsRequest, DeleteRecordsResponse, PartitionDeleteRecordsResult
from tests.support.fake_broker import FakeBroker, FakeCluster, fake_cluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three nodes that lead one partition each; the last node is stopped."""
    with fake_cluster() as cluster:
        for number, partition in enumerate(cluster.create("t")):
            partition.end_offset = 10 + number
        cluster.stop(2)
        yield cluster


def printed(cluster: FakeCluster, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "-b", cluster.servers.split(",")[0]]) == 0
    return capsys.readouterr().out


def test_in_the_list_of_topics(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(cluster, capsys, "topics", "list", "--long").split()[-3:] == ["21+", "0", "B+"]


def test_in_the_description_of_a_topic(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, *rows, why = printed(cluster, capsys, "topics", "describe", "t").splitlines()
    assert first.startswith("topic t: 3 partitions, 21 offsets, 0 B, not counting 1 unknown partition, id ")
    assert rows[2].split()[:8] == ["2", *["-"] * 7]
    assert why.startswith("  partition 2 is not healthy: its leader, node 2, did not answer: ")
    (topic,) = json.loads(printed(cluster, capsys, "topics", "describe", "t", "--json"))
    names = "log_start_offset last_stable_offset high_watermark log_end_offset size_bytes segment_count producer_count"
    assert [[one[name] is None for name in names.split()] for one in topic["partitions"]] == [[False] * 7, [False] * 7, [True] * 7]


def test_in_the_offsets(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    _, *rows, why, total = printed(cluster, capsys, "offsets", "t").splitlines()
    assert rows[2].split() == ["t", "2", *["-"] * 5]
    assert why.startswith("t-2 is not healthy: its leader, node 2, did not answer: ")
    assert total == "21 offsets, 0 B in 3 partitions, not counting 1 unknown partition"
    found = json.loads(printed(cluster, capsys, "offsets", "t", "--json"))
    assert [one["high_watermark"] for one in found] == [10, 11, None]
    assert {found[2][name] for name in ("log_start_offset", "last_stable_offset", "size_bytes")} == {None}


def test_in_the_offsets_of_a_time(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["offsets", "t", "--time", "5", "-X", "default.api.timeout.ms=500", "-b", cluster.servers.split(",")[0]]
    assert main(words) == 1
    out, err = capsys.readouterr()
    _, *rows, _, total = out.splitlines()
    assert [row.split()[8] for row in rows[:2]] == ["10", "11"]
    assert rows[2].split() == ["t", "2", *["-"] * 5, "?", "?"]
    assert total.startswith("21 offsets")
    assert err.splitlines()[-1].startswith("brokerd: its leader did not answer: ")
    assert main([*words, "--json"]) == 1
    assert [one["offset_at_time"] for one in json.loads(capsys.readouterr().out)] == [10, 11, None]


def test_in_what_a_trim_has_deleted_when_a_leader_dies(capsys: pytest.CaptureFixture[str]) -> None:
    def trim(node: FakeBroker, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        if node.node_id == 2:
            raise RuntimeError("the node dies")
        ends = [(one.topic_id, one.partition, one.before_offset) for one in request.partitions]
        return DeleteRecordsResponse(
            results=[PartitionDeleteRecordsResult(topic_id=one, partition=two, log_start_offset=three) for one, two, three in ends]
        )

    with fake_cluster() as cluster:
        for partition in cluster.create("t"):
            partition.end_offset = 10
        for node in cluster.nodes:
            node._DeleteRecords = functools.partial(trim, node)  # type: ignore[attr-defined]
        assert main(["topics", "trim", "t", "--before", "5", "-b", cluster.servers]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "deleted 10 offsets of topic 't' in 2 partitions"
    assert err.splitlines()[-1].startswith("brokerd: t-2: its leader did not answer: ")
