"""The producer's identity towards the broker. Its lasting one is a producer id whose epoch rises; as a member of a transaction it
has an id for that transaction alone, requested at the first row, with one epoch. A member that waits long for its first row (a
task that sorts) requests it all the same, so that its heartbeats keep the transaction of its siblings open.

A transaction cannot use a member that lacks a batch. So a member fails as a whole with its first batch that fails, and nothing is
repaired: the owner of the transaction begins another member. Batches in flight when a member ends keep its numbers and are never
sent again.

Pure. sender.py sends the requests; producer_core.py fails the batches.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError, TransactionStateError
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.commands import Command, RequestProducerId, SendHeartbeat
from brokerd.producer.core.idempotence import IdempotenceState
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.producer.core.repeated_requests import RepeatedRequests

_HEARTBEATS_PER_TIMEOUT = 3


class DeliveredTotals(NamedTuple):
    """The records that one partition has acknowledged."""

    record_count: int = 0
    batch_count: int = 0


class Deliveries:
    """The results of all batches that were sent under one identity of the producer."""

    __slots__ = ("delivered", "first_error")

    def __init__(self) -> None:
        self.delivered: dict[TopicPartition, DeliveredTotals] = {}  # other threads may copy it: in one call, and of values
        self.first_error: BrokerdError | None = None

    def note(self, batch: ProducerBatch) -> None:
        """Counts a batch that has its final state."""
        if batch.error is None:
            records, batches = self.delivered.get(batch.tp, DeliveredTotals())
            self.delivered[batch.tp] = DeliveredTotals(records + batch.record_count, batches + 1)
        elif self.first_error is None:
            self.first_error = batch.error


class Identity:
    """The lasting identity of a producer (`membership` is None), or one member."""

    def __init__(self, config: ProducerConfig, rng: random.Random, membership: Membership | None = None) -> None:
        self.membership = membership
        is_member = membership is not None
        self.sequences = IdempotenceState(is_member=is_member) if config.enable_idempotence else None
        self.deliveries = Deliveries()
        self.error: BrokerdError | None = None  # once nothing more can be written
        self.abort_by_ms: int | None = None  # of a member that is aborted: when it ends at the latest
        if config.transactional_id and not is_member:
            self.error = TransactionStateError(
                f"no transaction is open: a producer with a transactional.id ('{config.transactional_id}') sends inside "
                "'with producer.transaction():' only"
            )
        self._id_requests = RepeatedRequests(config, rng)
        self._heartbeats = RepeatedRequests(config, rng)
        self._partitions: dict[TopicIdPartition, None] = {}
        self._id_due_ms = NEVER_MS  # for a member without rows

    def may_end_abort(self, now_ms: int, *, is_closed: bool) -> bool:
        """True once an aborted member may end: it waits for a producer id that is on its way, since the broker is to be told which
        one to abort."""
        return not self._id_requests.is_under_way or is_closed or (self.abort_by_ms is not None and now_ms >= self.abort_by_ms)

    # --- requests

    def step(self, commands: list[Command], now_ms: int, *, has_rows: bool) -> int:
        """Adds the requests that are due to the commands; returns the time of the next step."""
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
        """Takes an id or a raised epoch."""
        assert self.sequences is not None
        self._id_requests.on_success(now_ms)
        self.sequences.set_identity(identity)
        self._expect_heartbeat(now_ms)

    def on_heartbeat(self, now_ms: int) -> None:
        """Notes that the broker has taken a heartbeat."""
        self._expect_heartbeat(now_ms)

    def on_failed(self, command: RequestProducerId | SendHeartbeat, now_ms: int) -> None:
        """Notes that a request has failed; it is repeated after a while."""
        requests = self._id_requests if isinstance(command, RequestProducerId) else self._heartbeats
        requests.on_failure(now_ms)

    def _expect_heartbeat(self, now_ms: int) -> None:
        interval_ms = self.membership.timeout_ms // _HEARTBEATS_PER_TIMEOUT if self.membership is not None else 0
        self._heartbeats.on_success(now_ms + interval_ms)

    # --- results

    def note_partitions(self, tps: list[TopicIdPartition]) -> None:
        """Notes the partitions of batches that are sent."""
        if self.membership is not None:
            self._partitions.update(dict.fromkeys(tps))

    def report(self) -> MemberReport:
        """The report of a member."""
        assert self.sequences is not None
        rows = {tp: totals.record_count for tp, totals in self.deliveries.delivered.items()}
        return MemberReport(*self.sequences.identity, sum(rows.values()), tuple(self._partitions), rows)


class Identities:
    """The lasting identity of a producer, and its present one."""

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self.own = self.present = Identity(config, rng)

    def member(self, membership: Membership) -> Identity:
        """A new member, for the core to make present."""
        assert self.present is self.own, "one member at a time"
        return Identity(self._config, self._rng, membership)

    def of(self, membership: Membership | None) -> Identity | None:
        """The identity that a response belongs to; None if that member has ended."""
        if membership is None:
            return self.own
        return self.present if self.present.membership == membership else None

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have sequences."""
        return [tp for sequences in self._sequences() for tp in sequences.partitions()]

    def forget(self, tp: TopicPartition) -> None:
        """Drops the sequences of a partition whose topic was recreated. Nothing may be in flight there."""
        for sequences in self._sequences():
            sequences.forget(tp)

    def _sequences(self) -> list[IdempotenceState]:
        identities = dict.fromkeys((self.own, self.present))
        return [identity.sequences for identity in identities if identity.sequences is not None]
