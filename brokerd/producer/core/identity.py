"""The identity under which a producer writes: requests of its producer id, heartbeats, and what was delivered under it.

A producer has a lasting identity, a producer id whose epoch rises. As a member of a transaction it has a producer id for that
transaction alone, with one epoch, requested at the first row. A member that waits long for its first row (a task that sorts)
requests it earlier, so that its heartbeats keep the transaction open for the other members. A transaction cannot use a member that
lacks a batch, so the first failed batch fails the whole member, without an epoch bump: the owner of the transaction begins another
member. Batches in flight when a member ends keep their sequences and are never resent.

Pure. accumulator.py assigns sequences, producer_core.py fails batches, sender.py sends requests.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError, TransactionStateError
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS, IdempotenceState, ProducerBatch
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.streams import Command, RequestProducerId, SendHeartbeat


class RepeatedRequests:
    """Repeats one kind of request, one at a time, with back-off after failures."""

    __slots__ = ("_config", "_failures", "_not_before_ms", "_rng", "is_under_way")

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._failures = 0
        self._not_before_ms = 0
        self.is_under_way = False

    def step(self, commands: list[Command], request: Command, now_ms: int) -> int:
        """Adds the request to the commands if it may be sent now. Returns the time of the next step."""
        if self.is_under_way:
            return NEVER_MS
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self.is_under_way = True
        commands.append(request)
        return NEVER_MS

    def on_success(self, next_ms: int) -> None:
        """Notes that the request succeeded; the next one is not sent before `next_ms`."""
        self.is_under_way = False
        self._failures = 0
        self._not_before_ms = next_ms

    def on_failure(self, now_ms: int) -> None:
        """Notes that the request has failed."""
        self.is_under_way = False
        self._failures += 1
        config = self._config
        self._not_before_ms = now_ms + backoff_ms(
            self._failures, first_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, random=self._rng.random()
        )


_HEARTBEATS_PER_TIMEOUT = 3


class DeliveredTotals(NamedTuple):
    """The acknowledged records and batches of one partition."""

    record_count: int = 0
    batch_count: int = 0


class Identity:
    """The lasting identity of a producer (`membership` is None), or one member."""

    def __init__(self, config: ProducerConfig, rng: random.Random, membership: Membership | None = None) -> None:
        self.membership = membership
        is_member = membership is not None
        self.sequences = IdempotenceState(is_member=is_member) if config.enable_idempotence else None
        self.delivered: dict[TopicPartition, DeliveredTotals] = {}  # of immutable values: other threads copy it without the lock
        self.first_error: BrokerdError | None = None
        self.error: BrokerdError | None = None  # set once nothing more can be written
        self.abort_by_ms: int | None = None  # latest end of a member that is being aborted
        if config.transactional_id and not is_member:
            self.error = TransactionStateError(
                f"no transaction is open: a producer with a transactional.id ('{config.transactional_id}') sends inside "
                "'with producer.transaction():' only"
            )
        self._id_requests = RepeatedRequests(config, rng)
        self._heartbeats = RepeatedRequests(config, rng)
        self.partitions: dict[TopicIdPartition, None] = {}  # that the member writes to
        self._id_due_ms = NEVER_MS  # when a member without rows requests its id

    def may_end_abort(self, now_ms: int, *, is_closed: bool) -> bool:
        """True once an aborted member may end. Until `abort_by_ms` or the producer's close, it waits for a requested producer id,
        which the abort needs."""
        return not self._id_requests.is_under_way or is_closed or (self.abort_by_ms is not None and now_ms >= self.abort_by_ms)

    # --- requests

    def step(self, commands: list[Command], now_ms: int, *, has_rows: bool) -> int:
        """Adds the requests that are due to the commands. Returns the time of the next step."""
        if self.sequences is None or self.error is not None:
            return NEVER_MS
        return min(self._step_id(self.sequences, commands, now_ms, has_rows=has_rows), self._step_heartbeat(commands, now_ms))

    def _step_id(self, sequences: IdempotenceState, commands: list[Command], now_ms: int, *, has_rows: bool) -> int:
        wanted = sequences.identity_wanted()
        if wanted is None or (self.membership is None and not has_rows):
            return NEVER_MS
        if self.membership is not None and not has_rows:
            if self._id_due_ms == NEVER_MS:  # the first step of a member
                self._id_due_ms = now_ms + self.membership.timeout_ms // _HEARTBEATS_PER_TIMEOUT
            if now_ms < self._id_due_ms:
                return self._id_due_ms
        return self._id_requests.step(commands, RequestProducerId(wanted, self.membership), now_ms)

    def _step_heartbeat(self, commands: list[Command], now_ms: int) -> int:
        if self.membership is None or self.sequences is None or not self.sequences.has_identity:
            return NEVER_MS
        return self._heartbeats.step(commands, SendHeartbeat(self.membership), now_ms)

    # --- responses

    def on_granted(self, identity: ProducerIdAndEpoch, now_ms: int) -> None:
        """Takes a granted id or raised epoch."""
        assert self.sequences is not None
        self._id_requests.on_success(now_ms)
        self.sequences.set_identity(identity)
        self.on_heartbeat(now_ms)

    def on_failed(self, command: RequestProducerId | SendHeartbeat, now_ms: int) -> None:
        """Notes that a request has failed; it is retried after a back-off."""
        requests = self._id_requests if isinstance(command, RequestProducerId) else self._heartbeats
        requests.on_failure(now_ms)

    def on_heartbeat(self, now_ms: int) -> None:
        """Notes that the broker knows that the member is alive."""
        interval_ms = self.membership.timeout_ms // _HEARTBEATS_PER_TIMEOUT if self.membership is not None else 0
        self._heartbeats.on_success(now_ms + interval_ms)

    # --- results

    def note_ended(self, batch: ProducerBatch) -> None:
        """Counts a batch that was sent under this identity and has its final state."""
        if batch.error is None:
            records, batches = self.delivered.get(batch.tp, DeliveredTotals())
            self.delivered[batch.tp] = DeliveredTotals(records + batch.record_count, batches + 1)
        elif self.first_error is None:
            self.first_error = batch.error

    def report(self) -> MemberReport:
        """The report of a member."""
        assert self.sequences is not None
        rows = {tp: totals.record_count for tp, totals in self.delivered.items()}
        return MemberReport(*self.sequences.identity, sum(rows.values()), tuple(self.partitions), rows)
