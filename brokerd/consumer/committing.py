"""Commits how far a group has read: when the application says so, and, with enable.auto.commit, now and then in the background.

One commit is under way at a time, so that an older one never ends after a newer. Background commits that fail are logged: the next
one holds their offsets too. Beside them, the group is renewed now and then: it may have nothing to commit for long.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from brokerd.client.blocking import BlockingClient
from brokerd.client.group_calls import GroupCalls
from brokerd.client.group_offsets import OffsetAndMetadata
from brokerd.client.io.loop_thread import Steps
from brokerd.clock import Clock
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import AssignedPartition, Assignment
from brokerd.consumer.resolution import ids_of
from brokerd.errors import BrokerdError, ClientError, ConsumerStateError, WireError, fresh
from brokerd.ids import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

RENEW_MS = 30_000  # a group that neither commits nor is renewed expires, after one minute at the earliest
_LOOK_MIN_MS = 100  # the shortest wait, with an interval that is shorter


class Committing:
    """The offsets of one consumer's group. For the thread that uses the consumer; calls that wait are Steps, for it to drive."""

    def __init__(self, client: BlockingClient, config: PlainConsumerConfig, assignment: Assignment, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._assignment = assignment
        self._clock = clock
        self._is_automatic = bool(config.group_id) and config.enable_auto_commit
        self._write: Callable[[], None] | None = None
        self._next_ms = clock.monotonic_ms() + config.auto_commit_interval_ms
        self._names: dict[TopicIdPartition, TopicPartition] = {}  # of the offsets below
        self._read: dict[TopicIdPartition, AssignedPartition] = {}  # that they were read from
        self._wanted: dict[TopicIdPartition, int] = {}  # of partitions that were given up
        self._done: dict[TopicIdPartition, int] = {}  # the last commit of each partition
        self._renew_ms = clock.monotonic_ms()
        self._under_way: concurrent.futures.Future[dict[TopicIdPartition, WireError]] | None = None
        self._offered: dict[TopicIdPartition, int] = {}  # by the commit under way

    # --- in the background

    @contextlib.contextmanager
    def processing(self, write: Callable[[], None]) -> Iterator[None]:
        """While records are handled in threads: commits by itself, if there is a group; calls `write` before each commit, or when
        it would be time for one."""
        before, self._is_automatic = self._is_automatic, bool(self._config.group_id)
        self._write = write
        try:
            yield
        finally:
            self._is_automatic = before
            self._write = None

    def auto(self) -> None:
        """Starts a commit, and renews the group, if it is time. Waits for nothing. Raises what `write` of `processing` raises."""
        if self._config.group_id and self._clock.monotonic_ms() >= self._renew_ms:
            self._renew_ms = self._clock.monotonic_ms() + RENEW_MS
            self._client.loop_thread.submit(_renew(self._client.broker_client.groups, self._config.group_id))
        if (self._is_automatic or self._write is not None) and self._clock.monotonic_ms() >= self._next_ms:
            self._next_ms = self._clock.monotonic_ms() + self._config.auto_commit_interval_ms
            if self._write is not None:
                self._write()
            if self._is_automatic:
                self._start(self._processed(self._assignment.partitions.values()))

    def wait_ms(self, left_ms: int | None) -> int | None:
        """How long a call that has so much time left (None: any) may wait until `auto` is to be called again."""
        if not self._config.group_id:
            return left_ms
        next_ms = min(self._next_ms, self._renew_ms) if self._is_automatic else self._renew_ms
        due_ms = max(_LOOK_MIN_MS, next_ms - self._clock.monotonic_ms())
        return due_ms if left_ms is None else min(left_ms, due_ms)

    def pending(self) -> dict[TopicIdPartition, int]:
        """Offsets of partitions that were given up, and others, which the broker may not have yet."""
        return self._offered | self._wanted

    def give_up(self, partitions: Iterable[AssignedPartition]) -> None:
        """Has the offsets of partitions that are no longer assigned be committed with the next ones."""
        if self._is_automatic:
            self._wanted |= self._processed(partitions)
            self._next_ms = self._clock.monotonic_ms()

    def _processed(self, partitions: Iterable[AssignedPartition]) -> dict[TopicIdPartition, int]:
        """Offsets below which all records are processed."""
        positions = self._assignment.positions(partitions, is_confirmed=True)
        return {self._named(one): position for one, position in positions.items()}

    def _named(self, one: AssignedPartition) -> TopicIdPartition:
        assert one.id_tp is not None
        self._names[one.id_tp] = one.tp
        self._read[one.id_tp] = one
        return one.id_tp

    def _start(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        if self._under_way is not None and not self._under_way.done():
            return
        self._take_outcome()
        self._wanted |= offsets
        self._offered = {id_tp: offset for id_tp, offset in self._wanted.items() if self._done.get(id_tp) != offset}
        self._wanted = {}
        if self._offered:
            commit = self._client.broker_client.groups.commit(self._config.group_id, self._with_epochs(self._offered))
            self._under_way = self._client.loop_thread.submit(commit)

    def _settle(self, timeout_ms: int | None = None) -> Steps[None]:
        """Waits for the commit under way, if any. Raises TimeoutError."""
        if self._under_way is not None and not self._under_way.done():
            yield _ended(self._under_way, timeout_ms)
        self._take_outcome()

    def _take_outcome(self) -> None:
        """Says what failed of a commit that has ended. Raises TimeoutError if it has not."""
        if self._under_way is None:
            return
        try:
            refused = self._under_way.result(0)
        except BrokerdError as error:
            logger.warning("group '%s': offsets are not committed: %s", self._config.group_id, error)
            self._wanted = self._offered | self._wanted
        else:
            for id_tp, refusal in refused.items():
                logger.warning("group '%s': %s", self._config.group_id, self._refusal(id_tp, refusal))
            self._have_committed({id_tp: offset for id_tp, offset in self._offered.items() if id_tp not in refused})
        self._under_way, self._offered = None, {}
        self._forget()

    def _with_epochs(self, offsets: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, OffsetAndMetadata]:
        read = self._read
        return {tp: OffsetAndMetadata(at, leader_epoch_id=read[tp].epoch_before(at)) for tp, at in offsets.items()}

    def _of_history(self, tp: TopicPartition, given: OffsetAndMetadata) -> OffsetAndMetadata:
        """The offset with what is known here of the history that it is of, unless it is said."""
        one = self._assignment.partitions.get(tp)
        if one is None or given.leader_epoch_id:
            return given
        return given._replace(leader_epoch_id=one.epoch_before(given.offset))

    def _have_committed(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        self._assignment.committed(offsets)  # what a transaction expects of the group, whichever way it came there
        self._done |= offsets

    def _forget(self) -> None:
        """Of partitions that are not read any more, nothing is kept."""
        by_id = self._assignment.by_id
        self._names = {id_tp: name for id_tp, name in self._names.items() if id_tp in by_id or id_tp in self._wanted}
        self._read = {id_tp: one for id_tp, one in self._read.items() if id_tp in self._names}
        self._done = {id_tp: offset for id_tp, offset in self._done.items() if id_tp in by_id}

    def _refusal(self, id_tp: TopicIdPartition, error: WireError) -> str:
        return f"the offset of {self._names.get(id_tp, id_tp)} is not committed: {error.message}"

    # --- when the application says so

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> Steps[None]:
        """Commits these offsets, or all positions, and waits for it. Raises the first refusal; the others are committed."""
        self.require_group("commit()")
        yield from self._settle()
        if offsets is None:
            positions = self._assignment.positions(self._assignment.partitions.values(), is_confirmed=False)
            by_id = self._with_epochs({self._named(one): position for one, position in positions.items()})
        else:
            ids = yield from self.ids_of(offsets)
            self._names |= {id_tp: tp for tp, id_tp in ids.items()}
            by_id = {ids[tp]: self._of_history(tp, committed) for tp, committed in offsets.items()}
        if not by_id:
            return
        refused = yield self._client.broker_client.groups.commit(self._config.group_id, by_id)
        self._have_committed({id_tp: committed.offset for id_tp, committed in by_id.items() if id_tp not in refused})
        for id_tp in by_id:
            self._wanted.pop(id_tp, None)
        for id_tp, error in refused.items():
            error.message = f"group '{self._config.group_id}': {self._refusal(id_tp, error)}"
        self._forget()
        for error in refused.values():
            raise error

    def committed(self, tps: Iterable[TopicPartition]) -> Steps[dict[TopicPartition, OffsetAndMetadata | None]]:
        """The committed offset of each partition. Raises the broker's errors."""
        self.require_group("committed()")
        ids = yield from self.ids_of(tps)
        found = (yield self._client.broker_client.groups.offsets(self._config.group_id, list(ids.values()))) if ids else {}
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for tp, id_tp in ids.items():
            result = found.get(id_tp)
            if isinstance(result, WireError):
                result.message = f"{tp}: {result.message}"
                raise result
            offsets[tp] = result
        return offsets

    def transaction_input(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[TopicIdPartition, int, int]]:
        """Ids of partitions, the offsets that the group had when reading began there, and the epochs before the offsets given.
        Raises ConsumerStateError, and why the broker did not say."""
        self.require_group("send_offsets()")
        if self._is_automatic:
            raise ConsumerStateError(
                f"group '{self._config.group_id}': send_offsets() commits with a transaction what this consumer commits by itself: "
                "set enable.auto.commit=false"
            )
        found = {}
        for tp, offset in offsets.items():
            one = self._assignment.of(tp)
            if one.id_tp is None or one.committed is None:
                raise ConsumerStateError(
                    f"{tp} has not been read since it was assigned, or since a transaction failed: poll() first"
                )
            if isinstance(one.committed, WireError):
                raise fresh(one.committed)
            found[tp] = one.id_tp, one.committed, one.epoch_before(offset)
        return found

    def ids_of(self, tps: Iterable[TopicPartition]) -> Steps[dict[TopicPartition, TopicIdPartition]]:
        """Ids of partitions: those of assigned ones as they were first seen. Raises UnknownTopicOrPartitionError."""
        assigned = self._assignment.partitions
        wanted = {tp: assigned[tp].id_tp if tp in assigned else None for tp in tps}
        ids: dict[TopicPartition, TopicIdPartition] = yield ids_of(self._client.broker_client, wanted)
        return ids

    def require_group(self, call: str) -> None:
        """Raises ConsumerStateError without group.id."""
        if not self._config.group_id:
            raise ConsumerStateError(f"{call} needs a group: set group.id, under which the broker keeps the offsets")

    # --- the end

    def close(self, timeout_ms: int) -> Steps[None]:
        """Commits what is processed, within the time. What fails is logged: those records come again."""
        if not self._is_automatic:
            return
        ends_ms = self._clock.monotonic_ms() + timeout_ms

        def left_ms() -> int:
            return max(0, ends_ms - self._clock.monotonic_ms())

        try:
            yield from self._settle(left_ms())
            self._start(self._processed(self._assignment.partitions.values()))
            yield from self._settle(left_ms())
        except (TimeoutError, concurrent.futures.CancelledError, ClientError):
            logger.warning(
                "group '%s': offsets are not committed, as the broker has not answered in %d ms: records since the last commit "
                "will come again",
                self._config.group_id,
                timeout_ms,
            )


async def _renew(groups: GroupCalls, group_id: str) -> None:
    try:
        await groups.renew(group_id)
    except BrokerdError as error:
        logger.warning("group '%s' is not renewed, and would expire by offsets.retention.minutes: %s", group_id, error)


async def _ended(future: concurrent.futures.Future[dict[TopicIdPartition, WireError]], timeout_ms: int | None) -> None:
    """Waits until a commit under way has ended, which goes on if this is cancelled."""
    ended = asyncio.wrap_future(future)
    ended.add_done_callback(lambda one: one.cancelled() or one.exception())  # retrieved: `_take_outcome` tells it
    await asyncio.wait([ended], timeout=None if timeout_ms is None else timeout_ms / 1000)
