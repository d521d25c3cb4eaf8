"""Goal: `consume` returns the requested records, of several topics, between two positions; a copy as JSON lines is equal byte for
byte. Method: commands against a daemon; the property test writes whatever the wire format allows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import brokerd
from brokerd import Producer
from brokerd.errors import MessageTooLargeError
from brokerd.record.schema import SCHEMA_0
from tests.integration.conftest import Terminal
from tests.support.child import ROOT
from tests.support.clock import START_WALL_MS
from tests.support.daemon import RunningDaemon
from tests.support.wait import DEADLINE_S

US_MAX = 2**63 - 1_000
MINUTE_MS = 60_000
pytestmark = pytest.mark.usefixtures("terminal_at_daemon")


def make_topic(terminal: Terminal, name: str, *options: str) -> bool:
    """Creates a topic; False if it exists."""
    return terminal.run("topics", "create", name, "--if-not-exists", *options)[1].startswith("created")


@pytest.fixture
def _ten(terminal_at_daemon: Terminal, daemon: RunningDaemon) -> None:
    """Topic ten: the values 0 to 9 in each of two partitions, one a minute from START_WALL_MS on."""
    if make_topic(terminal_at_daemon, "ten", "-p", "2"):
        with Producer(bootstrap_servers=daemon.address) as producer:
            for number in range(20):
                time_ms = START_WALL_MS + (number // 2) * MINUTE_MS
                producer.send("ten", b"%d" % (number // 2), partition=number % 2, timestamp=time_ms)


@pytest.mark.usefixtures("_ten")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--end", "3"], "012"),
        (["--end", "earliest"], ""),
        (["--end", "latest"], "0123456789"),
        (["--end", "99"], "0123456789"),
        (["--end", "-8"], "01"),
        (["-o", "earliest", "-e"], "0123456789"),
        (["-o", "latest", "-e"], ""),
        (["-o", "7", "-e"], "789"),
        (["-o", "-99", "-e"], "0123456789"),
        (["-o", "@9999-01-01", "-e"], ""),
        (["-o", "-3", "--end", "-1"], "78"),
        (["-o", "5", "--end", "3"], ""),
        (["-o", f"@{START_WALL_MS + MINUTE_MS}", "--end", f"@{START_WALL_MS + 3 * MINUTE_MS}"], "12"),
        (["-o", f"@{START_WALL_MS + MINUTE_MS + 1}", "--end", "@9999-01-01"], "23456789"),
        (["-o", "-1m", "-e"], ""),
        (["-o", "-36500d", "-e"], "0123456789"),
    ],
)
def test_a_part_of_each_partition_is_printed(terminal: Terminal, options: list[str], expected: str) -> None:
    for partition in (0, 1):
        assert terminal.run("consume", "ten", "-q", "-f", "%s", "-p", str(partition), *options) == (0, expected, "")


def test_several_topics_and_patterns(terminal: Terminal) -> None:
    for name in ("sensor-a", "sensor-b", "plain"):
        make_topic(terminal, name, "-p", "2")
        terminal.run("produce", name, "-p", "1", stdin=f"{name}\n".encode())
    code, out, note = terminal.run("consume", "plain", "--pattern", "^sensor-", "--pattern", "a$", "-e", "-f", "%t-%p %s\n")
    assert (code, note) == (0, "3 records from 6 partitions of 3 topics\n")
    assert sorted(out.splitlines()) == ["plain-1 plain", "sensor-a-1 sensor-a", "sensor-b-1 sensor-b"]
    _, out, _ = terminal.run("consume", "sensor-a", "plain", "-p", "1", "-e", "-q", "--json")
    assert sorted((row["topic"], row["value"]) for row in map(json.loads, out.splitlines())) == [
        ("plain", "plain"),
        ("sensor-a", "sensor-a"),
    ]
    assert terminal.run("consume", "--pattern", "zzz", "-e") == (
        1,
        "",
        "brokerd: there is no topic in whose name 'zzz' is found\n",
    )
    assert "did you mean 'plain'?" in terminal.run("consume", "sensor-a", "plian", "-e")[2]
    assert terminal.run("consume", "sensor-a", "-p", "2", "-e")[0] == 1


texts = st.text(max_size=20)
data = st.one_of(
    st.binary(max_size=30), texts.map(str.encode), st.sampled_from([b"", b"\xff", b"null", b'"\\\n\r\0', b"\xed\xa0\x80"])
)
times = st.one_of(st.integers(0, US_MAX), st.integers(0, 9).map(lambda us: START_WALL_MS * 1_000 + us))
headers = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from(["", "h", "ключ", '"']) | texts, "value": st.none() | data}), max_size=3
)
records = st.fixed_dictionaries(
    {"key": st.none() | data, "value": st.none() | data, "headers": st.none() | headers, "timestamp": times}
)


@hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.lists(st.tuples(st.integers(0, 2), records), min_size=1, max_size=30))
def test_a_copy_by_json_lines_is_the_same_records(
    terminal: Terminal, daemon: RunningDaemon, rows: list[tuple[int, dict[str, Any]]]
) -> None:
    any_time = ["-c", f"message.timestamp.after.max.ms={2**63 - 1}"]
    for name in ("original", "copy"):
        terminal.run("topics", "delete", name, "--if-exists")
        make_topic(terminal, name, "-p", "3", *any_time)
    written = pa.RecordBatch.from_pylist([row for _, row in rows], schema=SCHEMA_0.arrow)
    with Producer(bootstrap_servers=daemon.address) as producer:
        producer.send_batch("original", written, [partition for partition, _ in rows]).result(DEADLINE_S)
    code, lines, _ = terminal.run("consume", "original", "--exit", "--json", "-q")
    assert code == 0
    assert terminal.run("produce", "copy", "--json", "--keep-partitions", "-q", stdin=lines.encode()) == (0, "", "")
    original, copy = (table(daemon, name) for name in ("original", "copy"))
    assert copy.drop_columns("topic").equals(original.drop_columns("topic"))
    by_partition = [[row for partition, row in rows if partition == number] for number in range(3)]
    wanted = pa.Table.from_pylist([row for some in by_partition for row in some], schema=SCHEMA_0.arrow)
    assert copy.select(["key", "value", "headers", "timestamp"]).equals(wanted)


def table(daemon: RunningDaemon, topic: str) -> pa.Table:
    """All records of a topic, ordered by partition and offset."""
    columns = ["key", "value", "headers", "timestamp", "partition", "offset", "timestampType", "topic"]
    read = pa.table(brokerd.read(topic, bootstrap_servers=daemon.address, columns=columns))
    return read.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()


@pytest.mark.parametrize("value", [b"x", b"\xff"])
def test_records_as_large_as_a_topic_takes_are_copied(terminal: Terminal, daemon: RunningDaemon, value: bytes) -> None:
    for name in ("large", "large-copy"):
        terminal.run("topics", "delete", name, "--if-exists")
        make_topic(terminal, name, "-p", "1", "-c", "max.message.bytes=100000")
    taken, refused = 90_000, 100_001
    with Producer(bootstrap_servers=daemon.address, compression_type="none") as producer:
        while refused - taken > 1:
            size = (taken + refused) // 2
            try:
                producer.send("large", value * size).result(DEADLINE_S)
                taken = size
            except MessageTooLargeError:
                refused = size
    _, lines, _ = terminal.run("consume", "large", "--exit", "--json", "-q")
    assert terminal.run("produce", "large-copy", "--json", "-q", stdin=lines.encode()) == (0, "", "")
    original, copy = (table(daemon, name).drop_columns("topic") for name in ("large", "large-copy"))
    assert copy.equals(original)
    assert copy["value"][-1].as_py() == value * taken


def test_a_pipe_copies_a_topic(terminal: Terminal, daemon: RunningDaemon) -> None:
    for name in ("piped", "piped-copy", "piped-by-key"):
        make_topic(terminal, name, "-p", "2")
    rows = [{"key": b"\xff-%d" % (number % 5), "value": None if number % 9 == 0 else b"%d" % number} for number in range(3_000)]
    with Producer(bootstrap_servers=daemon.address) as producer:
        columns = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]))
        producer.send_batch("piped", columns, [number % 2 for number in range(3_000)]).result(DEADLINE_S)
    brokerd_ = f"{sys.executable} -m brokerd"
    pipe = f"{brokerd_} consume piped --exit --json | {brokerd_} produce piped-copy --json --keep-partitions"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", pipe], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert sorted(done.stderr.splitlines()) == [
        "3000 records from 2 partitions of topic 'piped'",
        "3000 records written to topic 'piped-copy'",
    ]
    assert table(daemon, "piped-copy").drop_columns("topic").equals(table(daemon, "piped").drop_columns("topic"))
    lines = terminal.run("consume", "piped", "--exit", "--json", "-q")[1]
    assert terminal.run("produce", "piped-by-key", "--json", "-q", stdin=lines.encode())[0] == 0
    places = {(row["key"], row["partition"]) for row in table(daemon, "piped-by-key").select(["key", "partition"]).to_pylist()}
    assert len(places) == 5, "equal keys share their partition"
