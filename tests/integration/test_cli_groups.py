"""Goal: an operator sees the offsets and lag of groups, and sets or deletes offsets. Method: `main` in this process against a
daemon.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd import Producer
from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.topics_pb2 import TopicDescription
from tests.integration.conftest import Terminal
from tests.support.daemon import RunningDaemon, running_daemon


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("cli") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: RunningDaemon, terminal: Terminal) -> Iterator[BlockingClient]:
    """A client of a daemon with ten records in partition 0 of topic t, of which group g has read four, and none in partition 1."""
    terminal.use(daemon.address)
    with BlockingClient(ConsumerConfig(bootstrap_servers=daemon.address)) as client:
        topic_id = client.create_topic("t", 2)
        first, second = (TopicIdPartition(topic_id, partition) for partition in range(2))
        with Producer(bootstrap_servers=daemon.address, linger_ms=0) as producer:
            for number in range(10):
                producer.send("t", b"x" * 100, partition=0, timestamp=1_000 + number).result()
        client.commit_group_offsets("g", {first: OffsetAndMetadata(4, "so\x1bfar"), second: OffsetAndMetadata(0)})
        yield client


def run(terminal: Terminal, *args: str) -> Any:
    """The JSON that a command prints."""
    code, out, err = terminal.run("groups", *args, "--json")
    assert code == 0, err
    return json.loads(out)


def offsets(terminal: Terminal) -> list[int]:
    return [one["offset"] for one in run(terminal, "describe", "g")["partitions"]]


def test_the_lag_is_shown_in_records_bytes_and_time(client: BlockingClient, terminal: Terminal) -> None:
    assert [one["group_id"] for one in run(terminal, "list")] == ["g"]
    assert run(terminal, "list", "h") == []
    described = run(terminal, "describe", "g")
    assert (described["group_id"], described["partition_count"]) == ("g", 2)
    first, second = described["partitions"]
    assert (first["topic"], first["partition"], first["offset"], first["end_offset"], first["lag"]) == ("t", 0, 4, 10, 6)
    topic = client.describe_topics(["t"])["t"]
    assert isinstance(topic, TopicDescription)
    assert first["lag_bytes"] == topic.partitions[0].size_bytes * 6 // 10, "batches of one record each"
    assert 0 <= first["lag_ms"] < 600_000
    assert first["metadata"] == "so\\x1bfar"
    assert first["commit_timestamp"] > 0
    assert (second["lag"], second["lag_bytes"], second["lag_ms"]) == (0, 0, None)
    code, shown, _ = terminal.run("groups", "describe", "g")
    assert code == 0
    assert "2 partitions, lag 6" in shown
    assert shown.splitlines()[1].split() == [
        "TOPIC",
        "PARTITION",
        "OFFSET",
        "END",
        "LAG",
        "SIZE",
        "BEHIND",
        "COMMITTED",
        "METADATA",
    ]


def test_partitions_that_were_added_and_nobody_reads_are_counted_and_told(
    client: BlockingClient, terminal: Terminal, daemon: RunningDaemon
) -> None:
    client.create_partitions("t", 4)
    assert [one.group.group_id for one in client.describe_groups(["g", "deleted"])] == ["g"]
    with Producer(bootstrap_servers=daemon.address, linger_ms=0) as producer:
        for number in range(5):
            producer.send("t", b"x" * 100, partition=2, timestamp=2_000 + number).result()
    described = run(terminal, "describe", "g")["partitions"]
    lags = [(one["partition"], one["offset"], one["lag"]) for one in described]
    assert lags == [(0, 4, 6), (1, 0, 0), (2, None, 5), (3, None, 0)]
    assert described[2]["lag_bytes"] > 500
    assert described[2]["commit_timestamp"] is None
    out = terminal.run("groups", "describe", "g")[1]
    assert out.startswith("group g of anybody: 4 partitions, lag 11")
    assert "t: no reader of this group has committed an offset of 2 partitions (2, 3); LAG counts all of them: have a reader" in out
    (shown,) = json.loads(terminal.run("top", "--json", "--once", "--interval-ms", "100")[1])["groups"]
    assert shown["lag"] == 11


def test_records_that_are_gone_unread_are_told(client: BlockingClient, terminal: Terminal) -> None:
    topic_id = client.metadata(["t"]).topic("t").topic_id
    client.delete_records({TopicIdPartition(topic_id, 0): 7})
    first = run(terminal, "describe", "g")["partitions"][0]
    assert (first["offset"], first["log_start_offset"], first["lag"]) == (4, 7, 3)
    assert "t-0: 3 offsets below the log start 7 are gone, unread" in terminal.run("groups", "describe", "g")[1]


def test_offsets_are_reset(client: BlockingClient, terminal: Terminal) -> None:
    planned = run(terminal, "reset", "g", "--to-latest", "--dry-run")
    assert [(one["partition"], one["offset"], one["new_offset"]) for one in planned] == [(0, 4, 10), (1, 0, 0)]
    assert offsets(terminal) == [4, 0]
    run(terminal, "reset", "g", "--to-latest")
    assert offsets(terminal) == [10, 0]
    run(terminal, "reset", "g", "--topic", "t:0", "--shift-by", "-3")
    assert offsets(terminal) == [7, 0]
    run(terminal, "reset", "g", "--topic", "t", "--to-timestamp", "1005")
    assert offsets(terminal) == [5, 0]
    run(terminal, "reset", "g", "--topic", "t", "--to-timestamp", "-10m")
    assert offsets(terminal) == [10, 0]
    (one,) = run(terminal, "reset", "g", "--topic", "t:0", "--to-offset", "99")
    assert (one["asked_offset"], one["new_offset"]) == (99, 10)
    run(terminal, "reset", "g", "--to-earliest")
    assert offsets(terminal) == [0, 0]
    run(terminal, "reset", "new", "--topic", "t:0", "--to-offset", "3")
    assert [group.group_id for group in client.list_groups()] == ["g", "new"]


def test_a_reset_that_is_refused_in_part_prints_what_it_set(
    client: BlockingClient, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = BlockingClient.commit_group_offsets

    def refusing_one(
        one: BlockingClient, group_id: str, new: dict[TopicIdPartition, OffsetAndMetadata]
    ) -> dict[TopicIdPartition, WireError]:
        first, second = sorted(new)
        return commit(one, group_id, {first: new[first]}) | {second: UnknownTopicIdError("it was deleted")}

    monkeypatch.setattr(BlockingClient, "commit_group_offsets", refusing_one)
    code, out, err = terminal.run("groups", "reset", "g", "--to-latest", "--json")
    assert (code, "it was deleted" in err) == (1, True)
    assert [(one["partition"], one["new_offset"]) for one in json.loads(out)] == [(0, 10)]
    assert offsets(terminal) == [10, 0]


def test_groups_are_deleted(client: BlockingClient, terminal: Terminal) -> None:
    assert run(terminal, "delete", "g", "--topic", "t:1") == {"group_id": "g", "deleted_offsets": 1}
    assert offsets(terminal) == [4, None]
    code, shown, _ = terminal.run("groups", "delete", "g")
    assert (code, shown) == (0, "deleted group 'g' with 1 offset\n")
    assert client.list_groups() == []


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (("describe", "G"), 1, "there is no group 'G': did you mean 'g'?"),
        (("delete", "nobody's"), 1, "there is no group"),
        (("reset", "nobody's", "--to-latest"), 1, "name the topics to set, with --topic"),
        (("reset", "g", "--topic", "tt", "--to-latest"), 1, "there is no topic 'tt'"),
        (("reset", "g", "--topic", "t:7", "--to-latest"), 1, "has partitions 0 to 1, not 7"),
        (("reset", "g", "--topic", "t:9999999999", "--to-latest"), 1, "has partitions 0 to 1, not 9999999999"),
        (("reset", "new", "--topic", "t", "--shift-by", "1"), 1, "has no committed offset that --shift-by could move"),
        (("reset", "g"), 2, "one of the arguments --to-earliest"),
        (("reset", "g", "--to-latest", "--to-earliest"), 2, "not allowed with"),
        (("reset", "g", "--to-offset", "-1"), 2, "--to-offset is -1"),
        (("reset", "g", "--to-timestamp", "soon"), 2, "--to-timestamp takes ms since 1970, a time ago such as -10m, or ISO 8601"),
        (("reset", "g", "--topic", "t:", "--to-latest"), 2, "--topic takes TOPIC"),
    ],
)
@pytest.mark.usefixtures("client")
def test_mistakes_are_named(terminal: Terminal, args: tuple[str, ...], code: int, sentence: str) -> None:
    found, out, err = terminal.run("groups", *args)
    assert (found, out) == (code, "")
    assert sentence in err
