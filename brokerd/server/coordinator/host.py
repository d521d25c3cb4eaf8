"""Hosts the coordinator while this node leads its partition, `__coordinator-0`: loads it from the log when the node begins to lead,
drops it when the lead ends, and loads a new one in each leader epoch. All state of a coordinator belongs to one epoch.

A node that is alone hosts it from start to stop, and creates the partition at the first record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import (
    CoordinatorLoadInProgressError,
    DataDirectoryError,
    NotCoordinatorError,
    UnknownTopicIdError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator.members import Members
from brokerd.server.coordinator.transactions import Transactions
from brokerd.server.failures import look_at_end

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class CoordinatorHost:
    """See the module docstring. Create it inside the running event loop."""

    def __init__(self, partitions: PartitionTable, members: Members, new: Callable[[], Transactions]) -> None:
        """`new` creates a coordinator that has not read its log yet."""
        self._partitions = partitions
        self._members = members
        self._new = new
        self._hosted: Transactions | None = None  # of one leader epoch, on one log
        self._former: list[Transactions] = []  # of earlier epochs, with decisions still under way
        self._following = asyncio.Lock()
        self._swept: Transactions | None = None  # the one whose sweep is under way
        self._is_stopping = False
        self._tasks: dict[str, asyncio.Task[None]] = {}  # background work, one task of each kind

    @property
    def local(self) -> Transactions | None:
        """The coordinator, if this node hosts it and has loaded it."""
        hosted = self._hosted
        return hosted if hosted is not None and hosted.log.is_led else None

    @property
    def required(self) -> Transactions:
        """The coordinator. Raises NotCoordinatorError, CoordinatorLoadInProgressError."""
        local = self.local
        if local is not None:
            return local
        if self._epoch() is not None:
            raise CoordinatorLoadInProgressError("the coordinator is being loaded: retry", retry_after_ms=200)
        raise NotCoordinatorError("this node is not the coordinator: ask for it with FindCoordinator")

    def _epoch(self) -> int | None:
        """Leader epoch of the coordinator's partition; None if this node does not lead it; 0 on a node that is alone and has not
        created it."""
        log = self._partitions.coordinator_log
        if log is None:
            return 0 if self._partitions.elects_itself else None
        return log.leader_epoch if log.is_leader else None

    # Life

    async def start(self) -> None:
        """On a node that is alone: loads the coordinator, finishes prepared commits and voids the data of ended members. Call it
        before the broker serves requests. A commit that cannot be finished stays held back and is retried. Raises
        DataDirectoryError."""
        await self._follow()
        await self.required.sweep()

    async def follow(self) -> None:
        """Loads or drops the coordinator. Call it after each change of roles, of this node or of others. In the background,
        finishes commits that waited for a leader, and asks what commits hold back in partitions that this node has begun to lead.
        Logs that the log is unusable; the next call and `sweep` retry."""
        try:
            await self._follow()
        except DataDirectoryError as error:
            logger.error("%s", error)
        if self._hosted is not None:
            self._hosted.retry_soon()
            self._in_background(f"sweep in epoch {self._hosted.epoch}", self.sweep)
        self._in_background("settle", self._settle)

    async def _follow(self) -> None:
        async with self._following:
            while (epoch := self._epoch()) != (self._hosted.epoch if self._hosted is not None else None):
                self._forget()
                if epoch is None:
                    return
                hosted = self._new()
                try:
                    await hosted.log.durable()  # the next leader may lack records that are not
                except WireError as error:
                    logger.info("the coordinator's log is not replicated yet: %s", error)
                    return
                try:
                    await hosted.load()
                except (DataDirectoryError, UnknownTopicIdError):
                    if self._epoch() == epoch:
                        raise
                    continue  # this node lost the lead, or its copy, while the log was read
                if hosted.epoch != epoch or self._epoch() != epoch:
                    continue  # the epoch has changed meanwhile
                if self._is_stopping:
                    hosted.begin_stop()
                if self._partitions.elects_itself:
                    self._hold(hosted)
                self._partitions.bound_producer_numbers(hosted.producer_ids.limit)
                self._hosted = hosted
                logger.debug("the coordinator is loaded, in epoch %d", epoch)

    def _hold(self, transactions: Transactions) -> None:
        """Sets the holds of prepared commits: markers already in the log have taken effect without them."""
        for name, commit in transactions.coordinator.prepared():
            for one in commit.held_back:
                self._members.hold(name, commit.txn_version, TopicIdPartition(one.topic_id, one.partition), one.first_offset)

    def _forget(self) -> None:
        if self._hosted is not None:
            logger.info("this node is the coordinator no longer")
            self._former = [one for one in (*self._former, self._hosted) if one.is_at_work]
            self._hosted = None

    async def _settle(self) -> None:
        is_settled = await self._members.settle()
        if not is_settled:
            logger.info("readers of committed records wait until the coordinator has said which commits are complete")
        while not is_settled:
            await asyncio.sleep(_RETRY_S)
            is_settled = await self._members.settle()

    def _in_background(self, kind: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._tasks = {other: task for other, task in self._tasks.items() if not task.done()}
        if not self._is_stopping and kind not in self._tasks:
            self._tasks[kind] = task = asyncio.create_task(work())
            look_at_end(task, kind)

    def begin_stop(self) -> None:
        """Refuses new decisions; pending ones continue."""
        self._is_stopping = True
        if self._hosted is not None:
            self._hosted.begin_stop()

    async def drain(self) -> None:
        """Waits for all pending decisions, and records their ends."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for former in self._former:
            await former.decided()
        if self._hosted is not None:
            await self._hosted.drain()

    # Periodic jobs, while it is hosted

    async def sweep(self) -> None:
        """See Transactions.sweep. In a cluster, also retries the work of `follow`."""
        if not self._partitions.elects_itself:
            with contextlib.suppress(DataDirectoryError):  # logged already
                await self._follow()
            self._in_background("settle", self._settle)
        local = self.local
        if local is not None and local is not self._swept:  # a sweep of an earlier epoch may still wait for its markers
            self._swept = local
            try:
                await local.sweep()
            finally:
                if self._swept is local:
                    self._swept = None

    async def sweep_groups(self) -> None:
        """See Groups.sweep."""
        local = self.local
        if local is not None:
            await local.groups.sweep()

    async def compact(self) -> None:
        """See Transactions.compact."""
        local = self.local
        if local is not None:
            await local.compact()

    def forget_topic(self, topic_id: bytes) -> None:
        """Forgets all groups' offsets of a deleted topic."""
        local = self.local
        if local is not None:
            local.groups.table.forget_topic(topic_id)
