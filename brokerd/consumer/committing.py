"""Commits a group's offsets: on request and, with enable.auto.commit, periodically in the background.

Only one commit is in flight, so that an older one never completes after a newer. A failed background commit is logged, and the next
one includes its offsets. The group is also renewed periodically, since it may have nothing to commit for a long time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import NamedTuple

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.groups import commit_group_offsets, group_offsets, renew_group
from brokerd.client.metadata import ids_in
from brokerd.clock import Clock
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import AssignedPartition, Assignment
from brokerd.errors import BrokerdError, ClientError, ConsumerStateError, WireError, fresh
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

RENEW_MS = 30_000  # a group without commits or renewals expires after one minute at the earliest
_LOOK_MIN_MS = 100  # lower bound of waits, even if auto.commit.interval.ms is shorter

Refusals = dict[TopicIdPartition, WireError]


class _Offset(NamedTuple):
    """An offset to commit, and the partition's name."""

    name: TopicPartition
    value: OffsetAndMetadata

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.value.offset, self.value.leader_epoch_id)

    def is_of(self, done: LogPosition | None) -> bool:
        """True if a commit of `done` has committed it. An unknown history (leader_epoch_id 0, as after a seek) equals any other."""
        return done is not None and self.value.offset == done.offset and self.value.leader_epoch_id in (0, done.leader_epoch_id)


_Offsets = dict[TopicIdPartition, _Offset]


class Committing:
    """Commits the offsets of one consumer's group. Used by the consumer's thread, which runs the coroutines on the loop thread and
    waits for them."""

    def __init__(self, client: BlockingClient, config: PlainConsumerConfig, assignment: Assignment, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._assignment = assignment
        self._clock = clock
        self._is_automatic = bool(config.group_id) and config.enable_auto_commit
        self._write: Callable[[], None] | None = None
        self._next_ms = clock.monotonic_ms() + config.auto_commit_interval_ms
        self._renew_ms = clock.monotonic_ms()
        self._renewing: LoopCall[None] | None = None
        self._wanted: _Offsets = {}  # of failed commits
        self._offered: _Offsets = {}  # in the commit in flight
        self._under_way: LoopCall[Refusals] | None = None
        self._done: dict[TopicIdPartition, LogPosition] = {}  # the last commit of each assigned partition

    # --- in the background

    @contextlib.contextmanager
    def processing(self, write: Callable[[], None]) -> Iterator[None]:
        """While handlers run in threads: enables background commits if there is a group, and calls `write` before each commit that
        is due."""
        before, self._is_automatic = self._is_automatic, bool(self._config.group_id)
        self._write = write
        try:
            yield
        finally:
            self._is_automatic = before
            self._write = None

    @property
    def is_processing(self) -> bool:
        """True within `processing`."""
        return self._write is not None

    def auto(self) -> None:
        """Starts a commit and a renewal if they are due, without waiting. Raises the errors of `write` (see `processing`)."""
        if (self._is_automatic or self._write is not None) and self._clock.monotonic_ms() >= self._next_ms:
            self._next_ms = self._clock.monotonic_ms() + self._config.auto_commit_interval_ms
            if self._write is not None:
                self._write()
            if self._is_automatic:
                self._start()
        is_renewing = self._renewing is not None and not self._renewing.has_ended
        if self._config.group_id and not is_renewing and self._clock.monotonic_ms() >= self._renew_ms:
            self._renew_ms = self._clock.monotonic_ms() + RENEW_MS
            self._renewing = self._client.loop_thread.submit(self._renew(list(self._done)))

    async def _renew(self, done: list[TopicIdPartition]) -> None:
        """Renews the group. Offsets of `done` that the group no longer has (deleted, or expired) will be committed again."""
        client, group_id = self._client.broker_client, self._config.group_id
        try:
            await renew_group(client, group_id)
            if not (done and self._is_automatic):
                return
            found = await group_offsets(client, group_id, done)
        except BrokerdError as error:
            logger.warning("group '%s' is not renewed, and would expire by offsets.retention.minutes: %s", group_id, error)
            return
        for id_tp in done:
            if id_tp not in found:
                self._done.pop(id_tp, None)

    def wait_ms(self, left_ms: int | None) -> int | None:
        """How long a call may wait until `auto` is due again, at most `left_ms` (None: no limit)."""
        if not self._config.group_id:
            return left_ms
        next_ms = min(self._next_ms, self._renew_ms) if self._is_automatic else self._renew_ms
        due_ms = max(_LOOK_MIN_MS, next_ms - self._clock.monotonic_ms())
        return due_ms if left_ms is None else min(left_ms, due_ms)

    def pending(self) -> dict[TopicIdPartition, int]:
        """Offsets whose commit is pending or in flight, by partition."""
        self._settle()
        return {id_tp: one.value.offset for id_tp, one in (self._offered | self._wanted).items()}

    def give_up(self, partitions: Sequence[AssignedPartition]) -> None:
        """Starts a commit of the uncommitted offsets of partitions that are about to be given up, right after the commit in flight.
        A later commit could overwrite those of the partitions' next reader."""
        before = None if self._settle() else self._under_way
        given_up = self._positions(partitions, is_confirmed=True)
        uncommitted = {id_tp: one for id_tp, one in given_up.items() if not one.is_of(self._done.pop(id_tp, None))}
        ids = {one.id_tp for one in partitions}
        self._wanted = {id_tp: one for id_tp, one in self._wanted.items() if id_tp not in ids}
        if self._is_automatic and uncommitted:
            under_way = self._client.loop_thread.submit(self._commit_offered(uncommitted, before))
            self._offered, self._under_way = self._offered | uncommitted, under_way

    def _positions(self, partitions: Iterable[AssignedPartition], *, is_confirmed: bool) -> _Offsets:
        """Positions; with `is_confirmed`, those below which all records are processed."""
        offsets = {}
        for one, position in self._assignment.positions(partitions, is_confirmed=is_confirmed).items():
            assert one.id_tp is not None
            offsets[one.id_tp] = _Offset(one.tp, OffsetAndMetadata(position, leader_epoch_id=one.epoch_before(position)))
        return offsets

    def _start(self) -> None:
        """Starts a commit of the processed records' offsets, unless one is in flight."""
        if self._settle() and self._offer():
            self._under_way = self._client.loop_thread.submit(self._commit_offered(self._offered))

    def _settle(self) -> bool:
        """Takes the outcome of a commit that has ended; False while one is in flight."""
        if self._under_way is not None and not self._under_way.has_ended:
            return False
        self._take_outcome()
        return True

    def _offer(self) -> bool:
        """Chooses the offsets to commit; False if there are none."""
        processed = self._positions(self._assignment.partitions.values(), is_confirmed=True)
        wanted = self._offered | self._wanted | processed  # `_offered` is left over if an interrupt prevented its commit
        self._offered = {
            id_tp: one for id_tp, one in wanted.items() if id_tp in self._assignment.by_id and not one.is_of(self._done.get(id_tp))
        }
        self._wanted = {}
        return bool(self._offered)

    async def _commit_offered(self, offsets: _Offsets, before: LoopCall[Refusals] | None = None) -> Refusals:
        """Commits `offsets` after the commit `before`. Returns the refusals of both; raises the error of either."""
        refused = {}
        if before is not None:
            await before.ended()
            refused = before.outcome()
        values = {id_tp: one.value for id_tp, one in offsets.items()}
        refused = {id_tp: error for id_tp, error in refused.items() if id_tp not in values}
        return refused | await commit_group_offsets(self._client.broker_client, self._config.group_id, values)

    def _take_outcome(self) -> None:
        """Takes the outcome of a commit that has ended; logs failures."""
        if self._under_way is None:
            return
        under_way, self._under_way = self._under_way, None
        try:
            refused = under_way.outcome()
        except BrokerdError as error:
            logger.warning("group '%s': offsets are not committed: %s", self._config.group_id, error)
            # A partition given up meanwhile may have another reader: its offset is not retried, and its records come again.
            self._wanted = {id_tp: one for id_tp, one in self._offered.items() if id_tp in self._assignment.by_id} | self._wanted
        else:
            for id_tp, refusal in refused.items():
                logger.warning("group '%s': %s", self._config.group_id, _refusal(self._offered[id_tp].name, refusal))
            self._have_committed(self._offered, refused)
        self._offered = {}

    def _have_committed(self, offsets: _Offsets, refused: Refusals) -> None:
        committed = {id_tp: one.position for id_tp, one in offsets.items() if id_tp not in refused}
        # Transactions check the group's offsets against these.
        self._assignment.committed({id_tp: position.offset for id_tp, position in committed.items()})
        self._done = {id_tp: at for id_tp, at in (self._done | committed).items() if id_tp in self._assignment.by_id}

    # --- on request

    def asked(self, given: Mapping[TopicPartition, OffsetAndMetadata] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit: the given ones, with leader epochs if known, or all positions. Raises ConsumerStateError without a
        group."""
        self.require_group("commit()")
        if given is None:
            positions = self._positions(self._assignment.partitions.values(), is_confirmed=False)
            return {one.name: one.value for one in positions.values()}
        offsets = dict(given)
        for tp, one in given.items():
            if tp in self._assignment.partitions and not one.leader_epoch_id:
                offsets[tp] = one._replace(leader_epoch_id=self._assignment.partitions[tp].epoch_before(one.offset))
        return offsets

    async def commit(self, asked: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits these offsets. Raises the first refusal; the others are committed."""
        if self._under_way is not None:
            await self._under_way.ended()
            self._take_outcome()
        if not asked:
            return
        ids = await self.ids_of(asked)
        offsets = {ids[tp]: _Offset(tp, one) for tp, one in asked.items()}
        values = {id_tp: one.value for id_tp, one in offsets.items()}
        self._done = {id_tp: at for id_tp, at in self._done.items() if id_tp not in offsets}  # unknown if the commit fails
        refused = await commit_group_offsets(self._client.broker_client, self._config.group_id, values)
        self._have_committed(offsets, refused)
        for id_tp, one in offsets.items():
            self._wanted.pop(id_tp, None)
            if id_tp not in refused:
                self._assignment.confirm_below(id_tp, one.value.offset)
        for id_tp, error in refused.items():
            error.message = f"group '{self._config.group_id}': {_refusal(offsets[id_tp].name, error)}"
            raise error

    async def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition. Raises the broker's errors."""
        self.require_group("committed()")
        ids = await self.ids_of(tps)
        found = await group_offsets(self._client.broker_client, self._config.group_id, list(ids.values())) if ids else {}
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for tp, id_tp in ids.items():
            result = found.get(id_tp)
            if isinstance(result, WireError):
                result.message = f"{tp}: {result.message}"
                raise result
            offsets[tp] = result
        return offsets

    def transaction_input(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[TopicIdPartition, int, int]]:
        """For each partition: its id, the group's committed offset to expect, and the leader epoch before the given offset. Raises
        ConsumerStateError, and the broker's error if the committed offset could not be read."""
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
        for tp in offsets:
            self._assignment.of(tp).is_in_transaction = True
        return found

    async def ids_of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, TopicIdPartition]:
        """Ids of partitions; assigned ones keep the id first seen. Raises UnknownTopicOrPartitionError."""
        assigned = self._assignment.partitions
        known = {tp: assigned[tp].id_tp if tp in assigned else None for tp in tps}
        unknown = [tp for tp, id_tp in known.items() if id_tp is None]
        client = self._client.broker_client
        found = ids_in(await client.metadata(sorted({tp.topic for tp in unknown})), unknown) if unknown else {}
        return {tp: id_tp if id_tp is not None else found[tp] for tp, id_tp in known.items()}

    def require_group(self, call: str) -> None:
        """Raises ConsumerStateError without group.id."""
        if not self._config.group_id:
            raise ConsumerStateError(f"{call} needs a group: set group.id, under which the broker keeps the offsets")

    # --- the end

    async def close(self, timeout_ms: int) -> None:
        """Commits the processed records' offsets within `timeout_ms`. Failures are logged: those records are read again."""
        if not self._is_automatic:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._under_way is not None:
                    await self._under_way.ended()
                    self._take_outcome()
                if self._offer():
                    self._under_way = LoopCall.started(self._commit_offered(self._offered))
                    await self._under_way.ended()
                    self._take_outcome()
        except (TimeoutError, CancelledError, ClientError):
            logger.warning(
                "group '%s': offsets are not committed, as the broker has not answered in %d ms: records since the last commit "
                "will come again",
                self._config.group_id,
                timeout_ms,
            )


def _refusal(name: TopicPartition, error: WireError) -> str:
    return f"the offset of {name} is not committed: {error.message}"
