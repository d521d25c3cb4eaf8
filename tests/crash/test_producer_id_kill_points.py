"""Producer ids, with a kill or power cut before or during every file operation: no id is assigned twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from brokerd.datadir.topic_store import COORDINATOR
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.coordinator import producer_ids
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.inner_broker import running
from tests.support.kill_points import ENDINGS, Lives

BLOCK = 2


class History:
    """The ids assigned."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.clock = ManualClock()


async def _live(files: MemoryFiles, history: History, _life: int) -> None:
    """Takes two blocks of ids and one more, with a compaction whenever the log has grown."""
    async with running(files, history.clock) as broker:
        ids = broker.transactions.producer_ids
        for _ in range(2 * BLOCK + 1):
            while not ids.has_next:
                await ids.reserve()
            history.given.append(ids.take())
            await broker.transactions.compact()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_at_every_operation_no_id_is_given_twice(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "BLOCK", BLOCK)
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 1_000)
    monkeypatch.setitem(COORDINATOR.configs, "segment.bytes", "4096")
    lives = Lives(_live, History(), 3)
    own = [operation for operation in lives.operations if COORDINATOR.id.hex() in operation and operation.endswith(".log")]
    assert {operation.split()[0] for operation in own} >= {"pwritev", "fdatasync", "create", "unlink"}, "written, rolled, compacted"
    for files, history, where in lives.killed_everywhere(ending, random.Random(7)):
        before = len(history.given)
        asyncio.run(_live(files, history, 0))
        assert sorted(set(history.given)) == history.given, where
        assert len(history.given) > before, where
