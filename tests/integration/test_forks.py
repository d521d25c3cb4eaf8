"""Goal: a process that has or had clients may fork, as Spark does at its start, and no child dies of it. Real children.

`python -m tests.integration.test_forks 1000` is the long run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.support.daemon import DaemonProcess

FORKS = 20
# Clients that the parent has had or has open, one after another in one process. The children use none of them.
OPENED = {
    "closed clients": """
producer().close()
fork_children("a closed producer")
consumer().close()
fork_children("a closed consumer")
asyncio.run(awaited())
fork_children("closed asyncio clients")
""",
    "open clients": """
opened = [producer()]
fork_children("a producer")
opened.append(consumer())
fork_children("a consumer")
asyncio.run(awaited(then=lambda: fork_children("asyncio clients") or os._exit(0)))
""",
}
_PROGRAM = """
import asyncio, concurrent.futures, contextlib, gc, os, subprocess, sys, time
from brokerd import Consumer, Producer, aio

servers, count = sys.argv[1], int(sys.argv[2])

def producer():
    producer = Producer(bootstrap_servers=servers)
    producer.send("forks", b"x").result()
    return producer

def consumer():
    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([("forks", 0)])
    assert consumer.poll()
    return consumer

async def awaited(then=lambda: None):
    async with aio.Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait("forks", b"x")
        async with aio.Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("forks", 0)])
            assert await consumer.poll()
            then()

def fork():
    pid = os.fork()
    if pid == 0:
        gc.collect()  # what closed clients have left is gRPC's, which waits for ever for threads that are not here
        time.sleep(0.01)  # while threads of gRPC, if it had started any, crash it
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def preexec():
    return subprocess.call(["true"], preexec_fn=lambda: None)

def pool():
    try:
        with concurrent.futures.ProcessPoolExecutor(4) as pool:
            return sum(pool.map(abs, range(8))) - 28
    except concurrent.futures.BrokenExecutor as error:
        return repr(error)

def fork_children(opened):
    for kind in (fork, preexec, pool):
        ends = [end for end in (kind() for _ in range(count // 4 if kind is pool else count)) if end]
        if ends:
            print(opened, kind.__name__, ends, flush=True)

"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with broker_with_topic(tmp_path_factory.mktemp("forks")) as broker:
        yield broker


@contextlib.contextmanager
def broker_with_topic(directory: Path) -> Iterator[DaemonProcess]:
    """A running broker with a topic that has a record."""
    with DaemonProcess(directory / "data") as broker:
        with BlockingClient(ClientConfig(bootstrap_servers=broker.address)) as client:
            client.create_topic("forks", 1)
        with Producer(bootstrap_servers=broker.address) as producer:
            producer.send("forks", b"x").result()  # consumers wait for it
        yield broker


def failed_ends(broker: DaemonProcess, opened: str, count: int) -> str:
    """Output of a process that opens clients and then forks: a line for each kind of children of which any failed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", f"{_PROGRAM}{OPENED[opened]}", broker.address, str(count)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    return done.stdout.strip() + done.stderr.strip()


@pytest.mark.parametrize("opened", OPENED)
def test_no_child_dies(broker: DaemonProcess, opened: str) -> None:
    assert failed_ends(broker, opened, FORKS) == ""


def main(count: int) -> None:
    """Prints the result of `count` forks of each kind, and of a quarter as many pools."""
    with tempfile.TemporaryDirectory() as directory, broker_with_topic(Path(directory)) as broker:
        for opened in OPENED:
            print(opened, count, failed_ends(broker, opened, count), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
