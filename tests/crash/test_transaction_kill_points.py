"""Transactions, with a kill or power cut before or during every file operation: a version is visible completely or not at all, and
so is its group offset; acknowledged commits hold, others can be retried, and nothing hangs.
"""

from __future__ import annotations

import asyncio
import functools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from brokerd.coordinator.group_table import NO_OFFSET
from brokerd.coordinator.transaction_coordinator import StateWriter
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.coordinator.groups import AskedOffsets
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.group_offsets import committed
from tests.support.inner_broker import PRINCIPAL, TIMEOUT_MS, TransactionBroker, Write, end_request, running
from tests.support.kill_points import ENDINGS, Lives
from tests.support.transaction_bench import Execution

NAME = "spark-q"
GROUP = "g"
CALLER = "anybody"
SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 512}


@dataclass
class History:
    """The requests and responses of a script."""

    asked: dict[int, EndTransactionRequest] = field(default_factory=dict)  # commits, by version
    rows: dict[int, set[tuple[TopicIdPartition, bytes]]] = field(default_factory=dict)  # of the members that the commit names
    answered: set[int] = field(default_factory=set)
    clock: ManualClock = field(default_factory=ManualClock)


def _offset(broker: TransactionBroker, tp: TopicIdPartition) -> int:
    """The group's offset, equal to the version that it was committed with."""
    group = broker.groups.table.groups.get(GROUP)
    committed = group.offset(tp) if group is not None else None
    return committed.offset if committed is not None else NO_OFFSET


def _offsets(version: int, tp: TopicIdPartition, expected: int) -> AskedOffsets:
    return AskedOffsets(GROUP, CALLER, lambda: [committed(tp, version)], {tp: expected})


async def _version(broker: TransactionBroker, history: History, version: int, *, execution: str = "one") -> None:
    """Commits two members over two partitions; a twin's rows are left out."""
    tps = await broker.topic()
    named = Execution(version, execution, "run")
    first, second, twin = [await broker.init(NAME, named, f"{execution} {version} {n}".encode().ljust(16)) for n in range(3)]
    await broker.write(first, [Write(tps[0], b"a%d" % version), Write(tps[1], b"b%d" % version)])
    await broker.write(second, [Write(tps[1], b"c%d" % version)])
    await broker.write(twin, [Write(tps[0], b"lost%d" % version), Write(tps[1], b"lost%d" % version)])
    history.rows[version] = {(tps[0], b"a%d" % version), (tps[1], b"b%d" % version), (tps[1], b"c%d" % version)}
    history.asked[version] = end_request(NAME, named, [(first, 2), (second, 1)], tps, rows=3)
    await broker.transactions.commit(PRINCIPAL, history.asked[version], _offsets(version, tps[1], _offset(broker, tps[1])))
    history.answered.add(version)


async def _aborted(broker: TransactionBroker, version: int) -> None:
    tps = await broker.topic()
    named = Execution(version, "failed", "run")
    member = await broker.init(NAME, named, f"failed {version}".encode().ljust(16))
    await broker.write(member, [Write(tps[0], b"void%d" % version), Write(tps[1], b"void%d" % version)])
    await broker.transactions.abort(PRINCIPAL, end_request(NAME, named, [(member, 2)], tps))


async def _live(files: MemoryFiles, history: History, life: int) -> None:
    """A commit, an abort, the same version again in another execution, a compaction, and an execution that expires."""
    async with running(files, history.clock, **SETTINGS) as broker:
        await _version(broker, history, 3 * life)
        await _aborted(broker, 3 * life + 1)
        await broker.transactions.compact()
        await _version(broker, history, 3 * life + 1, execution="two")
        await broker.transactions.sweep()
        left = await broker.init(NAME, Execution(3 * life + 2, "left", "run"), b"left %11d" % life)
        await broker.write(left, [Write((await broker.topic())[0], b"void-left")])
        history.clock.advance(TIMEOUT_MS)
        await broker.transactions.sweep()


@pytest.fixture(autouse=True)
def early_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 6_000)
    monkeypatch.setattr(StateWriter, "pieces", functools.partialmethod(StateWriter.pieces, 1))
    monkeypatch.setitem(COORDINATOR.configs, "segment.bytes", "4096")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_at_every_operation_a_version_is_there_as_a_whole_or_not_at_all(ending: str) -> None:
    lives = Lives(_live, History(), 2)
    assert lives.history.answered == {0, 1, 3, 4}
    own = [operation for operation in lives.operations if COORDINATOR.id.hex() in operation and operation.endswith(".log")]
    assert {operation.split()[0] for operation in own} >= {"pwritev", "fdatasync", "create", "unlink"}, "written, rolled, compacted"
    for files, history, where in lives.killed_everywhere(ending, random.Random(5)):
        asyncio.run(_check(files, history, where))


async def _check(files: MemoryFiles, history: History, where: str) -> None:
    clock = ManualClock()
    async with running(files, clock, **SETTINGS) as broker:
        if not broker.logs.topics.has("t"):
            assert not history.asked, where
            return
        tps = await broker.topic()
        _whole_or_nothing(broker, tps, history, where)
        for version, asked in history.asked.items():
            if version == max(history.asked):  # it fences the older ones
                offset = _offset(broker, tps[1])
                await broker.transactions.commit(PRINCIPAL, asked, _offsets(version, tps[1], offset))
                history.answered.add(version)
        _whole_or_nothing(broker, tps, history, where)
        clock.advance(TIMEOUT_MS)
        await broker.transactions.sweep()
        for tp in tps:
            log = broker.log(tp)
            assert log.ends.last_stable_offset == log.ends.high_watermark == log.ends.log_end_offset, f"{where}: something hangs"
        await _version(broker, history, 9, execution="after")
        _whole_or_nothing(broker, tps, history, where)


def _whole_or_nothing(broker: TransactionBroker, tps: list[TopicIdPartition], history: History, where: str) -> None:
    found = {(tp, value) for tp in tps for value in broker.visible(tp)}
    for version, rows in history.rows.items():
        there = found & rows
        assert there in (set(), rows), f"{where}: version {version} is torn: {there}"
        assert there or version not in history.answered, f"{where}: version {version} was answered, and is gone"
    newest = max((version for version, rows in history.rows.items() if found & rows), default=NO_OFFSET)
    assert _offset(broker, tps[1]) == newest, f"{where}: version {newest} is there, and the group's offset is another's"
    expected = set().union(*history.rows.values()) if history.rows else set()
    assert found <= expected, f"{where}: {found - expected}"
