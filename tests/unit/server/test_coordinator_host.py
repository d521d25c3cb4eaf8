"""A coordinator loaded in a new leader epoch finishes prepared commits at once, even while its predecessor's sweep still waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import DataDirectoryError, UnknownTopicIdError
from brokerd.server.coordinator.host import CoordinatorHost
from tests.support.wait import DEADLINE_S


class Transactions:
    """Stands in for the transactions of one epoch; `sweep` ends once `may_end` is set."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.log = SimpleNamespace(durable=self._done, is_led=True)
        self.producer_ids = SimpleNamespace(limit=0)
        self.is_at_work = False
        self.sweeps = 0
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.load = self._done

    async def _done(self) -> None:
        pass

    def retry_soon(self) -> None:
        pass

    async def sweep(self) -> None:
        self.sweeps += 1
        self.begun.set()
        await self.may_end.wait()


async def test_a_sweep_of_a_former_coordinator_holds_up_no_other() -> None:
    log = SimpleNamespace(leader_epoch=1, is_leader=True)
    partitions: Any = SimpleNamespace(coordinator_log=log, elects_itself=False, bound_producer_numbers=lambda _limit: None)
    loaded: list[Transactions] = []

    async def settle() -> bool:
        return True

    def new() -> Any:
        loaded.append(Transactions(log.leader_epoch))
        return loaded[-1]

    members: Any = SimpleNamespace(settle=settle)
    host = CoordinatorHost(partitions, members, new)
    for epoch in (1, 2):
        log.leader_epoch = epoch
        await host.follow()
        await host.follow()  # as after a change of other nodes' roles
        async with asyncio.timeout(DEADLINE_S):
            await loaded[-1].begun.wait()
        assert [(one.epoch, one.sweeps) for one in loaded] == [(number, 1) for number in range(1, epoch + 1)]
    await host.sweep()  # the periodic sweep, while the sweep of this epoch is under way
    assert loaded[-1].sweeps == 1
    for one in loaded:
        one.may_end.set()
    await asyncio.gather(*host._tasks.values())
    await host.sweep()
    assert [one.sweeps for one in loaded] == [1, 2]


@pytest.mark.parametrize("error", [UnknownTopicIdError("it is deleted"), DataDirectoryError("it is led elsewhere")])
async def test_a_copy_that_goes_while_it_is_loaded_is_no_failure(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    log: Any = SimpleNamespace(leader_epoch=1, is_leader=True)
    partitions: Any = SimpleNamespace(coordinator_log=log, elects_itself=False)
    loading: Any = Transactions(1)

    async def load() -> None:
        partitions.coordinator_log = None
        raise error

    async def settle() -> bool:
        return True

    loading.load = load
    members: Any = SimpleNamespace(settle=settle)
    host = CoordinatorHost(partitions, members, lambda: loading)
    await host.follow()
    assert host.local is None
    assert not caplog.records
