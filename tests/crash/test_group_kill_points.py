"""Group offsets, with a kill or power cut before or during every file operation: an acknowledged offset or a later one is there,
and the offsets of one request are there together or not at all.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from brokerd.coordinator import group_table
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.server.coordinator import log as coordinator_log
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.group_offsets import committed
from tests.support.inner_broker import running
from tests.support.kill_points import ENDINGS, Lives

SETTINGS: dict[str, Any] = {"log_index_interval_bytes": 512}
ANN = "ann"
GROUPS = ("a", "b", "c")


class History:
    """Requests and responses, by group. Each commit has a number, which is both of its offsets."""

    def __init__(self) -> None:
        self.asked: dict[str, list[int | None]] = {name: [] for name in GROUPS}  # None: deletion of the group
        self.answered: dict[str, int] = dict.fromkeys(GROUPS, 0)  # the number of requests answered
        self.clock = ManualClock()


async def _live(files: MemoryFiles, history: History, life: int) -> None:
    """Commits and deletions, with a compaction."""
    async with running(files, history.clock, **SETTINGS) as broker:
        tps = await broker.topic()
        for number in range(life * 12, life * 12 + 12):
            name = GROUPS[number % len(GROUPS)]
            is_deleted = number % 7 == 6 and name in broker.groups.table.groups
            history.asked[name].append(None if is_deleted else number)
            if is_deleted:
                await broker.groups.delete(name)
            else:
                await broker.groups.commit(name, ANN, [committed(tp, number) for tp in tps])
            history.answered[name] = len(history.asked[name])
            if broker.transactions.log.has_grown():
                await broker.transactions.compact()


@pytest.fixture(autouse=True)
def early_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 3_500)
    monkeypatch.setattr(group_table, "PIECE_SLOTS", 1)
    monkeypatch.setitem(COORDINATOR.configs, "segment.bytes", "4096")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_at_every_operation_what_was_answered_is_there(ending: str) -> None:
    lives = Lives(_live, History(), 2)
    own = [operation for operation in lives.operations if COORDINATOR.id.hex() in operation and operation.endswith(".log")]
    assert {operation.split()[0] for operation in own} >= {"pwritev", "fdatasync", "create", "unlink"}, "written, rolled, compacted"
    for files, history, where in lives.killed_everywhere(ending, random.Random(6)):
        asyncio.run(_check(files, history, where))


async def _check(files: MemoryFiles, history: History, where: str) -> None:
    async with running(files, ManualClock(), **SETTINGS) as broker:
        for name, asked in history.asked.items():
            group = broker.groups.table.groups.get(name)
            offsets = [group.offset(tp) for tp in group.partitions()] if group is not None else []
            numbers = {committed.offset for committed in offsets if committed is not None}
            assert len(offsets) in (0, 2), f"{where}: half a request"
            assert len(numbers) <= 1, f"{where}: offsets of two requests"
            found = numbers.pop() if numbers else None
            answered = history.answered[name]
            possible = (asked[answered - 1] if answered else None, *asked[answered:])
            assert found in possible, f"{where}: group {name} has {found}, but answered was {possible[0]}"
        tps = await broker.topic()
        await broker.groups.commit("after", ANN, [committed(tps[0])])
