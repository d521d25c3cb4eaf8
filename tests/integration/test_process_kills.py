"""Goal: two processes of one group, with eight handler threads each, die by SIGKILL repeatedly, and so does their broker. Every
record is handled at least once, one at a time per key, in order. With message ids in a file, no message in the file is handled
again, and none twice in a life, however often it was sent.

Method: real processes that kill themselves during work and start again. Each writes a journal, which the test reads.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from brokerd import Consumer, TopicPartition
from brokerd.testing import Broker
from tests.support.child import child
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = ("0,1", "2,3")
RECORDS = 3_000
KEYS = 50
DEATHS = 3  # of each process


class Reader:
    """A process of the group over its lives. The last one ends when the group has read all that was sent by `all_sent`."""

    def __init__(self, servers: str, partitions: str, folder: Path, seed: int, all_sent: threading.Event, *, has_ids: bool) -> None:
        self._servers = servers
        self._tps = [TopicPartition("t", int(number)) for number in partitions.split(",")]
        self._all_sent = all_sent
        self._command = [sys.executable, "-m", "tests.support.handling", servers, partitions]
        self._folder = folder
        self._rng = random.Random(seed)
        self._ids = folder / "ids" if has_ids else None
        self.lives: list[list[tuple[str, bytes, int]]] = []  # journal of each life: begins (B) and ends (E)
        self.known: list[set[int]] = []  # ids in the file before each life
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        folder.mkdir()
        self.thread.start()

    def _run(self) -> None:
        try:
            for life in range(DEATHS + 1):
                self._live(life)
        except BaseException as error:
            self.error = error

    def _live(self, life: int) -> None:
        journal = self._folder / f"journal-{life}"
        is_last = life == DEATHS
        dies_at = 0 if is_last else self._rng.randint(100, 400)
        ids = [] if self._ids is None else [str(self._ids)]
        self.known.append(self._read_ids())
        command = [*self._command, str(journal), str(dies_at), *ids]
        with child(command, stdin=subprocess.PIPE if is_last else None) as process:
            if is_last:
                self._wait_until_all_is_read(process)
            out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (0 if is_last else -signal.SIGKILL, ""), err
        lines = [line.split() for line in journal.read_bytes().splitlines()]
        self.lives.append([(what.decode(), key, int(value)) for what, key, value in lines])

    def _wait_until_all_is_read(self, process: subprocess.Popen[str]) -> None:
        assert self._all_sent.wait(DEADLINE_S)
        with Consumer({"bootstrap.servers": self._servers, "group.id": "g"}) as consumer:
            ends = consumer.end_offsets(self._tps)

            def is_read() -> bool:
                committed = consumer.committed(self._tps)
                return all(one is not None and one.offset == ends[tp] for tp, one in committed.items())

            wait_until(lambda: is_read() or process.poll() is not None, pause_s=0.05, what="the group has read everything")

    def _read_ids(self) -> set[int]:
        """The ids in the file, as the kill left it."""
        if self._ids is None or not self._ids.exists():
            return set()
        with contextlib.closing(sqlite3.connect(self._ids)) as database:
            if not list(database.execute("SELECT name FROM sqlite_master WHERE name = 'handled'")):
                return set()
            return {int(one) for (one,) in database.execute("SELECT id FROM handled")}


def check_life(life: list[tuple[str, bytes, int]]) -> None:
    """Asserts one record of a key at a time, each once, in order."""
    at_work: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    for what, key, number in life:
        if what == "B":
            assert key not in at_work, "two of a key at a time"
            assert number > last.get(key, -1), "out of order, or twice"
            at_work[key] = last[key] = number
        else:
            assert at_work.pop(key) == number


@pytest.mark.parametrize("has_ids", [False, True])
def test_processes_of_a_group_that_are_killed_handle_everything_in_order(tmp_path: Path, has_ids: bool) -> None:
    rng = random.Random(has_ids)
    messages = [(b"key-%d" % (number % KEYS), number) for number in range(RECORDS)]
    sent = []
    for message in messages:
        sent.append(message)
        if has_ids and rng.random() < 0.3:
            sent.append(rng.choice(sent[-300:]))
    all_sent = threading.Event()
    with Broker() as broker:
        topic = broker.create_topic("t", 4)
        rows = [{"key": key, "value": b"%d" % n, "headers": [("message-id", b"%d" % n)]} for key, n in sent]
        topic.append(rows[: len(rows) // 2])
        readers = [
            Reader(broker.bootstrap_servers, partitions, tmp_path / partitions, seed, all_sent, has_ids=has_ids)
            for seed, partitions in enumerate(PARTITIONS)
        ]
        broker.kill()
        broker.start()
        topic.append(rows[len(rows) // 2 :])
        all_sent.set()
        for reader in readers:
            reader.thread.join(DEADLINE_S)
            assert not reader.thread.is_alive()
            if reader.error is not None:
                raise reader.error
    for reader in readers:
        for life, known in zip(reader.lives, reader.known, strict=True):
            check_life(life)
            assert not known & {number for _, _, number in life}, "handled again though the file knew it"
    assert any(known for reader in readers for known in reader.known) == has_ids
    ends = [(key, number) for reader in readers for life in reader.lives for what, key, number in life if what == "E"]
    for key in {key for key, _ in messages}:
        handled = dict.fromkeys(number for one, number in ends if one == key)
        assert list(handled) == [number for one, number in messages if one == key], "each, the first time in order"
