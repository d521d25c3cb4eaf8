"""ProducerCore: the state machine that makes all decisions about delivery. Events in, commands out.

`step(now_ms)` returns commands; the shell (sender.py, or a simulation in tests) carries them out and reports through the `on_...`
methods. accumulator.py has the rules of queues, identity.py the rules of sequences. Pure: reads no clock and never waits. Threads
share it under the producer's lock (waiting.py).

States of a batch, and the events that move it:

    closed ── step: drained ──▶ in flight ── success, duplicate, final error ──▶ ended
      ▲                            │  └───── expired, stopped ──▶ given up ── response or loss ──▶ ended
      ├── retriable error, loss ───┤
      └── as smaller batches ──────┘ too large
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig, transaction_conflict
from brokerd.errors import (
    AbortedBatchError,
    Action,
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    DeliveryTimeoutError,
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    LogDamagedError,
    MessageTooLargeError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionalIdAuthorizationFailedError,
    TransactionStateError,
    UnknownLeaderEpochError,
    UnknownProducerIdError,
    UnknownTopicIdError,
    WireError,
    counted,
    fresh,
)
from brokerd.ids import NO_LEADER, NO_SEQUENCE, ProducerIdAndEpoch, TopicInfo, TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS, NO_OFFSET, NO_TIMESTAMP, BufferPool, Piece, ProducerBatch, RecordAccumulator
from brokerd.producer.core.identity import Identity, Verdict, verdict_on
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.metrics import ProducerMetrics
from brokerd.producer.core.streams import (
    Command,
    ConnectionState,
    FetchMetadata,
    NodeConnection,
    RequestProducerId,
    SendHeartbeat,
    SendRequest,
    Step,
    Streams,
)
from brokerd.producer.core.topics import TopicRegistry
from brokerd.producer.core.transport import PartitionResult, ProduceResponse, RequestLimits

# Splits an encoded batch of two or more records, in order, into at least two pieces of about the given size (or one record).
Splitter = Callable[[ProducerBatch, int], list[Piece]]

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
# How long a producer that no broker has accepted yet retries refusals; once accepted, delivery.timeout.ms is the limit.
REFUSALS_MS = 3_000
# Once a batch has been retried for this long, the cause is logged, only once while it lasts.
_STALL_MS = 5_000


class ProducerCore:
    """The state and decisions of one producer."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        instance_id: bytes,
        rng: random.Random,
        metrics: ProducerMetrics,
        splitter: Splitter,
    ) -> None:
        self._config = config
        self._splitter = splitter
        self._rng = rng
        self._acks = ACKS[config.acks]
        self.metrics = metrics
        self.pool = BufferPool(config.buffer_memory)
        self.own_identity = self.identity = Identity(config, rng)  # the lasting one, and the one in use
        self.accumulator = RecordAccumulator(config, self.pool)
        self.topics = TopicRegistry(config, rng)
        self.streams = Streams(config, rng, instance_id=instance_id)
        self.fatal_error: BrokerdError | None = None
        self.last_trouble: BrokerdError | None = None  # the latest error of a request or stream, for error messages
        self.last_report = MemberReport()  # of the last member that ended
        self.ended: list[ProducerBatch] = []  # done or split; the shell takes them, and calls their listeners
        self.warnings: list[str] = []  # the shell takes them, and logs them
        self._stalled_ms: dict[type[BrokerdError], int] = {}  # causes that were logged, and the time of the last retry for each
        self.is_closed = False  # no more records are accepted
        self.close_by_ms = NEVER_MS  # records unacknowledged by then are given up
        self.abandoned_count = 0  # records given up at close_by_ms
        self._was_accepted = False  # by a broker
        self._refused_ms: int | None = None  # when a broker first refused this client

    # --- commands

    def step(self, now_ms: int, *, has_unplaced: bool = False) -> Step:
        """The commands to carry out at `now_ms`, and the time of the next step. `has_unplaced`: accepted records are not in batches
        yet."""
        next_expiry_ms = self._expire(now_ms)
        next_overdue_ms = self._give_up_overdue(now_ms)
        self.fail_stopped(now_ms)
        self.end_aborted(now_ms, has_unplaced=has_unplaced)
        if self.is_closed and has_unplaced:
            return Step([], now_ms)  # the shell places them first
        if self.is_closed and self._is_closing_over(now_ms):
            return Step([], NEVER_MS, is_over=True)
        is_busy = bool(self.accumulator.incomplete)
        commands: list[Command] = []
        next_ms = min(
            NEVER_MS if self.fatal_error is not None else self.identity.step(commands, now_ms, has_rows=is_busy),
            self._step_connections(commands, now_ms),
            self._step_metadata(commands, now_ms, is_busy=is_busy),
            next_expiry_ms,
            next_overdue_ms,
            self.close_by_ms,
        )
        closing, self.streams.closing = self.streams.closing, []
        return Step([*closing, *commands], max(next_ms, now_ms))

    @property
    def has_work(self) -> bool:
        """False if no step is needed before the time that the last step returned."""
        return bool(self.accumulator.incomplete or self.streams.closing or self.is_closed)

    def _step_metadata(self, commands: list[Command], now_ms: int, *, is_busy: bool) -> int:
        due_ms = self.topics.due_ms(now_ms, is_busy=is_busy)
        if due_ms > now_ms:
            return due_ms
        topics = self.topics.begin(now_ms)
        if topics:
            commands.append(FetchMetadata(topics))
        return NEVER_MS

    def _step_connections(self, commands: list[Command], now_ms: int) -> int:
        check = self.accumulator.ready(self.topics.leader_of, self.identity.may_drain, now_ms)
        if check.leaderless_topics:
            for topic in check.leaderless_topics:
                self.topics.want(topic, now_ms)
            self.topics.request_refresh()
        next_ms = NEVER_MS
        overdue_ms = now_ms + self._config.request_timeout_ms
        for node_id in check.nodes:
            connection = self.streams.to(node_id)
            if connection.may_open(now_ms):
                commands.append(self.streams.open(connection, now_ms))
                next_ms = min(next_ms, overdue_ms)
            elif connection.state is ConnectionState.CLOSED:
                next_ms = min(next_ms, connection.not_before_ms)
            elif connection.throttled_until_ms > now_ms:
                next_ms = min(next_ms, connection.throttled_until_ms)
            while check.nodes[node_id] and connection.may_send(self._config, now_ms):
                batches = self.accumulator.drain(check, node_id, connection.limits)
                commands.append(self._request(connection, batches, now_ms))
                self.accumulator.check_again(check, node_id, batches, now_ms)
                next_ms = min(next_ms, overdue_ms)
        return min(next_ms, check.next_check_ms)

    def _request(self, connection: NodeConnection, drained: list[ProducerBatch], now_ms: int) -> SendRequest:
        for batch in drained:
            self.identity.assign(batch)
        batches = {self.topics.id_of(batch.tp): batch for batch in drained}
        # Not with acks=0, whose refusals go unnoticed: after a restore to lower epochs, every batch would be refused forever.
        for batch in drained if self._acks else ():
            batch.leader_epoch = self.topics.leader_epoch_of(batch.tp)
        self.metrics.on_request(drained, now_ms)
        if self.identity.membership is not None:
            self.identity.partitions.update(dict.fromkeys(batches))
        return self.streams.request(connection, batches, self.identity.membership, now_ms)

    # --- metadata and identity

    def on_metadata(self, response: Mapping[str, TopicInfo | WireError], now_ms: int) -> None:
        """Takes the broker's view of the requested topics."""
        self._was_accepted = True
        replaced = self.topics.on_result(response, now_ms)
        self.accumulator.forget_batch_sizes(now_ms - self._config.metadata_max_age_ms, replaced)
        for topic, former in replaced.items():
            known = dict.fromkeys((*self.accumulator.partitions(), *self.own_identity.sequences, *self.identity.sequences))
            for tp in [tp for tp in known if tp.topic == topic]:
                self.topics.replaced.setdefault(tp, former)
                self._reset_replaced(tp, now_ms)
        for topic, view in response.items():
            if isinstance(view, WireError):
                self.last_trouble = view
                if not view.retriable:
                    self._fail_topic(topic, view, now_ms)
            else:
                self._note_leaderless(topic, view, now_ms)

    def on_metadata_failed(self, error: BrokerdError, now_ms: int) -> None:
        """Notes that no broker answered the request for metadata."""
        self.last_trouble = error
        self.topics.on_failure(now_ms)

    def on_producer_id(self, membership: Membership | None, granted: ProducerIdAndEpoch, now_ms: int) -> None:
        """Takes a granted producer id or raised epoch."""
        self._was_accepted = True
        identity = self._identity_of(membership)
        if identity is not None:
            identity.on_granted(granted, now_ms)

    def on_heartbeat(self, membership: Membership, now_ms: int) -> None:
        """Notes that the broker has accepted a heartbeat."""
        self._was_accepted = True
        identity = self._identity_of(membership)
        if identity is not None:
            identity.on_heartbeat(now_ms)

    def on_identity_failed(self, command: RequestProducerId | SendHeartbeat, error: BrokerdError, now_ms: int) -> None:
        """Notes that an id request or a heartbeat has failed; retries it unless the error is final."""
        self.last_trouble = error
        identity = self._identity_of(command.membership)
        if identity is not None:
            identity.on_failed(command, now_ms)
            if isinstance(error, WireError) and not error.retriable and identity is self.identity:
                self.stop(error, now_ms)

    def on_refused(self, error: AuthenticationError, now_ms: int) -> bool:
        """Notes that a broker refuses this client; returns True if that is final.

        A refusal that may pass is retried as if the broker were unreachable: for REFUSALS_MS if this client was never accepted,
        since its token may be wrong; otherwise until delivery.timeout.ms, whose error names the refusal. A missing right is final
        for a client never accepted; otherwise it fails only the batches not in flight, since the right may be granted later.
        """
        if self._refused_ms is None:
            self._refused_ms = now_ms
        if error.may_pass:
            return not self._was_accepted and now_ms - self._refused_ms >= REFUSALS_MS
        if not self._was_accepted:
            return True
        self.last_trouble = error
        for batch in list(self.accumulator.incomplete):
            if not batch.is_in_flight:
                text = f"{error.message}; {_subject(batch)} was given up: {_where(batch)}"
                self.fail(batch, AuthenticationError(text, may_pass=False), now_ms)
        return False

    def _reset_replaced(self, tp: TopicPartition, now_ms: int) -> None:
        """Resets a partition of a recreated topic, once nothing is in flight to the old topic. Batches that may be in the old log
        fail, so that no record is written twice; the others go to the new partition, in a raised epoch. A member has one epoch, and
        cannot be committed without its records in the old topic, so it stops if it has or may have any there, and also if the new
        topic has another number of partitions: equal keys could be in two of them."""
        if tp not in self.topics.replaced or self.accumulator.in_flight_count(tp):
            return
        former, view = self.topics.replaced.pop(tp), self.topics.view(tp.topic)
        has_same_size = view is not None and len(view.leaders) == len(former.leaders)
        for batch in self.accumulator.queued(tp):
            if batch.is_fate_unknown:
                self.fail(batch, _replaced_error(tp), now_ms)
        if has_same_size:
            self.identity.forget_unwritten(tp, former.topic_id)
        if self.identity.membership is not None and tp in self.identity.sequences:
            self.stop(_replaced_error(tp), now_ms)
        for identity in (self.own_identity, self.identity):
            identity.leave_gap(tp)

    def _fail_topic(self, topic: str, error: WireError, now_ms: int) -> None:
        error = type(error)(error.message, fate=Fate.NOT_APPENDED)  # the error of a request that writes nothing
        for batch in list(self.accumulator.incomplete):
            if batch.tp.topic == topic and not batch.is_in_flight:
                self.fail(batch, error, now_ms)

    # --- streams

    def on_stream_open(self, node_id: int, incarnation: int, limits: RequestLimits, _now_ms: int) -> None:
        """Notes that a stream takes requests, each within `limits`."""
        self.streams.on_open(node_id, incarnation, limits)

    def on_stream_lost(self, node_id: int, incarnation: int, error: BrokerdError, now_ms: int) -> None:
        """Notes that a stream has failed, or could not be opened: the fate of its requests in flight is unknown."""
        connection = self.streams.by_node[node_id]
        if connection.incarnation != incarnation or connection.state is ConnectionState.CLOSED:
            return
        self.last_trouble = error
        self.topics.request_refresh()
        if not isinstance(error, BrokerUnreachableError):
            error = BrokerUnreachableError(error.message)  # for its batches, any end of the stream means no response
        for request in self.streams.on_lost(connection, now_ms):
            for batch in request.batches.values():
                batch.is_fate_unknown = True
                self._judge(batch, error, now_ms)

    def on_sent(self, node_id: int, correlation_id: int, now_ms: int) -> None:
        """Notes that a request was handed to the transport; with acks=0 that ends its batches."""
        if self._acks == 0:
            request = self.streams.by_node[node_id].in_flight.pop(correlation_id, None)
            for batch in request.batches.values() if request is not None else ():
                self._succeed(batch, NO_OFFSET, NO_TIMESTAMP, now_ms)

    def on_response(self, node_id: int, incarnation: int, response: ProduceResponse, now_ms: int) -> None:
        """Takes a response. Ignores a late response, which is of an older stream or to a request that is already settled."""
        connection = self.streams.by_node[node_id]
        if connection.incarnation != incarnation:
            return
        request = connection.in_flight.pop(response.correlation_id, None)
        if request is None:
            return
        connection.failures = 0  # the next loss counts as the first
        throttle_ms = response.error.retry_after_ms if response.error is not None else 0
        connection.throttled_until_ms = max(connection.throttled_until_ms, now_ms + throttle_ms)
        self.metrics.request_latency_ms.record(now_ms - request.sent_ms, now_ms)
        self.metrics.throttle_time_ms.record(throttle_ms, now_ms)
        results = {result.tp: result for result in response.results}
        for tp, batch in request.batches.items():
            result = results.get(tp)
            if response.error is not None:
                result = PartitionResult(tp, NO_OFFSET, NO_TIMESTAMP, response.error)
            if result is None:
                batch.is_fate_unknown = True
                self._judge(batch, BrokerUnreachableError(f"the broker's response left out {batch.tp}"), now_ms)
            elif result.error is None:
                self._succeed(batch, result.base_offset, result.append_timestamp, now_ms)
            else:
                self._on_error(batch, result.error, now_ms)

    def _give_up_overdue(self, now_ms: int) -> int:
        """Closes streams on which a request or the opening takes longer than request.timeout.ms. The fate of their requests is
        unknown. Returns the time when the next stream is overdue."""
        next_ms = NEVER_MS
        for overdue_ms, connection in self.streams.overdue():
            if overdue_ms <= now_ms:
                self.streams.close(connection)
                limit = f"request.timeout.ms ({self._config.request_timeout_ms} ms)"
                error = BrokerUnreachableError(f"node {connection.node_id} did not answer in {limit}")
                self.on_stream_lost(connection.node_id, connection.incarnation, error, now_ms)
            else:
                next_ms = min(next_ms, overdue_ms)
        return next_ms

    # --- judgement of responses

    def _succeed(self, batch: ProducerBatch, base_offset: int, append_timestamp: int, now_ms: int) -> None:
        is_news = self.accumulator.complete(batch, base_offset, append_timestamp)
        if is_news:
            self.ended.append(batch)
        identity = self._identity_of(batch.membership)
        if identity is not None:
            identity.on_written(batch, is_news=is_news)
        self._reset_replaced(batch.tp, now_ms)

    def _on_error(self, batch: ProducerBatch, error: WireError, now_ms: int) -> None:
        if isinstance(error, DuplicateSequenceError):
            self._succeed(batch, NO_OFFSET, NO_TIMESTAMP, now_ms)
            return
        if isinstance(error, (InvalidProducerEpochError, ProducerFencedError)):
            self._judge(batch, error, now_ms)
            self.stop(error, now_ms)
            return
        if error.fate is not Fate.NOT_APPENDED:
            batch.is_fate_unknown = True
        if isinstance(error, LogDamagedError):
            self.topics.note_problem(batch.tp, error.message)
        if error.refresh_metadata:
            self.topics.note_leader(batch.tp, error.current_leader, error.current_leader_epoch)
            self.topics.request_refresh()
        self._judge(batch, error, now_ms)

    def _judge(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        """Ends an attempt that is not known to have written the batch: retries, splits or fails the batch."""
        self._take_back(batch)
        batch.last_error = error
        if batch.is_done:
            self._leave_gap(batch, now_ms)
            return
        is_stopped = self.stopped_by is not None
        verdict = Verdict.FAIL if is_stopped else verdict_on(batch, error, self._numbered_by(batch), retries=self._config.retries)
        if verdict is Verdict.RETRY:
            self._retry(batch, error, now_ms)
        elif verdict is Verdict.SPLIT:
            self._split(batch, now_ms)
        else:
            self.fail(batch, error, now_ms)
        if isinstance(error, UnknownProducerIdError):
            for other in self.identity.unknowable(batch.tp):
                self.fail(other, error, now_ms)
        self.identity.renumber(batch.tp)
        if verdict is Verdict.ACKNOWLEDGED_LOST:
            self.stop(_lost_error(batch, error), now_ms)
        self._reset_replaced(batch.tp, now_ms)

    def _retry(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        first_ms, max_ms = self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
        wait_ms = backoff_ms(max(1, batch.attempts), first_ms=first_ms, max_ms=max_ms, random=self._rng.random())
        if isinstance(error, WireError):
            wait_ms = max(wait_ms, error.retry_after_ms)
        self.accumulator.reenqueue(batch, now_ms + wait_ms)
        if batch.retried_since_ms < 0:
            batch.retried_since_ms = now_ms
        self._note_stall(batch, error, now_ms)
        self.metrics.records_retried.record(batch.record_count, now_ms)

    def _note_leaderless(self, topic: str, view: TopicInfo, now_ms: int) -> None:
        """Notes why batches wait for a leader."""
        for number, why in view.problems.items():
            tp = TopicPartition(topic, number)
            batch = next(iter(self.accumulator.queued(tp)), None)
            if batch is not None and self.topics.leader_of(tp) == NO_LEADER:
                batch.last_error = NotLeaderError(why)
                if batch.retried_since_ms < 0:
                    batch.retried_since_ms = now_ms
                self._note_stall(batch, batch.last_error, now_ms)

    def _note_stall(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        """Warns of the cause that keeps a batch from being acknowledged, if the cause lasts."""
        if now_ms - batch.retried_since_ms < _STALL_MS:
            return
        before_ms, self._stalled_ms[type(error)] = self._stalled_ms.get(type(error)), now_ms
        if before_ms is None or now_ms - before_ms > max(_STALL_MS, 2 * self._config.retry_backoff_max_ms):
            waited_s = (now_ms - batch.retried_since_ms) // 1_000
            limit = f"delivery.timeout.ms ({self._config.delivery_timeout_ms} ms)"
            self.warnings.append(f"acknowledgements have waited for {waited_s} s: {error}: retrying for up to {limit}")

    def _split(self, batch: ProducerBatch, now_ms: int) -> None:
        """Replaces a batch that is too large for the broker by smaller batches with its sequences (KIP-126). Their attempts count
        from 0, since no transient error caused the split. Later batches of the topic are smaller, too.

        The broker's limit is found by trial: each split halves the smallest size refused, so batches are at most twice as many as
        needed.
        """
        size_max = self.accumulator.learn_batch_size(batch.tp.topic, batch.uncompressed_bytes // 2, now_ms)
        self.accumulator.split(batch, self._splitter(batch, size_max))
        identity = self._numbered_by(batch)
        if identity is not None:
            identity.on_split(batch)
        self.metrics.batches_split.record(1, now_ms)
        if batch.listeners:  # the listeners must move on to the parts
            self.ended.append(batch)

    def _take_back(self, batch: ProducerBatch) -> None:
        batch.come_back()
        self.accumulator.unmute(batch.tp)

    def _leave_gap(self, batch: ProducerBatch, now_ms: int) -> None:
        """Frees a batch that has ended without being known to be in the log."""
        identity = self._numbered_by(batch)
        if identity is not None:
            identity.on_ended(batch)
        self.accumulator.free(batch)
        self._reset_replaced(batch.tp, now_ms)

    # --- members of transactions

    def _identity_of(self, membership: Membership | None) -> Identity | None:
        """The identity that a response belongs to; None if that member has ended."""
        if membership is None:
            return self.own_identity
        return self.identity if self.identity.membership == membership else None

    def _numbered_by(self, batch: ProducerBatch) -> Identity | None:
        """The identity under which the batch has its sequence; None if it has none, or if its member has ended."""
        return self._identity_of(batch.membership) if batch.base_sequence != NO_SEQUENCE else None

    def begin_member(self, membership: Membership, now_ms: int, *, has_unplaced: bool = False) -> bool:
        """Makes the producer a member of a transaction. Returns False while an earlier member is being aborted. Raises ConfigError,
        ProducerClosedError, and TransactionStateError if a member is open or earlier records are not acknowledged."""
        conflict = transaction_conflict(self._config)
        if conflict:
            raise ConfigError(f"a transaction needs {conflict}: change the producer's settings")
        self.check_open()
        if self.identity.abort_by_ms is not None and not self.end_aborted(now_ms, has_unplaced=has_unplaced):
            return False
        if self.identity.membership is not None:
            raise TransactionStateError(f"{self.identity} is open: end it before the next one begins")
        if has_unplaced or self.accumulator.incomplete:
            raise TransactionStateError("records that were sent before the transaction are not acknowledged yet: flush() first")
        self.identity = Identity(self._config, self._rng, membership)
        return True

    def abort_member(self, by_ms: int, *, only: Membership | None = None) -> Identity | None:
        """Stops the open member, which then ends as soon as it may, at `by_ms` at the latest. Returns its identity; None if no
        member is open, or a member other than `only`."""
        present = self.identity
        if present.membership is None or (only is not None and present.membership != only):
            return None
        present.error = present.error or AbortedBatchError(f"{present} was aborted: none of its records will be visible")
        present.abort_by_ms = by_ms
        return present

    def end_aborted(self, now_ms: int, *, has_unplaced: bool) -> bool:
        """Ends the member that is being aborted, if there is one and it may end. Returns True if it did."""
        if self.identity.abort_by_ms is None or has_unplaced or self.accumulator.incomplete:
            return False
        if not self.identity.may_end_abort(now_ms, is_closed=self.is_closed):
            return False
        self.end_member()
        return True

    def end_member(self) -> MemberReport:
        """Ends the member, which has no incomplete batch. If batches are in flight and may still be written, the member was stopped
        and is never committed."""
        assert not self.accumulator.incomplete, "a member is flushed or stopped before it ends"
        self.last_report = report = self.identity.report()
        self.identity = self.own_identity
        return report

    # --- open or closed

    def check_open(self) -> None:
        """Raises ProducerClosedError once the producer is closed or has failed for good."""
        if self.fatal_error is not None:
            raise ProducerClosedError(f"the producer failed for good: {self.fatal_error}") from fresh(self.fatal_error)
        if self.is_closed:
            raise ProducerClosedError("the producer is closed")

    def check_usable(self) -> None:
        """Like `check_open`; also raises the transaction's error, or TransactionStateError if none is open."""
        self.check_open()
        if self.stopped_by is not None:
            raise fresh(self.stopped_by)

    @property
    def is_unusable(self) -> bool:
        """True while no records are accepted: closed, failed, or the transaction is stopped or missing."""
        return self.is_closed or self.stopped_by is not None

    def close(self, by_ms: int) -> None:
        """Accepts no more records, and sends the accepted records without linger. Gives up those without an outcome at `by_ms`."""
        # Only assignments, so no interrupt can separate them (brokerd/producer/waiting.py).
        self.close_by_ms = by_ms if by_ms < self.close_by_ms else self.close_by_ms
        self.accumulator.is_closed = True
        self.is_closed = True

    def _is_closing_over(self, now_ms: int) -> bool:
        """True once every record has an outcome; at close_by_ms, gives up those without one."""
        if self.accumulator.incomplete:
            if now_ms < self.close_by_ms:
                return False
            self.abandoned_count = sum(batch.record_count for batch in list(self.accumulator.incomplete))
            self.abort("because close() ran out of time", now_ms)
        for connection in self.streams.by_node.values():
            if connection.state is not ConnectionState.CLOSED:
                self.streams.close(connection)
                error = BrokerUnreachableError("the producer closed the stream")
                self.on_stream_lost(connection.node_id, connection.incarnation, error, now_ms)
        return True

    # --- ends

    def _expire(self, now_ms: int) -> int:
        """Fails the batches older than delivery.timeout.ms. Returns the time when the next one expires."""
        for batch in self.accumulator.expired_batches(now_ms):
            error = _expired_error(batch, self._config.delivery_timeout_ms, self.last_trouble)
            if isinstance(batch.last_error, UnknownLeaderEpochError) or self.topics.leader_of(batch.tp) == NO_LEADER:
                self.topics.forget_leader(batch.tp)
            self.fail(batch, error, now_ms)
        return self.accumulator.next_expiry_ms()

    def fail(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        """Ends a batch with an error for the application. If the batch is in flight, its sequence is settled and its memory freed
        when the response comes. An open member cannot be committed without the batch, so it stops."""
        if batch.is_done:
            return
        is_in_flight = batch.is_in_flight
        batch.fail(error if is_in_flight else _refused_error(batch, error))
        self.metrics.records_failed.record(batch.record_count, now_ms)
        self.accumulator.end(batch)
        self.ended.append(batch)
        self.identity.note_outcome(batch)
        if not is_in_flight:
            self._leave_gap(batch, now_ms)
        if self.identity.membership is not None and self.identity.error is None:
            assert batch.error is not None
            self.stop(batch.error, now_ms)

    @property
    def stopped_by(self) -> BrokerdError | None:
        """The error that prevents writing: the producer's fatal one, its member's, or that no transaction is open."""
        return self.fatal_error or self.identity.error

    def fail_for_good(self, error: BrokerdError, now_ms: int) -> None:
        """Stops the producer for good: all incomplete batches fail."""
        if self.fatal_error is None:
            self.fatal_error = error
        self.fail_stopped(now_ms)

    def stop(self, error: BrokerdError, now_ms: int) -> None:
        """Stops the open member, or without a member the producer for good: all incomplete batches fail."""
        if self.identity.membership is None:
            self.fail_for_good(error, now_ms)
            return
        self.identity.error = self.identity.error or error
        self.fail_stopped(now_ms)

    def fail_stopped(self, now_ms: int) -> None:
        """Fails all incomplete batches, if the producer or its member is stopped."""
        error = self.stopped_by
        if error is None:
            return
        for batch in list(self.accumulator.incomplete):
            self.fail(batch, self.fatal_error or _stopped_error(batch, error), now_ms)

    def abort(self, reason: str, now_ms: int) -> None:
        """Fails all incomplete batches. Those in flight may still be written."""
        for batch in list(self.accumulator.incomplete):
            self.fail(batch, AbortedBatchError(f"{_subject(batch)} was given up, {reason}: {_where(batch)}"), now_ms)

    def on_encoded(self, batch: ProducerBatch, size_bytes: int, uncompressed_bytes: int, now_ms: int) -> None:
        """Notes that a batch was encoded, has freed its pieces, and now holds `size_bytes`."""
        self.pool.adjust(size_bytes - batch.accounted_bytes)
        batch.accounted_bytes = size_bytes
        batch.size_bytes = size_bytes
        batch.uncompressed_bytes = uncompressed_bytes
        self.metrics.on_encoded(size_bytes, uncompressed_bytes, now_ms)

    def on_encode_failed(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        """Notes that a batch could not be encoded, so it was not sent."""
        self.streams.withdraw(batch)
        self._take_back(batch)
        if batch.is_done:
            self._leave_gap(batch, now_ms)
        else:
            self.fail(batch, error, now_ms)

    def on_too_large(self, batch: ProducerBatch, limits: RequestLimits, now_ms: int) -> None:
        """Notes that an encoded batch fits into no request to its node, so it was not sent."""
        self.streams.withdraw(batch)
        self._judge(batch, _oversize_error(batch, limits, self._config), now_ms)


# Errors of failed records: which records, why, and whether they may be in the log.


def _expired_error(batch: ProducerBatch, delivery_timeout_ms: int, last_trouble: BrokerdError | None) -> DeliveryTimeoutError:
    """The error of a batch that was not delivered within delivery.timeout.ms."""
    trouble = batch.last_error or last_trouble
    tail = f"; last trouble: {trouble}" if trouble else ""
    return DeliveryTimeoutError(
        f"{_subject(batch)} was not acknowledged in delivery.timeout.ms "
        f"({delivery_timeout_ms} ms), {counted(batch.attempts, 'attempt')}: {_where(batch)}{tail}"
    )


def _oversize_error(batch: ProducerBatch, limits: RequestLimits, config: ProducerConfig) -> MessageTooLargeError:
    """The error of a batch too large for any request to this broker."""
    return MessageTooLargeError(
        f"a record batch of {batch.size_bytes} bytes fits into no request, the broker's socket.request.max.bytes leaves "
        f"{limits.bytes_max} for batches: raise it, or make records smaller (max.request.size is {config.max_request_size} here)",
        fate=Fate.NOT_APPENDED,
    )


def _replaced_error(tp: TopicPartition) -> UnknownTopicIdError:
    """The error of records that may be in the old topic, and so are not written to the new one."""
    text = f"topic '{tp.topic}' was deleted or recreated while records were on their way to it"
    return UnknownTopicIdError(f"{text}; they may have been in the old one", fate=Fate.UNKNOWN)


def _lost_error(batch: ProducerBatch, error: BrokerdError) -> OutOfOrderSequenceError:
    """The error when the broker expects a sequence that it has already acknowledged."""
    return OutOfOrderSequenceError(
        f"the broker lost acknowledged records of {batch.tp}, so the producer stops writing to it: {error}"
    )


def _stopped_error(batch: ProducerBatch, error: BrokerdError) -> BrokerdError:
    """The error of a batch whose member failed, or that belongs to no member."""
    if isinstance(error, TransactionalIdAuthorizationFailedError) or (
        isinstance(error, WireError) and error.action is Action.TRANSACTION_STATE
    ):
        may_be_there = batch.is_fate_unknown or batch.is_in_flight
        return type(error)(error.message, fate=Fate.UNKNOWN if may_be_there else Fate.NOT_APPENDED)
    if isinstance(error, TransactionStateError):
        return error
    # The first failure's message tells the fate of its own records only, so only its name is quoted.
    aborted_with = AbortedBatchError(
        f"{_subject(batch)} was given up with the rest of its transaction, which failed with "
        f"{type(error).__name__}: {_where(batch)}"
    )
    aborted_with.__cause__ = error
    return aborted_with


def _refused_error(batch: ProducerBatch, error: BrokerdError) -> BrokerdError:
    """The broker's error, with the fate of the records over all attempts instead of the last one alone."""
    if not isinstance(error, WireError) or error.fate is not Fate.NOT_APPENDED:
        return error
    if batch.is_fate_unknown:
        return type(error)(f"{error.message} (an earlier attempt may have written the records)", fate=Fate.UNKNOWN)
    if isinstance(error, MessageTooLargeError) and batch.record_count == 1:
        return MessageTooLargeError(
            f"one record of {batch.tp} is too large for the broker, in a batch of its own: {error.message}", fate=Fate.NOT_APPENDED
        )
    return error


def _subject(batch: ProducerBatch) -> str:
    return f"a batch of {counted(batch.record_count, 'record')} for {batch.tp}"


def _where(batch: ProducerBatch) -> str:
    may_be_there = batch.is_fate_unknown or batch.is_in_flight
    return "they may still be in the log" if may_be_there else "they are not in the log"
