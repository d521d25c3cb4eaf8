"""Goal: whatever an attacker does, an honest client continues, memory is bounded, a stop is in time, and a client without
credentials reads nothing. Method: each attack of the benchmark on a small scale, without credentials and by a principal at once.
The benchmark measures the honest client's speed.
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
MEMORY_OVER_BYTES = 150_000_000  # the goal, and memory that the allocator keeps


class Honest:
    """One connection with a produce and a fetch stream, all kept to the end."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.tps = client.create_topic("honest", PARTITIONS)
        self._producer: RawProducer = client.producer()
        self._fetcher: RawFetcher = client.fetcher()
        self._count = 0

    @property
    def tp(self) -> TopicIdPartition:
        """The partition that the client uses."""
        return self.tps[0]

    def goes_on(self) -> None:
        """Asserts that a call and both streams still work."""
        assert len(self.client.metadata("honest").topics) == 1
        assert self._producer.produce(self.tp, values_batch(self.tp)).base_offset == self._count
        self._count += 1
        head, _ = self._fetcher.fetch({self.tp: self._count - 1})
        assert head.results[0].high_watermark == self._count


@pytest.mark.parametrize("first", range(BROKERS))
def test_an_attack_ends_nobody_else(tmp_path: Path, auth_file: Path, first: int) -> None:
    """One kind of attack after another on one broker; the last one is still running when the broker stops."""
    settings = {"auth.file": auth_file, "max.memory.bytes": MEMORY_BYTES, "shutdown.grace.ms": 500}
    with DaemonProcess(tmp_path / "data", settings=settings) as daemon, with_token(daemon.address, TOKENS["boss"]) as client:
        honest = Honest(client)
        honest.goes_on()
        with contextlib.ExitStack() as attackers:
            for kind in list(ATTACKS)[first::BROKERS]:
                attackers.close()  # those of the previous kind
                attack(kind, daemon, honest, attackers)
            assert daemon.terminate() == 0, daemon.stderr_path.read_text()[-2_000:]
        told = daemon.stderr_path.read_text()
        assert "Traceback" not in told, told[-4_000:]
        assert "internal error" not in told, told[-4_000:]


def attack(kind: str, daemon: DaemonProcess, honest: Honest, attackers: contextlib.ExitStack) -> None:
    """Some steps of an attack, without credentials and by a principal; `attackers` holds their connections."""
    aims = [Aim(daemon.port, token, honest.tp.topic_id, PARTITIONS) for token in (None, TOKENS["boss"])]
    stranger, principal = (attackers.enter_context(closing(ATTACKS[kind](aim))) for aim in aims)
    for _ in range(STEPS):
        for one in (stranger, principal):
            one.connections_max = min(one.connections_max, CONNECTIONS)
            one.step()
        honest.goes_on()
    assert stranger.read_bytes == 0 or stranger.is_public, kind
    assert resident_bytes(daemon.pid, most=True) < MEMORY_BYTES + MEMORY_OVER_BYTES, kind
