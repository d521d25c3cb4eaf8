"""Measures an honest client beside an attacker, for each kind of attack, with and without a token. The goals: an attacker without a
token reads nothing, the honest client recovers, memory stays within its limit, and the broker stops in time after SIGTERM. The
honest client's slowdown and disconnections are reported but are no goals: keeping floods away is a firewall's job.

The attacker is a process on the same machine, so part of its effect is the processor time that it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.attackers import ATTACKS, Aim
from benchmarks.environment import Broker
from benchmarks.measure import quantile_ms, text_table
from benchmarks.raw import RawProducer, RawTail, run_in_loop, small_payload
from brokerd.client.broker_client import BrokerClient
from brokerd.client.topics import create_topics
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition
from brokerd.server.daemon import REST_MS
from brokerd.server.security.tokens import hash_token
from brokerd.wire.v1.topics_pb2 import NewTopic

_HONEST, _ATTACKER = "honest-5b9c2e7f1a4d8c3e6b0f9a2d", "attacker-1f4e7a0d3c6b9e2f5a8d1c4b"
_AUTH_FILE = f"""
[principals.honest]
tokens = ["{hash_token(_HONEST)}"]
read = ["*"]
write = ["*"]
admin = ["*"]

[principals.attacker]
tokens = ["{hash_token(_ATTACKER)}"]
read = ["*"]
write = ["*"]
admin = ["attack-*"]
"""
MEMORY_BYTES = 400_000_000
MEMORY_OVER_BYTES = 100_000_000
GRACE_MS = 1_000
PARTITIONS = 200
NORMAL_WITHIN_S = 5.0
_PAUSE_S = 0.01
_STEP_PAUSE_S = 0.002
_CALL_TIMEOUT_MS = 30_000
_ATTACKER_S = 600.0  # an upper limit, in case the parent does not end it
_BEGUN, _HAS_READ = "begun", "has read"


class Honest:
    """A client that requests metadata, writes a batch and reads it, in rounds. Keeps connections and streams until they fail."""

    def __init__(self, address: str) -> None:
        config = ClientConfig(bootstrap_servers=address, auth_token=_HONEST, request_timeout_ms=_CALL_TIMEOUT_MS)
        self.client = BrokerClient(config, SystemClock(), is_retrying=False)
        self.cut_off = 0
        self._payload = small_payload(100)
        self._producer: RawProducer | None = None
        self._tail: RawTail | None = None
        self._offset = 0

    async def set_up(self) -> TopicIdPartition:
        """Creates the topic; returns the partition that the rounds use."""
        await create_topics(self.client, [NewTopic(name="honest", partitions=PARTITIONS)])
        topic = (await self.client.metadata(["honest"])).topics["honest"]
        self._tp = TopicIdPartition(topic.topic_id, 0)
        return self._tp

    async def rounds(self, seconds: float) -> list[float]:
        """Runs rounds for `seconds`; returns the seconds of each."""
        taken: list[float] = []
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            start_s = time.perf_counter()
            try:
                await self._round()
            except (BrokerdError, TimeoutError):
                self.cut_off += 1
                await self._drop()
            taken.append(time.perf_counter() - start_s)
            await asyncio.sleep(_PAUSE_S)
        return taken

    async def close(self) -> None:
        """Closes streams and client."""
        await self._drop()
        await self.client.close()

    async def _round(self) -> None:
        await self.client.metadata(["honest"])
        if self._producer is None or self._tail is None:
            self._producer = await RawProducer.open(self.client, self._payload)
            self._tail = await RawTail.open(self.client, self._tp, self._offset)
        await self._producer.send(self._tp)
        await self._producer.receive()
        await self._tail.send(_CALL_TIMEOUT_MS)
        await self._tail.receive(_CALL_TIMEOUT_MS)
        self._offset = self._tail.offset

    async def _drop(self) -> None:
        producer, tail, self._producer, self._tail = self._producer, self._tail, None, None
        if tail is not None:
            tail.close()
        if producer is not None:
            with contextlib.suppress(BrokerdError):
                await producer.close()


def attack(kind: str, aim: Aim) -> None:
    """Runs in the attacker's process until it is killed. Prints a line when it begins, and when it reads anything that needs
    authentication."""
    made = ATTACKS[kind](aim)
    print(_BEGUN, flush=True)
    end_s = time.monotonic() + _ATTACKER_S
    has_read = made.is_public
    while time.monotonic() < end_s:
        made.step()
        if made.read_bytes and not has_read:
            has_read = True
            print(_HAS_READ, flush=True)
        time.sleep(_STEP_PAUSE_S)
    made.close()


def measure(kind: str, *, has_token: bool, seconds: float) -> dict[str, object]:
    """Measures one kind of attack on a new broker; returns a row of the table."""
    with tempfile.TemporaryDirectory(prefix="brokerd-attacks-") as directory:
        auth_file = Path(directory) / "auth.toml"
        auth_file.write_text(_AUTH_FILE)
        settings = {"auth.file": str(auth_file), "max.memory.bytes": str(MEMORY_BYTES), "shutdown.grace.ms": str(GRACE_MS)}
        settings["log.level"] = "error"
        with Broker(directory, settings) as broker:
            return run_in_loop(_measure(broker, kind, has_token=has_token, seconds=seconds))


async def _measure(broker: Broker, kind: str, *, has_token: bool, seconds: float) -> dict[str, object]:
    honest = Honest(broker.address)
    tp = await honest.set_up()
    await honest.rounds(min(1.0, seconds))
    quiet = await honest.rounds(seconds)
    port = int(broker.address.rpartition(":")[2])
    aim = Aim(port, _ATTACKER if has_token else None, tp.topic_id, PARTITIONS)
    with _attacker(kind, aim) as attacker:
        during = await honest.rounds(seconds)
        cut_off = honest.cut_off
        attacker.kill()
        has_read = _HAS_READ in attacker.communicate()[0]
    normal_s = await _normal_after(honest, quantile_ms(quiet, 0.99) * 2)
    await honest.close()
    peak_bytes = broker.child.resident_bytes("VmHWM")
    with _attacker(kind, aim):
        await asyncio.sleep(seconds / 2)
        start_s = time.perf_counter()
        code = await asyncio.to_thread(broker.child.stop)
        stop_s = time.perf_counter() - start_s
    goals = {
        "read": has_read and not has_token,
        "memory": peak_bytes > MEMORY_BYTES + MEMORY_OVER_BYTES,
        "not normal": normal_s > NORMAL_WITHIN_S,
        "stop": code != 0 or stop_s > (GRACE_MS + 2_000 + PARTITIONS * 30) / 1_000,
    }
    return {
        "attack": kind,
        "token": "yes" if has_token else "no",
        "quiet p50": round(quantile_ms(quiet, 0.5), 1),
        "quiet p99": round(quantile_ms(quiet, 0.99), 1),
        "p50": round(quantile_ms(during, 0.5), 1),
        "p99": round(quantile_ms(during, 0.99), 1),
        "cut off": cut_off,
        "peak MB": round(peak_bytes / 1e6),
        "normal s": round(normal_s, 1),
        "stop s": round(stop_s, 1),
        "exit": code,
        "missed": ", ".join(name for name, is_missed in goals.items() if is_missed) or "none",
    }


async def _normal_after(honest: Honest, limit_ms: float) -> float:
    """Seconds until the median of 0.3 s of rounds is at most `limit_ms`, up to 4 * NORMAL_WITHIN_S."""
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < 4 * NORMAL_WITHIN_S:
        if quantile_ms(await honest.rounds(0.3), 0.5) <= limit_ms:
            break
    return time.perf_counter() - start_s


@contextlib.contextmanager
def _attacker(kind: str, aim: Aim) -> Iterator[subprocess.Popen[str]]:
    """The process of an attack that has begun: its imports and preparation take as long as a short measurement."""
    told = json.dumps([kind, aim.port, aim.token, aim.topic_id.hex()])
    command = [sys.executable, "-m", "benchmarks.attacks", "--attacker", told]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline().strip() != _BEGUN:
            raise RuntimeError(f"the attacker ended before it began: {kind}")
        yield child
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the requested attacks; returns 0 if every goal was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kinds, separated by commas (default: all)")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each attack lasts (default: %(default)s)")
    parser.add_argument("--attacker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attacker:
        kind, port, token, topic_id = json.loads(options.attacker)
        attack(kind, Aim(port, token, bytes.fromhex(topic_id), PARTITIONS))
        return 0
    kinds = [kind.strip() for kind in options.only.split(",") if kind.strip()] or list(ATTACKS)
    unknown = [kind for kind in kinds if kind not in ATTACKS]
    if unknown:
        print(f"no such attack: {', '.join(unknown)}; there are {', '.join(ATTACKS)}", file=sys.stderr)
        return 2
    rows = []
    for kind in kinds:
        for has_token in (False, True):
            rows.append(measure(kind, has_token=has_token, seconds=options.seconds))
            print(text_table(rows[-1:]), flush=True)
    print(f"\n{text_table(rows)}\ntimes in ms; a stop may take {GRACE_MS + REST_MS} ms and 30 for each of {PARTITIONS} partitions")
    return int(any(row["missed"] != "none" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
