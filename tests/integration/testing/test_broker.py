"""Goal: `with Broker()` is a real broker with topics that a test can fill and inspect, and leaves nothing behind."""

from __future__ import annotations

import datetime
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import (
    BrokerdError,
    ClientError,
    ConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    MessageTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from brokerd.testing import Broker, BrokerFailedError
from brokerd.testing.broker import CLIENTS_MAX
from brokerd.testing.warm_process import warm_pid
from tests.integration.testing.processes import children_of, in_session_of, is_alive, listening_ports, parent_of
from tests.support.ports import held_port
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S, wait_until

NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
BROKERS = 10 if TEST_SCALE == 1 else 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker for tests that only use it."""
    with Broker() as broker:
        yield broker


def keeper_of(broker: Broker) -> int:
    return parent_of(broker.pid)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test's temporary directories are created."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_rows_come_back_by_partition_in_their_order(broker: Broker) -> None:
    topic = broker.create_topic("ordered", partitions=3)
    topic.append((f"k{number % 5}", f"v{number}") for number in range(100))
    topic.append([("k0", "last")])
    rows = topic.rows()
    assert [(row.partition, row.offset) for row in rows] == sorted((row.partition, row.offset) for row in rows)
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row.value)
    assert by_key == {
        f"k{key}".encode(): [f"v{number}".encode() for number in range(key, 100, 5)] + ([b"last"] if key == 0 else [])
        for key in range(5)
    }


def test_all_fields_come_back(broker: Broker) -> None:
    topic = broker.create_topic("fields", partitions=2)
    topic.append([{"key": "k", "value": None, "headers": [("h", b"x"), ("h", None)], "timestamp": NOON, "partition": 1}])
    (row,) = topic.rows()
    assert (row.key, row.value, row.topic, row.partition, row.offset) == (b"k", None, "fields", 1, 0)
    assert row.timestamp == NOON
    assert row.headers == [("h", b"x"), ("h", None)]


def test_arrow_goes_in_and_comes_out(broker: Broker) -> None:
    topic, copy = broker.create_topic("arrow", partitions=2), broker.create_topic("copy", partitions=2)
    topic.append(pa.table({"key": ["a", "b"], "value": ["1", "2"], "partition": [1, 0]}))
    table = topic.arrow()
    assert table.select(["key", "value", "partition", "offset", "timestampType"]).to_pylist() == [
        {"key": b"b", "value": b"2", "partition": 0, "offset": 0, "timestampType": 0},
        {"key": b"a", "value": b"1", "partition": 1, "offset": 0, "timestampType": 0},
    ]
    copy.append(table)
    copy.append(topic.rows())
    assert [row.value for row in copy.rows()] == [b"2", b"2", b"1", b"1"]


def test_much_is_appended_and_read(broker: Broker) -> None:
    topic = broker.create_topic("much", partitions=4)
    table = pa.table({"value": [bytes(1_000)] * 50_000})
    topic.append(table)
    assert topic.arrow().num_rows == 50_000


def test_an_empty_topic_has_no_rows(broker: Broker) -> None:
    topic = broker.create_topic("empty")
    topic.append([])
    assert topic.rows() == []
    assert topic.arrow().column_names == ["key", "value", "headers", "timestamp", "partition", "offset", "timestampType"]


def test_errors_are_those_of_a_client(broker: Broker) -> None:
    broker.create_topic("there", partitions=2)
    assert broker.topic("there").rows() == []
    with pytest.raises(TopicAlreadyExistsError, match="there"):
        broker.create_topic("there")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"there is no topic 'elsewhere': create it \("):
        broker.topic("elsewhere")
    with pytest.raises(InvalidTopicError):
        broker.create_topic("no name")
    with pytest.raises(ValueError, match="partition"):
        broker.topic("there").append([{"value": "v", "partition": 2}])
    with pytest.raises(MessageTooLargeError):
        broker.topic("there").append([bytes(32_000_000)])
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        broker.topic("there").rows("uncommitted")
    broker.topic("there").append(["after all that"])


@pytest.mark.parametrize("name", [None, 5, b"x"])
def test_a_topic_name_that_is_no_text_is_refused(broker: Broker, name: Any) -> None:
    for call in (broker.create_topic, broker.topic):
        with pytest.raises(ConfigError, match=re.escape(f"name is {name!r}: give it as a str")):
            call(name)


@pytest.mark.parametrize("partitions", ["4", True, None, 1.0])
def test_partitions_that_are_no_number_are_refused(broker: Broker, partitions: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"partitions is {partitions!r}: give it as an int")):
        broker.create_topic("t", partitions=partitions)


def test_partitions_out_of_range_are_refused_with_the_range(broker: Broker) -> None:
    with pytest.raises(InvalidPartitionsError, match=r"cannot have -1 partitions: give 1 to 10000 \(max\.partitions\.per\.topic\)"):
        broker.create_topic("t", partitions=-1)
    with pytest.raises(ConfigError, match="partitions is 2147483648: give at most 2147483647"):
        broker.create_topic("t", partitions=2**31)


def test_configs_that_are_no_mapping_are_refused(broker: Broker) -> None:
    configs: Any
    for configs in (["retention.ms"], {5: "1"}, "retention.ms=1"):
        with pytest.raises(ConfigError, match="configs"):
            broker.create_topic("t", configs=configs)
        with pytest.raises(ConfigError, match="config"):
            Broker(configs)


def test_settings_are_the_brokers(temporary: Path) -> None:
    with Broker({"num.partitions": 3}, log_segment_bytes=4_096) as broker:
        topic = broker.create_topic("t", configs={"retention.ms": "1000"})
        topic.append([{"value": "v", "partition": 2}])
    with pytest.raises(ConfigError, match=r"unknown setting 'num.partition' .*: did you mean 'num.partitions'\?"):
        Broker(num_partition=3)
    with pytest.raises(ConfigError, match=r"num.partitions must be between 1 and"):
        Broker(num_partitions=0)
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_of_many_brokers(temporary: Path) -> None:
    with Broker():
        pass
    warm = warm_pid()
    before = in_session_of(warm)  # includes those of a broker that other tests share
    fds, threads = os.listdir("/proc/self/fd"), threading.active_count()
    ports = set()
    for number in range(BROKERS):
        with Broker() as broker:
            ports.add(int(broker.bootstrap_servers.rpartition(":")[2]))
            if number % 5 == 0:
                topic = broker.create_topic("t")
                topic.append(["v"])
                assert len(topic.rows()) == 1
    assert os.listdir("/proc/self/fd") == fds
    assert threading.active_count() == threads
    assert list(temporary.iterdir()) == []
    wait_until(lambda: in_session_of(warm) <= before, what="only what was there before is left")
    assert ports.isdisjoint(listening_ports([os.getpid(), *before]))
    assert children_of(warm) <= before, "no zombies"


def test_data_that_is_to_stay_is_closed_cleanly_and_served_again(tmp_path: Path, temporary: Path) -> None:
    for _ in range(2):
        with Broker({"data.dir": str(tmp_path / "data")}) as broker:
            topic = broker.topic("t") if "was closed cleanly" in broker.log else broker.create_topic("t")
            topic.append(["v"])
    assert list(tmp_path.glob("brokerd-testing-*")) == []
    with Broker(data_dir=tmp_path / "data") as broker:
        assert len(broker.topic("t").rows()) == 2
        assert "0 bytes of torn tails cut" in broker.log


def test_a_port_that_is_taken_is_named(temporary: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            BrokerFailedError, match=rf"cannot listen on 127\.0\.0\.1:{port}: address already in use; choose another"
        ):
            Broker(port=port).start()
    assert list(temporary.iterdir()) == []


def test_a_broker_that_does_not_start_says_why(tmp_path: Path, temporary: Path) -> None:
    with Broker(data_dir=tmp_path / "data"), pytest.raises(BrokerFailedError) as caught, Broker(data_dir=tmp_path / "data"):
        pass
    text = str(caught.value)
    assert "the broker did not start: the data directory" in text
    assert "is locked: another brokerd uses it" in text
    assert list(temporary.glob("brokerd-testing-*")) == [], "nothing in it to look at"


def test_a_broker_that_does_not_start_and_leaves_nothing_to_look_at_keeps_no_directory(temporary: Path) -> None:
    with pytest.raises(BrokerFailedError) as caught:
        Broker(data_dir="/proc/data").start()
    assert re.fullmatch(r"the broker did not start: the data directory /proc/data cannot be used: .*[^:\n]", str(caught.value))
    assert list(temporary.iterdir()) == []


def test_a_broker_that_dies_by_itself_says_so(temporary: Path) -> None:
    with Broker() as broker:
        os.kill(broker.pid, signal.SIGSEGV)
        with pytest.raises(BrokerFailedError, match=r"it ended by itself by signal 11; its directory, which is kept, is"):
            wait_until(lambda: broker.pid == 0)
        broker.start()
        broker.create_topic("t").append(["v"])


def test_a_broker_is_of_use_between_start_and_close() -> None:
    broker = Broker()
    assert repr(broker) == "<Broker: not started>"
    with pytest.raises(BrokerdError, match="the broker is not open: use it in `with Broker"):
        broker.create_topic("t")
    broker.start()
    pid = broker.pid
    assert repr(broker) == f"<Broker at {broker.bootstrap_servers}>"
    assert repr(broker.create_topic("t")) == "<Topic 't'>"
    broker.close()
    broker.close()
    assert not is_alive(pid)
    assert repr(broker) == "<Broker: closed>"
    for call in (broker.start, broker.restart, broker.__enter__, lambda: broker.log, lambda: broker.create_topic("t")):
        with pytest.raises(BrokerdError, match=r"this Broker was closed, and its data is gone: make another"):
            call()


def test_a_closed_broker_whose_data_stays_says_where_it_is(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        pass
    with pytest.raises(BrokerdError, match=rf"this Broker was closed: make another; its data is in {tmp_path}/data"):
        broker.start()


def test_a_broker_that_could_not_start_may_be_started_again(tmp_path: Path) -> None:
    with held_port() as port:
        broker = Broker(port=port)
        with socket.create_server(("127.0.0.1", port)), pytest.raises(BrokerFailedError):
            broker.start()
        with broker:
            broker.create_topic("t")


def test_a_fork_has_no_broker_and_ends_none(broker: Broker) -> None:
    topic = broker.create_topic("of-the-parent")
    topic.append(["row"])  # over a socket that the fork has as well
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(ClientError, match="made before this process was forked"):
                broker.restart()
            with pytest.raises(ClientError, match="made before this process was forked"):
                topic.rows()
            broker.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_alive(broker.pid)


def test_a_call_that_waits_keeps_no_other_thread_waiting() -> None:
    with Broker() as broker:
        topic = broker.create_topic("t")
        topic.append(["before"])
        broker.fail_disk("full")
        appending = threading.Thread(target=topic.append, args=(["waits for room"],))
        appending.start()
        produce = broker.lose_response("Produce")
        wait_until(lambda: produce.has_happened, what="the append is tried again and again")
        assert [row.value for row in topic.rows()] == [b"before"]
        assert appending.is_alive()
        broker.heal_disk()
        appending.join()
        assert len(topic.rows()) == 2


def test_many_threads_share_a_limited_number_of_clients(broker: Broker) -> None:
    topic = broker.create_topic("crowded")
    others = len(children_of(keeper_of(broker))) - 1
    with ThreadPoolExecutor(3 * CLIENTS_MAX) as pool:
        for done in [pool.submit(topic.append, [f"v{number}"]) for number in range(3 * CLIENTS_MAX)]:
            done.result(DEADLINE_S)
    assert others <= len(children_of(keeper_of(broker))) - 1 <= CLIENTS_MAX
    assert len(topic.rows()) == 3 * CLIENTS_MAX


def test_what_forks_has_one_thread(broker: Broker) -> None:
    assert len(os.listdir(f"/proc/{warm_pid()}/task")) == 1
    assert len(os.listdir(f"/proc/{keeper_of(broker)}/task")) == 1


PROGRAM = """
import os, sys, threading
from brokerd.testing import Broker
with Broker() as broker:
    topic = broker.create_topic("t")
    topic.append(["v"])
    assert len(topic.rows()) == 1
    assert threading.active_count() == 1, threading.enumerate()
    assert len(os.listdir("/proc/self/task")) == 1, "threads that Python does not know"
    print(sorted(set(sys.modules) & {"grpc", "pyspark", "asyncio"}))
"""


def test_the_tests_process_has_neither_grpc_nor_threads() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    assert done.stderr == ""


FORKS = """
import os, sys
from brokerd.testing import Broker
with Broker() as broker:
    topic = broker.create_topic("t")
    pid = os.fork()
    if pid == 0:
        del broker, topic
        sys.exit()  # as a process of multiprocessing ends, and with all that an interpreter looks at then
    assert os.waitpid(pid, 0)[1] == 0
    assert topic.rows() == []
"""


def test_a_fork_that_ends_says_nothing_of_what_its_parent_has_open() -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
