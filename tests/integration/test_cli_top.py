"""Goal: `brokerd top` shows a real broker's activity, survives its death, follows the terminal's size and restores the terminal.
Method: lines of JSON, and a real process in a pseudo-terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from brokerd import Consumer, Producer
from brokerd.ids import TopicPartition
from brokerd.testing import Broker
from tests.integration.conftest import Terminal
from tests.support.child import ROOT
from tests.support.wait import DEADLINE_S

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ENTER, LEAVE, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class PseudoTerminal:
    """`brokerd top` in its own terminal, and everything that it has written there."""

    def __init__(self, *options: str) -> None:
        self._master, slave = pty.openpty()
        self._resize(100, 30)
        env = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        command = [sys.executable, "-m", "brokerd", "top", *options]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=ROOT, start_new_session=True)
        os.close(slave)
        self.written = ""

    def read_until(self, pattern: str) -> str:
        """Reads until new output contains `pattern`, and returns that output. Raises AssertionError if it never does."""
        begin, end = len(self.written), time.monotonic() + DEADLINE_S
        while not re.search(pattern, _COLOURS.sub("", self.written[begin:]), re.DOTALL):
            readable, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            assert readable, f"no '{pattern}' in {self.written[begin:][-3_000:]!r}"
            self.written += self._read() or pytest.fail(f"it ended: {self.written[-2_000:]!r}")
        return self.written[begin:]

    def read_to_end(self) -> None:
        """Reads until the process has ended."""
        while data := self._read():
            self.written += data

    def resize(self, columns: int, lines: int) -> None:
        """Changes the terminal's size, which signals the process."""
        self._resize(columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def close(self) -> None:
        """Ends the process if it is running."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> str:
        try:
            return os.read(self._master, 65_536).decode(errors="replace")
        except OSError:  # the other end is closed
            return ""


@contextlib.contextmanager
def top(*options: str) -> Iterator[PseudoTerminal]:
    terminal = PseudoTerminal(*options)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def broker(terminal: Terminal) -> Iterator[Broker]:
    with Broker() as broker:
        terminal.use(broker.bootstrap_servers)
        terminal.run("topics", "create", "watched", "-p", "2")
        yield broker


def test_lines_of_json_have_rates_and_lag(broker: Broker, terminal: Terminal) -> None:
    terminal.run("produce", "watched", "-p", "0", stdin=b"x\n" * 10)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="readers", enable_auto_commit=False) as consumer:
        consumer.assign([("watched", 0)])
        consumer.commit({TopicPartition("watched", 0): 4})
    code, out, err = terminal.run("top", "--json", "--once", "--interval-ms", "100")
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    shown = json.loads(line)
    (topic,) = shown["topics"]
    assert (topic["topic"], topic["partitions"], topic["offsets"], topic["offsets_per_s"]) == ("watched", 2, 10, 0.0)
    assert topic["bytes_per_s"] == 0.0
    assert topic["size_bytes"] > 0
    (group,) = shown["groups"]
    assert (group["group_id"], group["lag"]) == ("readers", 6)
    code, out, _ = terminal.run("top", "--once", "--interval-ms", "100")
    assert code == 0
    assert re.search(r"watched +10 +0 ", out)
    assert "\x1b" not in out, "no colours where no terminal is"


def test_an_open_transaction_is_shown(broker: Broker, terminal: Terminal) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="import") as producer, producer.transaction():
        producer.send("watched", b"x", partition=0).result()
        shown = json.loads(terminal.run("top", "--json", "--once", "--interval-ms", "100")[1])
    (found,) = shown["transactions"]
    assert (found["transactional_id"], found["state"], found["open_members"]) == ("import", "open", 1)
    assert shown["topics"][0]["held_back"] == 1


def test_a_terminal_is_drawn_followed_and_left_as_it_was(broker: Broker, terminal: Terminal) -> None:
    with top("-b", broker.bootstrap_servers, "--interval-ms", "100", "-X", "default.api.timeout.ms=500") as screen:
        assert ENTER in screen.read_until(r"watched +0 ")
        terminal.run("produce", "watched", stdin=b"x\n" * 7)
        screen.read_until(r"watched +7 ")
        screen.resize(45, 8)
        screen.read_until("1 topic, 0 shown")
        screen.resize(100, 30)
        broker.kill()
        screen.read_until(r"unreachable since 2\d\d\d-")
        broker.start()
        terminal.run("produce", "watched", stdin=b"x\n" * 5)
        screen.read_until(r"watched +12 ")
        screen.process.send_signal(signal.SIGINT)
        screen.read_to_end()
        assert screen.process.wait(DEADLINE_S) == 0
    after = screen.written.rpartition(LEAVE)
    assert after[1] == LEAVE
    assert SHOW_CURSOR in screen.written[screen.written.rindex("watched") :]
    assert "Traceback" not in screen.written


def test_sigterm_leaves_the_terminal_as_it_was_too(broker: Broker) -> None:
    with top("-b", broker.bootstrap_servers, "--interval-ms", "100") as screen:
        screen.read_until("watched")
        screen.process.terminate()
        screen.read_to_end()
        assert screen.process.wait(DEADLINE_S) == 0
    assert screen.written.count(ENTER) == screen.written.count(LEAVE) == 1
