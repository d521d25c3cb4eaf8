"""Many members and many versions: whether the coordinator, its log and the partitions' producer state stay small, how long a start
takes afterwards, and how long one very large commit takes and delays others.

    python -m benchmarks.many_transactions [--members 200] [--versions 1000] [--wide-members 10000] [--wide-partitions 100]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.environment import Broker, start_broker
from benchmarks.measure import Row, text_table
from benchmarks.raw import RawMembers, raw_client, run_in_loop, small_payload
from brokerd.client.broker_client import BrokerClient
from brokerd.client.transactions import end_transaction, init_member
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.membership import MemberReport, Membership, TransactionEnd
from brokerd.storage.names import SNAPSHOT_SUFFIX

T = TypeVar("T")
_PARTITIONS = 8
_WINDOWS = 5
_AT_ONCE = 50
_PING_PAUSE_S = 0.005
_VALUE_BYTES = 100


def ms_since(started: float) -> float:
    """Milliseconds since `perf_counter` returned a value."""
    return (time.perf_counter() - started) * 1_000


async def partitions_of(client: BrokerClient, topic: str) -> list[TopicIdPartition]:
    """All partitions of a topic."""
    found = (await client.metadata([topic])).topic(topic)
    return [TopicIdPartition(found.topic_id, number) for number in range(len(found.leaders))]


async def open_members(client: BrokerClient, name: str, version: int, count: int) -> list[ProducerIdAndEpoch]:
    """Opens the members of one version, several concurrently, as Spark's tasks do."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one() -> ProducerIdAndEpoch:
        async with room:
            return await init_member(client, Membership(name, version, f"e{version}", "run", "benchmark", uuid.uuid4().bytes))

    return await asyncio.gather(*(one() for _ in range(count)))


async def commit(
    client: BrokerClient, name: str, version: int, members: Sequence[ProducerIdAndEpoch], tps: list[TopicIdPartition]
) -> float:
    """Commits members that wrote one record to each of these partitions; returns the ms."""
    ended = [MemberReport(member.producer_id, member.epoch, len(tps)) for member in members]
    started = time.perf_counter()
    end = TransactionEnd(name, version, f"e{version}", "run", is_commit=True, members=ended, partitions=tps)
    await end_transaction(client, end)
    return ms_since(started)


def state_bytes(directory: str, topic_id: bytes) -> tuple[int, int]:
    """Bytes of all partitions' producer state, and of the coordinator's log, the only partition of another topic."""
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    snapshots = sum(path.stat().st_size for path in files if path.suffix == SNAPSHOT_SUFFIX)
    logs = [path for path in files if path.suffix == ".log" and not path.parent.name.startswith(topic_id.hex())]
    return snapshots, sum(path.stat().st_size for path in logs)


def restart(broker: Broker) -> float:
    """Restarts the broker on its directory; returns the ms of the start."""
    broker.child.stop()
    started = time.perf_counter()
    broker.child = start_broker(broker.directory, {})
    broker.address = broker.child.address
    return ms_since(started)


async def steady(broker: Broker, topic: str, name: str, members: int, versions: int) -> list[Row]:
    """Commits versions one after another, each member with a record in one partition; a row per part of them."""
    client = raw_client(broker.address)
    tps = await partitions_of(client, topic)
    writing = await RawMembers.open(client, small_payload(_VALUE_BYTES))
    rows: list[Row] = []
    for window in range(_WINDOWS):
        numbers = range(versions * window // _WINDOWS, versions * (window + 1) // _WINDOWS)
        took, open_took = [], []
        for version in numbers:
            started = time.perf_counter()
            grants = await open_members(client, name, version, members)
            open_took.append(ms_since(started))
            tp = tps[version % len(tps)]
            await writing.write([(grant, [tp]) for grant in grants])
            took.append(await commit(client, name, version, grants, [tp]))
        snapshots, log = state_bytes(broker.directory, tps[0].topic_id)
        rows.append(
            {
                "versions": numbers.stop,
                "open_ms": statistics.median(open_took),
                "commit_ms": statistics.median(took),
                "resident_mb": broker.child.resident_bytes() / 1e6,
                "producer_state_kb": snapshots / 1e3,
                "transaction_log_kb": log / 1e3,
            }
        )
    await writing.close()
    await client.close()
    return rows


async def wide(broker: Broker, topic: str, members: int) -> Row:
    """Commits members with a record in each of many partitions, while another client makes empty calls."""
    client, other = raw_client(broker.address), raw_client(broker.address)
    tps = await partitions_of(client, topic)
    writing = await RawMembers.open(client, small_payload(_VALUE_BYTES))
    started = time.perf_counter()
    grants = await open_members(client, "wide", 0, members)
    row: dict[str, object] = {"open_ms": ms_since(started)}
    started = time.perf_counter()
    await writing.write([(grant, tps) for grant in grants])
    row["write_ms"] = ms_since(started)
    _, row["longest_call_before_ms"] = await with_calls(other, asyncio.sleep(1))
    row["commit_ms"], row["longest_call_meanwhile_ms"] = await with_calls(other, commit(client, "wide", 0, grants, tps))
    for each in (writing, client, other):
        await each.close()
    return row


async def with_calls(client: BrokerClient, work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of `work`, and the ms of the longest of this client's consecutive empty calls meanwhile. Makes at least one call,
    and waits for the last one, which the work may have delayed.
    """
    working = asyncio.create_task(work)
    longest_ms = 0.0
    while True:
        started = time.perf_counter()
        await client.metadata([])
        longest_ms = max(longest_ms, ms_since(started))
        if working.done():
            return working.result(), longest_ms
        await asyncio.sleep(_PING_PAUSE_S)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=200, help="of each version")
    parser.add_argument("--versions", type=int, default=1_000, help="one after another")
    parser.add_argument("--wide-members", type=int, default=10_000, help="of one version")
    parser.add_argument("--wide-partitions", type=int, default=100, help="that each of them writes to")
    given = parser.parse_args()
    settings = {"max.open.members": "20000"}
    with Broker(None, settings) as broker:
        topic = broker.new_topic(_PARTITIONS)
        run_in_loop(steady(broker, topic, "warm", given.members, _WINDOWS))
        before = restart(broker)
        print(text_table(run_in_loop(steady(broker, topic, "steady", given.members, given.versions))))
        after = restart(broker)
        print(f"a start takes {before:.0f} ms before, {after:.0f} ms after")
    with Broker(None, settings) as broker:
        print(text_table([run_in_loop(wide(broker, broker.new_topic(given.wide_partitions), given.wide_members))]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
