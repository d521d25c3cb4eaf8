"""Goal: a process that did not close its clients exits at once, without losses or output on standard error. Real children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.metadata import id_of
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ClientConfig
from tests.support.child import child, first_line
from tests.support.daemon import DaemonProcess
from tests.support.wait import DEADLINE_S

_HEAD = """
import os, queue, signal, sys, threading
from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.leases import lease_client
from brokerd.client.fetching import PartitionFetcher
from brokerd.client.fetching import FetchRange
from brokerd.config.client import ConsumerConfig, ProducerConfig
from brokerd.ids import TopicIdPartition
from brokerd.sink.task import producers

TOPIC, SERVERS = sys.argv[1:]
CONFIG = ConsumerConfig(bootstrap_servers=SERVERS)

def reader(client):
    topic = client.metadata([TOPIC]).topics[TOPIC]
    return PartitionFetcher(client, [FetchRange(TopicIdPartition(topic.topic_id, 0), 0)], CONFIG)

def task():
    with lease_client(CONFIG) as client:
        client.metadata([TOPIC])
    with producers.lease(ProducerConfig(bootstrap_servers=SERVERS)) as producer:
        producer.send(TOPIC, value=b"x")
        producer.flush()
"""
_FORGETFUL = {  # the child's code, and how many records must exist in the end
    "a producer with records that are not sent yet": (
        "producer = Producer(bootstrap_servers=SERVERS, linger_ms=60_000)\nfor _ in range(100): producer.send(TOPIC, value=b'x')",
        100,
    ),
    "producers that nobody refers to": (
        "for _ in range(3): Producer(bootstrap_servers=SERVERS).send(TOPIC, value=b'x').result()",
        3,
    ),
    "a producer left by sys.exit": (
        "with Producer(bootstrap_servers=SERVERS) as producer:\n    producer.send(TOPIC, value=b'x').result()\n    sys.exit(0)",
        1,
    ),
    "a consumer with a poll under way": ("reader(BlockingClient(CONFIG)).next_batch(timeout_ms=1)", 0),
    "a consumer and a producer in daemon threads": (
        """
ready = queue.SimpleQueue()
def read():
    for _ in reader(BlockingClient(CONFIG)): ready.put("read")
def ask():
    with lease_client(CONFIG) as client:
        while True: ready.put(client.metadata([TOPIC]) and "asked")
def write():
    producer = Producer(bootstrap_servers=SERVERS)
    while True: producer.send(TOPIC, value=b"x").result() and ready.put("written")
for work in (read, write, ask): threading.Thread(target=work, daemon=True).start()
seen = set()
while len(seen) < 3: seen.add(ready.get())
""",
        None,
    ),
    "children of multiprocessing": (
        """
import multiprocessing
def write(started):
    with Producer(bootstrap_servers=SERVERS) as producer:
        started.set()
        threading.Event().wait(0.1)
        producer.send(TOPIC, value=b"x")
def work():
    producer = Producer(bootstrap_servers=SERVERS, linger_ms=60_000)
    for _ in range(100): producer.send(TOPIC, value=b"x")
    started = threading.Event()
    threading.Thread(target=write, args=(started,)).start()
    started.wait()
children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
for child in children: child.start()
for child in children: child.join()
""",
        202,
    ),
    "what a Spark worker keeps between tasks": ("task()\ntask()", 2),
    "a worker that was forked, and one that is ended": (
        """
for end in (lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGTERM)):
    child = os.fork()
    if child == 0:
        task()
        end()
    os.waitpid(child, 0)
""",
        2,
    ),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("exit") / "data") as broker:
        yield broker


def started(
    code: str, topic: str, broker: DaemonProcess, *, before: str = "", stdin: int | None = None
) -> AbstractContextManager[subprocess.Popen[str]]:
    return child([sys.executable, "-W", "always", "-c", before + _HEAD + code, topic, broker.address], stdin=stdin)


def count(broker: DaemonProcess, topic: str) -> int:
    with BlockingClient(ClientConfig(bootstrap_servers=broker.address)) as client:
        tp = id_of(client.metadata([topic]).topic(topic), 0)
        found = client.list_offsets({tp: OffsetSpec.LATEST})[tp]
    return int(found.offset)  # type: ignore[union-attr]


def new_topic(broker: DaemonProcess) -> str:
    topic = f"t{os.urandom(4).hex()}"
    with BlockingClient(ClientConfig(bootstrap_servers=broker.address)) as client:
        client.create_topic(topic, 1)
    return topic


@pytest.mark.parametrize("what", _FORGETFUL)
def test_what_was_forgotten_is_closed_in_silence(what: str, broker: DaemonProcess) -> None:
    code, record_count = _FORGETFUL[what]
    topic = new_topic(broker)
    with started(code, topic, broker) as process:
        told = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, *told) == (0, "", "")
    if record_count is not None:
        assert count(broker, topic) == record_count


def test_a_pool_that_is_waited_for_at_exit_hears_that_its_client_is_closed(broker: DaemonProcess) -> None:
    """Callbacks registered before the clients' own run after those."""
    before = """
import atexit
from multiprocessing.pool import ThreadPool
pool = ThreadPool(1)
atexit.register(lambda: (pool.close(), pool.join(), print("joined")))
"""
    code = """
client = BlockingClient(CONFIG)
ready = threading.Event()
def ask():
    while True: client.metadata([TOPIC]) and ready.set()
pool.apply_async(ask)
ready.wait()
"""
    with started(code, new_topic(broker), broker, before=before) as process:
        told = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, *told) == (0, "joined\n", "")


@pytest.mark.parametrize("work", ["producer.send(TOPIC, value=b'x')", "producer.send(TOPIC, value=b'x').result()", "poll()"])
def test_an_interrupted_process_says_nothing_of_ours(work: str, broker: DaemonProcess) -> None:
    code = f"""
producer = Producer(bootstrap_servers=SERVERS, linger_ms=1)
poll = reader(BlockingClient(CONFIG)).next_batch
producer.send(TOPIC, value=b"x").result()
try:
    print("ready", flush=True)
    while True: {work}
except KeyboardInterrupt:
    print("interrupted")
"""
    with started(code, new_topic(broker), broker) as process:
        assert first_line(process) == "ready\n"
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, *told) == (0, "interrupted\n", "")


def test_whoever_interrupts_the_last_sending_does_not_wait_for_it_and_hears_what_is_lost(tmp_path: Path) -> None:
    """The broker is stopped, so no record sent at exit gets a response."""
    code = """
producers = [Producer(bootstrap_servers=SERVERS, linger_ms=60_000) for _ in range(3)]
for producer in producers: producer.partitions_for(TOPIC)
print("ready", flush=True)
sys.stdin.readline()
for producer in producers: producer.send(TOPIC, value=b"x")
def interrupt():
    while not any(producer._core.accumulator.is_closed for producer in producers): threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
"""
    with DaemonProcess(tmp_path / "data") as broker, started(code, new_topic(broker), broker, stdin=subprocess.PIPE) as process:
        assert first_line(process) == "ready\n"
        broker.process.send_signal(signal.SIGSTOP)
        told = process.communicate("go\n", timeout=DEADLINE_S)
    assert (process.returncode, told[0]) == (0, "")
    assert [line.split(":")[0] for line in told[1].splitlines()] == ["1 record(s) were given up because the process ended"] * 3


def test_the_ceiling_of_the_benchmarks_leaves_nothing_behind() -> None:
    code = """
import sys
from benchmarks.floor import give_seconds, sync_latencies, take_seconds
for _ in range(5):
    take_seconds(sys.argv[1], [b"x"])
    give_seconds(sys.argv[1], 1)
    sync_latencies(sys.argv[1], b"x", 1)
"""
    with child([sys.executable, "-m", "benchmarks.floor"]) as server:
        with child([sys.executable, "-c", code, first_line(server).split()[-1]]) as client:
            heard = client.communicate(timeout=DEADLINE_S)
        server.send_signal(signal.SIGINT)
        told = server.communicate(timeout=DEADLINE_S)
    assert (client.returncode, *heard) == (0, "", "")
    assert (server.returncode, *told) == (0, "", "")
