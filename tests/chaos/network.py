"""Chaos of the network between three nodes and their etcd: `python -m tests.chaos.network --seconds 600 --seed 1`. Needs root.

Three `brokerd start` and one real etcd run, each in its own network namespace, joined by a bridge. Producers, consumers and
transactions use an address of the bridge. Filters on the bridge drop packets in one direction or both; other faults reset
connections, take links down, and kill or suspend processes, some for longer than a node's lease. The history is checked as with one
node, and after each fault every partition must accept records again. The exit code is 0 only if nothing was wrong and each kind of
fault happened.

The program first moves into namespaces of its own (network, processes, mounts). The kernel removes them when it exits, however it
exits. The machine's network is neither used nor changed, and no process outlives the run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.cluster import NODES, judged, options, replication, report
from tests.chaos.run import SETTINGS, TRANSACTIONAL, Verdict
from tests.support.daemon import DaemonProcess
from tests.support.real_etcd import ETCD, MISSING, etcd_command
from tests.support.wait import wait_until

NODE_IDS = range(1, NODES + 1)
ETCD_ID = NODES + 1
CLIENTS_ID = NODES + 2
_PORT = 9092
_ETCD_PORT = 2379
_ETCD_PEER_PORT = 2380
_SHORT_SECONDS = (0.2, 4.0)
_LONG_SECONDS = (10.0, 16.0)  # longer than a lease
_LONG_SHARE = 0.3
_LOSS = "numgen random mod 100 < 30"
_DRAWS = 6  # nodes to try until a filter meets a packet: not every pair of nodes exchanges packets all the time
_TOOLS = ("ip", "nft", "nsenter", "setsid", "unshare")
_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_NAMES = "/run/netns"

Way = tuple[int, int]  # source, target


def why_not() -> str:
    """Why this machine cannot run these faults; "" if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "faults of the network need root, to make network namespaces"
    if missing:
        return f"faults of the network need {', '.join(missing)} (Debian: iproute2, nftables, util-linux)"
    if ETCD is None:
        return MISSING
    made = subprocess.run([*_NAMESPACES, "nft", "list", "tables", "bridge"], capture_output=True, text=True)
    return f"faults of the network need namespaces and nftables: {made.stderr.strip()}" if made.returncode else ""


def address(host: int) -> str:
    """The address of a node, etcd or the clients."""
    return f"10.77.0.{host}"


def inside(host: int) -> tuple[str, ...]:
    """A command prefix that runs a command in a host's network namespace, as the same process, which Ctrl-C does not reach."""
    return ("setsid", "nsenter", f"--net={_NAMES}/host{host}", "--")


def both_ways(host: int, *others: int) -> list[Way]:
    """From one host to others, and back."""
    return [way for other in others for way in ((host, other), (other, host))]


class Lan:
    """The hosts, joined by a bridge. The namespaces' names are in a tmpfs of this run."""

    def __init__(self) -> None:
        os.makedirs(_NAMES, exist_ok=True)  # as `ip netns` does
        _run("mount", "-t", "tmpfs", "tmpfs", _NAMES)
        _run("ip", "link", "add", "name", "lan", "type", "bridge")
        _run("ip", "address", "add", f"{address(CLIENTS_ID)}/24", "dev", "lan")
        _run("ip", "link", "set", "lan", "up")
        for host in (*NODE_IDS, ETCD_ID):
            name = f"host{host}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", name, "master", "lan", "up")
            _run("ip", "-n", name, "address", "add", f"{address(host)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")

    def lossy(self, ways: Sequence[Way], which: str) -> AbstractContextManager[Callable[[], int]]:
        """Drops packets that go these ways: all, or those that the nft match `which` draws. Yields a function that counts them."""
        rules = [f"ip saddr {address(source)} ip daddr {address(target)} {which} counter drop" for source, target in ways]
        return _filtered((), "bridge", ("prerouting", "output"), rules)

    def resetting(self, host: int) -> AbstractContextManager[Callable[[], int]]:
        """Answers TCP packets from and to a host with a reset. Yields a function that counts them."""
        rules = ["meta l4proto tcp counter reject with tcp reset"]
        return _filtered(inside(host), "inet", ("input", "output"), rules)

    @contextmanager
    def unplugged(self, host: int) -> Iterator[None]:
        """Takes a host's link down."""
        _run("ip", "link", "set", f"host{host}", "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", f"host{host}", "up")


@contextmanager
def _filtered(where: Sequence[str], family: str, hooks: Sequence[str], rules: Sequence[str]) -> Iterator[Callable[[], int]]:
    """Applies nft rules at these hooks inside the context. Yields a function that counts the matching packets."""
    chains = (f"chain {hook} {{ type filter hook {hook} priority 0; {'; '.join(rules)}; }}" for hook in hooks)
    _run(*where, "nft", "\n".join((f"table {family} faults {{", *chains, "}")))

    def hits() -> int:
        return sum(map(int, re.findall(r"packets (\d+)", _run(*where, "nft", "list", "table", family, "faults"))))

    try:
        yield hits
    finally:
        _run(*where, "nft", "delete", "table", family, "faults")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Node(DaemonProcess):
    """`brokerd start` as one host."""

    def __init__(self, directory: Path, node_id: int, factor: int) -> None:
        settings = {**SETTINGS, **replication(factor), "host": address(node_id), "allow.unauthenticated": "true"}
        super().__init__(directory / f"node-{node_id}", port=_PORT, settings=settings)
        self._id = node_id

    @property
    def address(self) -> str:
        """host:port."""
        return f"{address(self._id)}:{self.port}"

    def command(self) -> list[str]:
        """See DaemonProcess."""
        member = ["--node-id", str(self._id), "--cluster", "chaos", "--coordination", f"etcd://{address(ETCD_ID)}:{_ETCD_PORT}"]
        return [*inside(self._id), *super().command(), *member]


class Etcd:
    """A real etcd as one host; killed at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Returns once it listens."""
        command = etcd_command(self._directory / "etcd", address(ETCD_ID), _ETCD_PORT, _ETCD_PEER_PORT)
        with open(self._directory / "etcd.stderr", "ab") as stderr:
            self._process = subprocess.Popen([*inside(ETCD_ID), *command], stdout=stderr, stderr=stderr)
        wait_until(self._listens, what="etcd listens")

    def kill(self) -> None:
        """Kills it with SIGKILL and waits for its exit."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((address(ETCD_ID), _ETCD_PORT), 1.0).close()
            return True
        return False


class NetworkNemesis:
    """Faults, each of which undoes its effects before it returns. `injected` counts the packets dropped or answered with a reset; a
    filter that met none does not count as a fault.
    """

    def __init__(self, lan: Lan, nodes: dict[int, Node], etcd: Etcd, dice: random.Random, stopped: threading.Event) -> None:
        self.counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self._lan = lan
        self._nodes = nodes
        self._etcd = etcd
        self._dice = dice
        self._stopped = stopped
        self._filters = {name: functools.partial(self._filter, name) for name in (*self._ways(1, 2), "reset")}

    def faults(self) -> dict[str, Callable[[], None]]:
        """All faults, by name."""
        return {**self._filters, "link": self.unplug, "kill": self.kill, "pause": self.pause, "etcd-kill": self.kill_etcd}

    def run(self, name: str) -> None:
        """Runs one fault to its end."""
        before = self.injected[name]
        self.faults()[name]()
        if name not in self._filters or self.injected[name] > before:
            self.counts[name] += 1

    def _ways(self, node: int, peer: int) -> dict[str, list[Way]]:
        """The directions in which packets are lost, by name of the fault."""
        everybody = [host for host in (*NODE_IDS, ETCD_ID, CLIENTS_ID) if host != node]
        return {
            "etcd-cut": both_ways(node, ETCD_ID),
            "etcd-deaf": [(node, ETCD_ID)],
            "etcd-mute": [(ETCD_ID, node)],
            "etcd-alone": both_ways(ETCD_ID, *NODE_IDS),
            "peer-cut": both_ways(node, peer),
            "peer-deaf": [(node, peer)],
            "clients-cut": both_ways(node, CLIENTS_ID),
            "clients-deaf": [(node, CLIENTS_ID)],
            "isolate": both_ways(node, *everybody),
            "loss": both_ways(node, *everybody),
        }

    def _filter(self, name: str) -> None:
        """Drops or resets packets as the fault `name` says. Draws other nodes while no packet was met."""
        for _ in range(_DRAWS):
            node, peer = self._dice.sample(NODE_IDS, 2)
            ways, which = self._ways(node, peer), _LOSS if name == "loss" else ""
            with self._lan.resetting(node) if name == "reset" else self._lan.lossy(ways[name], which) as hits:
                self._wait()
                met = hits()
            self.injected[name] += met
            if met:
                return

    def unplug(self) -> None:
        """Takes a node's link down."""
        with self._lan.unplugged(self._dice.choice(NODE_IDS)):
            self._wait()

    def kill(self) -> None:
        """Kills a node with SIGKILL and restarts it."""
        node = self._drawn()
        node.kill()
        self._wait()
        node.start()

    def pause(self) -> None:
        """Suspends a node with SIGSTOP."""
        node = self._drawn()
        node.process.send_signal(signal.SIGSTOP)
        try:
            self._wait()
        finally:
            node.process.send_signal(signal.SIGCONT)

    def kill_etcd(self) -> None:
        """Kills etcd with SIGKILL and restarts it on its data."""
        self._etcd.kill()
        self._wait()
        self._etcd.start()

    def _drawn(self) -> Node:
        return self._nodes[self._dice.choice(NODE_IDS)]

    def _wait(self) -> None:
        self._stopped.wait(self._dice.uniform(*(_LONG_SECONDS if self._dice.random() < _LONG_SHARE else _SHORT_SECONDS)))


def run(
    *,
    seconds: float,
    seed: int,
    directory: Path | None = None,
    kinds: list[str] | None = None,
    rounds: int | None = None,
    transactional: Sequence[str] = TRANSACTIONAL,
    factor: int = 1,
) -> Verdict:
    """One run in namespaces of its own: faults of `kinds` (default all) for `seconds`, or `rounds` of them. `factor`: replicas of
    each partition.
    """
    with ExitStack() as stack:
        directory = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerd-network-")))
        lan = Lan()
        etcd = stack.enter_context(Etcd(directory))
        nodes = {node_id: stack.enter_context(Node(directory, node_id, factor)) for node_id in NODE_IDS}
        nemesis = NetworkNemesis(lan, nodes, etcd, random.Random(seed), threading.Event())
        bootstrap = ",".join(node.address for node in nodes.values())
        verdict = Verdict(seed, kinds or sorted(nemesis.faults()))
        return judged(bootstrap, nemesis, verdict, seconds=seconds, rounds=rounds, transactional=transactional)


def main() -> int:
    """Command line."""
    parser = options(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--directory", type=Path, help="where data and logs go and stay; default one that is removed at the end")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        reason = why_not()
        if reason:
            sys.stderr.write(f"{reason}\n")
            return 2
        os.execvp(_NAMESPACES[0], [*_NAMESPACES, sys.executable, "-m", "tests.chaos.network", "--inside", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the first process of a PID namespace it would ignore it
    return report(functools.partial(run, directory=args.directory), args)


if __name__ == "__main__":
    raise SystemExit(main())
