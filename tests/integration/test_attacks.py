"""Goal: whatever an attacker does, an honest client goes on, memory is bounded, a stop comes in time, and a stranger reads nothing.
Each kind of attack of the benchmark in a small form, of a stranger and of a principal at once; how fast the honest client is
meanwhile, the benchmark tells.
"""

from __future__ import annotations

import contextlib
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.attackers import ATTACKS, Aim
from brokerd.ids import TopicIdPartition
from tests.integration.security.conftest import with_token
from tests.support.child import resident_bytes
from tests.support.daemon import DaemonProcess
from tests.support.identities import TOKENS
from tests.support.raw_client import RawClient, RawFetcher, RawProducer, values_batch

STEPS = 10
BROKERS = 4  # each takes its share of the kinds
CONNECTIONS = 3
PARTITIONS = 20
MEMORY_BYTES = 300_000_000
MEMORY_OVER_BYTES = 150_000_000  # the goal, and what this machine's allocator keeps


class Honest:
    """One connection with a stream to write and one to read, both kept to the end."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.tps = client.create_topic("honest", PARTITIONS)
        self._producer: RawProducer = client.producer()
        self._fetcher: RawFetcher = client.fetcher()
        self._count = 0

    @property
    def tp(self) -> TopicIdPartition:
        """The partition that it uses."""
        return self.tps[0]

    def goes_on(self) -> None:
        """Asserts that a call, the stream to write and the one to read are as before."""
        assert len(self.client.metadata("honest").topics) == 1
        assert self._producer.produce(self.tp, values_batch(self.tp)).base_offset == self._count
        self._count += 1
        head, _ = self._fetcher.fetch({self.tp: self._count - 1})
        assert head.results[0].high_watermark == self._count


@pytest.mark.parametrize("first", range(BROKERS))
def test_an_attack_ends_nobody_else(tmp_path: Path, auth_file: Path, first: int) -> None:
    """One kind after another on one broker; the last is still under way as the broker stops."""
    settings = {"auth.file": auth_file, "max.memory.bytes": MEMORY_BYTES, "shutdown.grace.ms": 500}
    with DaemonProcess(tmp_path / "data", settings=settings) as daemon, with_token(daemon.address, TOKENS["boss"]) as client:
        honest = Honest(client)
        honest.goes_on()
        with contextlib.ExitStack() as attackers:
            for kind in list(ATTACKS)[first::BROKERS]:
                attackers.close()  # those of the kind before
                attack(kind, daemon, honest, attackers)
            assert daemon.terminate() == 0, daemon.stderr_path.read_text()[-2_000:]
        told = daemon.stderr_path.read_text()
        assert "Traceback" not in told, told[-4_000:]
        assert "internal error" not in told, told[-4_000:]


def attack(kind: str, daemon: DaemonProcess, honest: Honest, attackers: contextlib.ExitStack) -> None:
    """Some steps of a stranger and of a principal; `attackers` has their connections."""
    aims = [Aim(daemon.port, token, honest.tp.topic_id, PARTITIONS) for token in (None, TOKENS["boss"])]
    stranger, principal = (attackers.enter_context(closing(ATTACKS[kind](aim))) for aim in aims)
    for _ in range(STEPS):
        for one in (stranger, principal):
            one.connections_max = min(one.connections_max, CONNECTIONS)
            one.step()
        honest.goes_on()
    assert stranger.read_bytes == 0 or stranger.is_public, kind
    assert resident_bytes(daemon.pid, most=True) < MEMORY_BYTES + MEMORY_OVER_BYTES, kind
