"""Goal: an operator finds the transaction that holds back readers, and ends it. Method: `main` in this process against a daemon,
with members that a producer left open.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

import brokerd
from brokerd import Consumer, Producer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import InvalidTxnStateError
from brokerd.producer.core.membership import Membership
from tests.integration.conftest import Terminal
from tests.support.daemon import RunningDaemon, running_daemon

pytestmark = pytest.mark.usefixtures("terminal_at_daemon")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("cli") / "data") as daemon:
        with BlockingClient(ConsumerConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("t", 1)
            client.create_topic("u", 1)
        yield daemon


@pytest.fixture
def producer(daemon: RunningDaemon) -> Iterator[Producer]:
    """A producer that is a member of execution 41 of version 7 of "spark-<a new id>" and has written a row."""
    with Producer({"bootstrap.servers": daemon.address, "linger.ms": 0}) as producer:
        producer.begin_member(
            Membership(f"spark-{uuid.uuid4()}", 7, "41", "run", "streaming query q, batch 7", uuid.uuid4().bytes, 60_000)
        )
        producer.send("t", b"row").result()
        yield producer
        producer.abort_member()


def open_id(terminal: Terminal) -> str:
    """The transactional id of `producer`."""
    (listing,) = json.loads(terminal.run("transactions", "list", "--state", "open", "--json")[1])
    assert (listing["txn_version"], listing["last_version"], listing["open_members"]) == (7, None, 1)
    return str(listing["transactional_id"])


def test_operator_finds_what_holds_back_readers_and_ends_it(terminal: Terminal, producer: Producer) -> None:
    name = open_id(terminal)
    code, listed, _ = terminal.run("transactions", "list", name[:10])
    assert code == 0
    assert listed.splitlines()[1].endswith("streaming query q, batch 7")
    (hanging,) = json.loads(terminal.run("transactions", "find-hanging", "--idle-ms", "1", "--json")[1])
    assert (hanging["topic"], hanging["partition"], hanging["transactional_id"]) == ("t", 0, name)

    assert terminal.run("transactions", "abort", name, "--execution", "other")[:2] == (
        0,
        f"transactional id '{name}' has no open member in execution 'other': nothing to do; no version of it is committed\n",
    )
    assert terminal.run("transactions", "abort", name, "--execution", "41")[:2] == (
        0,
        (
            f"aborted 1 open member of transactional id '{name}': what it wrote is void, and its task fails at its next batch; "
            "no version of it is committed\n"
        ),
    )
    with pytest.raises(InvalidTxnStateError):
        producer.send("t", b"too late").result()
    assert terminal.run("transactions", "find-hanging", "--idle-ms", "1")[1].startswith("no partition is held back")
    assert terminal.run("transactions", "list", name, "--json")[1] == "[]\n"


def test_rows_behind_an_open_transaction_are_seen_when_it_ends_and_it_is_named(
    terminal: Terminal, daemon: RunningDaemon, producer: Producer
) -> None:
    """The example of docs/guarantees.md: a commit of rows that follow another open transaction."""
    name = open_id(terminal)
    with Producer({"bootstrap.servers": daemon.address, "transactional.id": "job"}) as job, job.transaction():
        for topic in "tu":
            job.send(topic, b"of the job")
    with Consumer({"bootstrap.servers": daemon.address, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("t", 0), ("u", 0)])
        consumer.commit(consumer.beginning_offsets([TopicPartition("t", 0)]))
        assert [record.topic for record in consumer.poll(10_000)] == ["u"]
        assert consumer.poll(50) == [], "committed, and the other topic's part of it is seen"
        listed = {one["transactional_id"]: one for one in json.loads(terminal.run("transactions", "list", "--json")[1])}
        (held,) = listed[name]["holds_back"]
        assert (held["topic"], held["partition"]) == ("t", 0)
        assert listed["job"]["holds_back"] == []
        assert " t-0 " in terminal.run("transactions", "list", name)[1]
        (described,) = [
            one for one in json.loads(terminal.run("groups", "describe", "g", "--json")[1])["partitions"] if one["topic"] == "t"
        ]
        assert (described["held_back_by"], described["end_offset"]) == (name, held["last_stable_offset"])
        shown = terminal.run("groups", "describe", "g")[1]
        assert f"t-0: readers of committed records wait at {described['end_offset']} for the transaction of '{name}'" in shown
        terminal.run("transactions", "abort", name)
        assert [(record.topic, record.value) for record in consumer.poll(10_000)] == [("t", b"of the job")]
    assert "readers of committed records wait" not in terminal.run("groups", "describe", "g")[1]


def test_description_has_members_their_expiry_and_their_partitions(terminal: Terminal, producer: Producer) -> None:
    name = open_id(terminal)
    (member,) = json.loads(terminal.run("transactions", "describe", name, "--json")[1])["members"]
    assert 0 < member["expires_in_ms"] <= 60_000
    (partition,) = member["partitions"]
    assert (partition["topic"], partition["partition"]) == ("t", 0)
    assert partition["first_offset"] == partition["last_stable_offset"]
    code, text, _ = terminal.run("transactions", "describe", name)
    assert code == 0
    assert text.startswith(f"transactional id {name}: open, 1 open member\n  nothing committed yet\n")
    assert json.loads(terminal.run("transactions", "abort", name, "--json")[1]) == {
        "transactional_id": name,
        "aborted_members": 1,
        "last_version": None,
    }


def test_what_is_committed_is_described_and_stays(terminal: Terminal, daemon: RunningDaemon) -> None:
    settings = {"bootstrap.servers": daemon.address, "transactional.id": "invoices"}
    with Producer(settings) as producer, producer.transaction(version=4):
        producer.send("t", b"row")
    described = json.loads(terminal.run("transactions", "describe", "invoices", "--json")[1])
    assert (described["state"], described["last_version"], described["members"]) == ("empty", 4, [])
    assert "  last committed: version 4 in execution " in terminal.run("transactions", "describe", "invoices")[1]
    assert terminal.run("transactions", "abort", "invoices")[1] == (
        "transactional id 'invoices' has no open member: nothing to do; version 4 stays committed\n"
    )
    assert terminal.run("transactions", "abort", "invoice") == (
        1,
        "",
        "brokerd: there is no transactional id 'invoice': did you mean 'invoices'?\n",
    )


def test_unknown_id_is_one_sentence(terminal: Terminal) -> None:
    assert terminal.run("transactions", "describe", "zzz") == (
        1,
        "",
        "brokerd: there is no transactional id 'zzz': 'brokerd transactions list' prints those that you may see\n",
    )


def test_trimming_spares_what_is_not_decided(terminal: Terminal, producer: Producer) -> None:
    """Its commit would succeed although its rows were gone."""
    (row,) = json.loads(terminal.run("offsets", "t", "--json")[1])
    stable, end = row["last_stable_offset"], row["high_watermark"]
    assert stable < end
    for before in ("latest", "2030-01-01", str(end)):
        code, out, _ = terminal.run("topics", "trim", "t", "--before", before)
        assert code == 0
        assert f"t-0: transactions are undecided from offset {stable} on, so their records stay" in out
        (trimmed,) = json.loads(terminal.run("topics", "trim", "t", "--before", before, "--json")[1])
        assert (trimmed["new_log_start_offset"], trimmed["undecided_offsets"]) == (stable, end - stable)


def test_a_count_from_the_end_counts_records(terminal: Terminal, daemon: RunningDaemon) -> None:
    """Each of these transactions leaves a marker after its record, as a write of Spark does."""
    terminal.run("topics", "create", "counted", "-p", "1")
    with Producer(bootstrap_servers=daemon.address, transactional_id="counted") as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("counted", b"%d" % number)
        with contextlib.suppress(RuntimeError), producer.transaction():
            producer.send("counted", b"aborted").result()
            raise RuntimeError
    for count, values in ((1, ["2"]), (2, ["1", "2"]), (99, ["0", "1", "2"])):
        assert terminal.run("consume", "counted", "--offset", f"-{count}", "--exit")[1].split() == values
    assert terminal.run("consume", "counted", "--end", "-1")[1].split() == ["0", "1"]
    uncommitted = ("--isolation-level", "read_uncommitted", "--exit")
    assert terminal.run("consume", "counted", "--offset", "-2", *uncommitted)[1].split() == ["2", "aborted"]
    assert pa.table(brokerd.read("counted", start=-2, bootstrap_servers=daemon.address))["value"].to_pylist() == [b"1", b"2"]
    assert "counted: 1 partition, 8 offsets, " in terminal.run("topics", "describe", "counted")[1]
    terminal.run("topics", "trim", "counted", "--before", "-1")
    assert terminal.run("consume", "counted", "--exit")[1].split() == ["2"]
