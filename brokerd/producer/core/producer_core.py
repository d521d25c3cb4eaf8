"""ProducerCore: a machine that makes every decision of delivery. Events in, commands out.

`step(now_ms)` returns commands; the shell (sender.py, or a simulation in tests) carries them out and reports through the `on_...`
methods. idempotence.py has the rules of sequences, accumulator.py those of queues. Pure: reads no clock, never waits; one thread
calls it.

States of a batch, and the events that move it:

    queued ── step: drained ──▶ in flight ── success, duplicate ───────────────▶ done
      ▲                            │  ├───── error of its fate alone ──────────▶ done (failed)
      ├── retriable, lost, ────────┤  └───── expired, aborted ──▶ done, still in flight ── response or loss ──▶ freed
      │   another's turn first     │
      └── as smaller batches ──────┘ too large
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    LogDamagedError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerIdError,
    UnknownTopicIdError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core import failures
from brokerd.producer.core.accumulator import NEVER_MS, RecordAccumulator
from brokerd.producer.core.commands import CloseStream, Command, FetchMetadata, OpenStream, RequestProducerId, SendRequest, Step
from brokerd.producer.core.connections import ConnectionState, InFlightRequest, NodeConnection
from brokerd.producer.core.delivery_report import DeliveryReport
from brokerd.producer.core.idempotence import IdempotenceState, Verdict
from brokerd.producer.core.identity_requests import IdentityRequests
from brokerd.producer.core.memory import BufferPool
from brokerd.producer.core.metrics import ProducerMetrics
from brokerd.producer.core.producer_batch import NO_OFFSET, NO_TIMESTAMP, Piece, ProducerBatch
from brokerd.producer.core.topics import TopicRegistry
from brokerd.producer.core.transport import NO_LEADER, Hello, PartitionResult, ProduceResponse, RequestLimits, TopicView

# The records of a sent batch of two or more, in order, in at least two pieces of at most so many bytes (or one record).
Splitter = Callable[[ProducerBatch, int], list[Piece]]

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}


class ProducerCore:
    """The state of one producer, and its decisions."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        instance_id: bytes,
        rng: random.Random,
        metrics: ProducerMetrics,
        splitter: Splitter,
        client_id: str = "",
    ) -> None:
        self._config = config
        self._splitter = splitter
        self._rng = rng
        self._instance_id = instance_id
        self._client_id = client_id
        self._acks = ACKS[config.acks]
        self.metrics = metrics
        self.pool = BufferPool(config.buffer_memory)
        self.sequences = IdempotenceState() if config.enable_idempotence else None
        self.accumulator = RecordAccumulator(config, self.sequences, self.pool)
        self.topics = TopicRegistry(config, rng)
        self.connections: dict[int, NodeConnection] = {}
        self.fatal_error: BrokerdError | None = None
        self.last_trouble: BrokerdError | None = None  # the reason why nothing moves, for messages
        self._incarnation = 0
        self._correlation_id = 0
        self._identity_requests = IdentityRequests(config, rng)
        self._replaced: set[TopicPartition] = set()
        self._closing: list[CloseStream] = []
        self.delivery_report = DeliveryReport()

    # --- commands

    def step(self, now_ms: int) -> Step:
        """The commands to carry out at `now_ms`, and the time of the next step."""
        self._expire(now_ms)
        self._give_up_overdue(now_ms)
        commands: list[Command] = []
        next_ms = min(
            self._step_identity(commands, now_ms),
            self._step_connections(commands, now_ms),
            self._step_metadata(commands, now_ms),
            self.accumulator.next_expiry_ms(),
        )
        commands[:0] = self._closing
        self._closing = []
        return Step(commands, max(next_ms, now_ms))

    @property
    def requests_in_flight(self) -> int:
        """Requests without a response, over all nodes."""
        return sum(len(connection.in_flight) for connection in self.connections.values())

    @property
    def has_work(self) -> bool:
        """False if a step would do nothing now, nor before the time that the last one returned: no batch is incomplete."""
        return self.accumulator.has_incomplete or bool(self._closing)

    def _step_metadata(self, commands: list[Command], now_ms: int) -> int:
        due_ms = self.topics.due_ms(now_ms, is_busy=self.accumulator.has_incomplete)
        if due_ms is None:
            return NEVER_MS
        if due_ms > now_ms:
            return due_ms
        topics = self.topics.begin(now_ms)
        if topics:
            commands.append(FetchMetadata(topics))
        return NEVER_MS

    def _step_identity(self, commands: list[Command], now_ms: int) -> int:
        requests = self._identity_requests
        if self.sequences is None or requests.is_under_way or not self.accumulator.has_incomplete:
            return NEVER_MS
        wanted = self.sequences.identity_wanted()
        if wanted is None or self.fatal_error is not None:
            return NEVER_MS
        if now_ms < requests.not_before_ms:
            return requests.not_before_ms
        requests.is_under_way = True
        commands.append(RequestProducerId(wanted))
        return NEVER_MS

    def _step_connections(self, commands: list[Command], now_ms: int) -> int:
        check = self.accumulator.ready(self._leader_of, now_ms)
        if check.leaderless_topics:
            for topic in check.leaderless_topics:
                self.topics.want(topic, now_ms)
            self.topics.request_refresh()
        next_ms = NEVER_MS
        for node_id in check.nodes:
            connection = self.connections.get(node_id)
            if connection is None:
                connection = self.connections[node_id] = NodeConnection(node_id)
            if connection.may_open(now_ms):
                self._incarnation += 1
                connection.begin_opening(self._incarnation, now_ms)
                commands.append(OpenStream(node_id, Hello(self._instance_id, self._incarnation, self._client_id)))
            elif connection.state is ConnectionState.CLOSED:
                next_ms = min(next_ms, connection.not_before_ms)
            elif connection.throttled_until_ms > now_ms:
                next_ms = min(next_ms, connection.throttled_until_ms)
            while connection.may_send(self._config, now_ms):
                batches = self.accumulator.drain(check, node_id, connection.limits, now_ms)
                if not batches:
                    break
                commands.append(self._request(connection, batches, now_ms))
        for connection in self.connections.values():
            overdue_ms = connection.overdue_ms(self._config)
            next_ms = next_ms if overdue_ms is None else min(next_ms, overdue_ms)
        return min(next_ms, check.next_check_ms)

    def _request(self, connection: NodeConnection, drained: list[ProducerBatch], now_ms: int) -> SendRequest:
        self._correlation_id += 1
        batches = {self.topics.id_of(batch.tp): batch for batch in drained}
        record_count = 0
        for batch in drained:
            record_count += batch.record_count
            if batch.attempts == 1:
                self.metrics.on_drained(batch.record_count, now_ms - batch.created_ms, now_ms)
        self.metrics.request_records.record(record_count, now_ms)
        connection.in_flight[self._correlation_id] = InFlightRequest(self._correlation_id, batches, now_ms)
        return SendRequest(connection.node_id, connection.incarnation, self._correlation_id, batches)

    def _leader_of(self, tp: TopicPartition) -> int:
        return NO_LEADER if tp in self._replaced else self.topics.leader_of(tp)

    # --- metadata and identity

    def on_metadata(self, response: Mapping[str, TopicView | WireError], now_ms: int) -> None:
        """Takes the broker's view of the requested topics."""
        self.accumulator.forget_batch_sizes(now_ms - self._config.metadata_max_age_ms)
        for topic in self.topics.on_result(response, now_ms):
            self.accumulator.forget_batch_size(topic)
            numbered = [] if self.sequences is None else self.sequences.partitions()
            for tp in [tp for tp in dict.fromkeys((*self.accumulator.partitions(), *numbered)) if tp.topic == topic]:
                self._replaced.add(tp)
                self._settle_replaced(tp, now_ms)
        for topic, view in response.items():
            if isinstance(view, WireError):
                self.last_trouble = view
                if not view.retriable:
                    self._fail_topic(topic, view, now_ms)

    def on_metadata_failed(self, error: BrokerdError, now_ms: int) -> None:
        """Notes that no broker answered the request for metadata."""
        self.last_trouble = error
        self.topics.on_failure(now_ms)

    def on_producer_id(self, identity: ProducerIdAndEpoch, _now_ms: int) -> None:
        """Takes an id or a raised epoch that the broker has granted."""
        assert self.sequences is not None
        self._identity_requests.on_response()
        self.sequences.set_identity(identity)

    def on_producer_id_failed(self, error: BrokerdError, now_ms: int) -> None:
        """Notes that the request for an id has failed: it is retried unless the error is final."""
        self._identity_requests.on_failure(now_ms)
        self.last_trouble = error
        if isinstance(error, WireError) and not error.retriable:
            self.fail_for_good(error, now_ms)

    def _settle_replaced(self, tp: TopicPartition, now_ms: int) -> None:
        """Starts a partition of a recreated topic again, once nothing is in flight to the old one. Batches that may be in the old
        log fail, so that none is written twice; those that certainly are not go to the new one.
        """
        if tp not in self._replaced or self.accumulator.in_flight_count(tp):
            return
        for batch in self.accumulator.queued(tp):
            if batch.is_fate_unknown:
                text = f"topic '{tp.topic}' was deleted or recreated while records were on their way to it"
                self._fail(batch, UnknownTopicIdError(f"{text}; they may have been in the old one", fate=Fate.UNKNOWN), now_ms)
        if self.sequences is not None:
            self.sequences.forget(tp)
        self._replaced.discard(tp)

    def _fail_topic(self, topic: str, error: WireError, now_ms: int) -> None:
        for batch in self.accumulator.incomplete():
            if batch.tp.topic == topic and not batch.is_in_flight:
                self._fail(batch, error, now_ms)

    # --- streams

    def on_stream_open(self, node_id: int, incarnation: int, limits: RequestLimits, _now_ms: int) -> None:
        """Notes that a stream takes requests, each within `limits`."""
        connection = self.connections[node_id]
        if connection.incarnation == incarnation and connection.state is ConnectionState.OPENING:
            connection.on_open(limits)

    def on_stream_lost(self, node_id: int, incarnation: int, error: BrokerdError, now_ms: int) -> None:
        """Notes that a stream has failed, or could not be opened: the fate of its requests in flight is unknown."""
        connection = self.connections[node_id]
        if connection.incarnation != incarnation or connection.state is ConnectionState.CLOSED:
            return
        self.last_trouble = error
        self.topics.request_refresh()
        if not isinstance(error, BrokerUnreachableError):
            error = BrokerUnreachableError(error.message)  # whatever ended the stream: no response came
        for request in connection.on_lost(self._config, self._rng, now_ms):
            for batch in request.batches.values():
                batch.is_fate_unknown = True
                self._settle(batch, error, 0, now_ms)

    def on_sent(self, node_id: int, correlation_id: int, now_ms: int) -> None:
        """Notes that a request was handed over; with acks=0 that ends its batches."""
        if self._acks == 0:
            request = self.connections[node_id].in_flight.pop(correlation_id, None)
            for batch in request.batches.values() if request is not None else ():
                self._succeed(batch, NO_OFFSET, NO_TIMESTAMP, 0, now_ms)

    def on_response(self, node_id: int, incarnation: int, response: ProduceResponse, now_ms: int) -> None:
        """Takes a response. A late one, of an older stream or to a request that is settled already, is ignored."""
        connection = self.connections[node_id]
        if connection.incarnation != incarnation:
            return
        request = connection.in_flight.pop(response.correlation_id, None)
        if request is None:
            return
        connection.on_response()
        throttled_until_ms = 0
        if response.throttle_time_ms > 0:
            throttled_until_ms = now_ms + response.throttle_time_ms
            connection.throttled_until_ms = max(connection.throttled_until_ms, throttled_until_ms)
        self.metrics.request_latency_ms.record(now_ms - request.sent_ms, now_ms)
        self.metrics.throttle_time_ms.record(response.throttle_time_ms, now_ms)
        results = {result.tp: result for result in response.results}
        for tp, batch in request.batches.items():
            result = results.get(tp)
            if response.error is not None:
                result = PartitionResult(tp, NO_OFFSET, NO_TIMESTAMP, -1, response.error)
            if result is None:
                batch.is_fate_unknown = True
                self._settle(
                    batch, BrokerUnreachableError(f"the broker's response left out {batch.tp}"), throttled_until_ms, now_ms
                )
            elif result.error is None:
                self._succeed(batch, result.base_offset, result.append_timestamp, throttled_until_ms, now_ms)
            else:
                self._on_error(batch, result.error, throttled_until_ms, now_ms)

    def _give_up_overdue(self, now_ms: int) -> None:
        """Closes streams on which a request or the opening takes longer than request.timeout.ms: the fate of their requests is
        unknown.
        """
        for connection in self.connections.values():
            overdue_ms = connection.overdue_ms(self._config)
            if overdue_ms is not None and overdue_ms <= now_ms:
                text = f"node {connection.node_id} did not answer in request.timeout.ms ({self._config.request_timeout_ms} ms)"
                self._closing.append(CloseStream(connection.node_id, connection.incarnation))
                self.on_stream_lost(connection.node_id, connection.incarnation, BrokerUnreachableError(text), now_ms)

    # --- judgement of responses

    def _succeed(self, batch: ProducerBatch, base_offset: int, append_timestamp: int, throttled_until_ms: int, now_ms: int) -> None:
        self._land(batch, throttled_until_ms)
        if batch.complete(base_offset, append_timestamp):
            self._note_ended(batch)
        if self.sequences is not None and batch.has_sequence:
            self.sequences.on_success(batch)
            self.sequences.settle(batch.tp)
        self._leave(batch, now_ms)

    def _on_error(self, batch: ProducerBatch, error: WireError, throttled_until_ms: int, now_ms: int) -> None:
        if isinstance(error, DuplicateSequenceError):
            self._succeed(batch, NO_OFFSET, NO_TIMESTAMP, throttled_until_ms, now_ms)
            return
        if isinstance(error, (InvalidProducerEpochError, ProducerFencedError)):
            self._settle(batch, error, throttled_until_ms, now_ms)
            self.fail_for_good(error, now_ms)
            return
        if error.fate is not Fate.NOT_APPENDED:
            batch.is_fate_unknown = True
        if isinstance(error, LogDamagedError):
            self.topics.note_unwritable(batch.tp)
        if error.refresh_metadata:
            self.topics.request_refresh()
        self._settle(batch, error, throttled_until_ms, now_ms)

    def _settle(self, batch: ProducerBatch, error: BrokerdError, throttled_until_ms: int, now_ms: int) -> None:
        """Retries or fails a batch that is no longer in flight, and not known to be in the log."""
        self._land(batch, throttled_until_ms)
        batch.last_error = error
        if batch.is_done:
            if self.sequences is not None:
                self.sequences.on_ended(batch)
            self._leave(batch, now_ms)
            return
        verdict = self._verdict(batch, error)
        if verdict is Verdict.RETRY:
            self._retry(batch, error, now_ms)
        elif verdict is Verdict.SPLIT:
            self._split(batch, now_ms)
        else:
            self._fail(batch, error, now_ms)
        if self.sequences is not None:
            if isinstance(error, UnknownProducerIdError):
                for other in self.sequences.unknowable(batch.tp):
                    self._fail(other, error, now_ms)
            self.sequences.settle(batch.tp)
        if verdict is Verdict.ACKNOWLEDGED_LOST:
            text = f"the broker lost acknowledged records of {batch.tp}, nothing more is written there: {error}"
            self.fail_for_good(OutOfOrderSequenceError(text), now_ms)
        self._settle_replaced(batch.tp, now_ms)

    def _verdict(self, batch: ProducerBatch, error: BrokerdError) -> Verdict:
        if self.fatal_error is not None:
            return Verdict.FAIL
        if isinstance(error, MessageTooLargeError) and batch.record_count > 1:
            return Verdict.SPLIT
        if batch.attempts > self._config.retries:
            return Verdict.FAIL
        if isinstance(error, BrokerUnreachableError):
            return Verdict.RETRY
        assert isinstance(error, WireError)
        if self.sequences is not None and batch.has_sequence:
            if isinstance(error, OutOfOrderSequenceError):
                return self.sequences.on_out_of_order(batch, error)
            if isinstance(error, UnknownProducerIdError):
                return self.sequences.on_unknown_producer_id(batch, error)
        return Verdict.RETRY if error.retriable else Verdict.FAIL

    def _retry(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        first_ms, max_ms = self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
        wait_ms = backoff_ms(max(1, batch.attempts), first_ms=first_ms, max_ms=max_ms, random=self._rng.random())
        if isinstance(error, WireError):
            wait_ms = max(wait_ms, error.retry_after_ms)
        self.accumulator.reenqueue(batch, now_ms + wait_ms)
        self.metrics.on_retry(batch.record_count, now_ms)

    def _split(self, batch: ProducerBatch, now_ms: int) -> None:
        """Puts smaller batches, with its sequence numbers, in the place of one that is too large for the broker (KIP-126). Their
        attempts are counted from 0, as the broker's limit is not the network's fault, and later batches of the topic are smaller.

        Only trying shows which size the broker takes: half of the smallest refused, so there are at most twice as many as needed.
        """
        size_max = self.accumulator.learn_batch_size(batch.tp.topic, batch.uncompressed_bytes // 2, now_ms)
        self.accumulator.split(batch, self._splitter(batch, size_max))
        self.metrics.on_split(now_ms)
        self.delivery_report.note_split(batch)

    def _land(self, batch: ProducerBatch, throttled_until_ms: int) -> None:
        batch.is_in_flight = False
        self.accumulator.unmute(batch.tp, throttled_until_ms)

    def _leave(self, batch: ProducerBatch, now_ms: int) -> None:
        self.accumulator.release(batch)
        self.accumulator.forget_idle(batch.tp, now_ms)
        self._settle_replaced(batch.tp, now_ms)

    # --- ends

    def _expire(self, now_ms: int) -> None:
        for batch in self.accumulator.expired_batches(now_ms):
            error = failures.expired(batch, self._config.delivery_timeout_ms, self.last_trouble)
            self._give_up(batch, error, now_ms)

    def _give_up(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        """Ends a batch for its user. One that is in flight is freed, and judged, when its response comes."""
        if not batch.is_in_flight:
            self._fail(batch, error, now_ms)
        elif batch.fail(error, is_given_up=True):
            self.metrics.on_error(batch.record_count, now_ms)
            self._note_ended(batch)

    def _fail(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        assert not batch.is_in_flight, "what is under way is given up, not failed"
        if batch.is_done:
            return
        batch.fail(failures.refused(batch, error))
        self.metrics.on_error(batch.record_count, now_ms)
        self.accumulator.remove(batch)
        self._note_ended(batch)
        if self.sequences is not None:
            self.sequences.on_ended(batch)
        self._leave(batch, now_ms)

    def refuse(self, batch: ProducerBatch, error: BrokerdError) -> None:
        """Fails a batch that was never accepted: it holds no memory and is in no queue."""
        batch.fail(error)
        self.delivery_report.note(batch)

    def _note_ended(self, batch: ProducerBatch) -> None:
        self.accumulator.finished(batch)
        self.delivery_report.note(batch)

    def fail_for_good(self, error: BrokerdError, now_ms: int) -> None:
        """Stops the producer for good: all incomplete batches fail."""
        if self.fatal_error is None:
            self.fatal_error = error
        for batch in self.accumulator.incomplete():
            self._give_up(batch, self.fatal_error, now_ms)

    def abort(self, reason: str, now_ms: int) -> None:
        """Fails all incomplete batches. Those in flight may still be written."""
        for batch in self.accumulator.incomplete():
            self._give_up(batch, failures.aborted(batch, reason), now_ms)

    def disconnect(self, now_ms: int) -> None:
        """Gives all streams up, and frees the ended batches that were in flight there."""
        for connection in self.connections.values():
            if connection.state is not ConnectionState.CLOSED:
                self._closing.append(CloseStream(connection.node_id, connection.incarnation))
                error = BrokerUnreachableError("the producer closed the stream")
                self.on_stream_lost(connection.node_id, connection.incarnation, error, now_ms)

    def on_encoded(self, batch: ProducerBatch, size_bytes: int, uncompressed_bytes: int, now_ms: int) -> None:
        """Notes that a batch was encoded and has freed its pieces: it holds `size_bytes` now."""
        self.pool.adjust(size_bytes - batch.accounted_bytes)
        batch.accounted_bytes = size_bytes
        batch.size_bytes = size_bytes
        batch.uncompressed_bytes = uncompressed_bytes
        self.metrics.on_encoded(size_bytes, uncompressed_bytes, now_ms)

    def on_encode_failed(self, batch: ProducerBatch, error: BrokerdError, now_ms: int) -> None:
        """Notes that a batch could not be encoded, so it was not sent."""
        for connection in self.connections.values():
            connection.withdraw(batch)
        self._land(batch, 0)
        if batch.is_done:
            if self.sequences is not None:
                self.sequences.on_ended(batch)
            self._leave(batch, now_ms)
        else:
            self._fail(batch, error, now_ms)

    def on_too_large(self, batch: ProducerBatch, limits: RequestLimits, now_ms: int) -> None:
        """Notes that an encoded batch fits into no request to its node, so it was not sent."""
        for connection in self.connections.values():
            connection.withdraw(batch)
        self._settle(batch, failures.beyond_request(batch, limits, self._config), 0, now_ms)

    def on_overfull(self, request: SendRequest, rest: dict[TopicIdPartition, ProducerBatch], now_ms: int) -> SendRequest:
        """Moves the `rest`, encoded batches that do not fit into the request, to one more right behind it, and returns that."""
        self._correlation_id += 1
        connection = self.connections[request.node_id]
        if connection.incarnation == request.incarnation and request.correlation_id in connection.in_flight:
            for batch in rest.values():
                connection.withdraw(batch)
            connection.in_flight[self._correlation_id] = InFlightRequest(self._correlation_id, rest, now_ms)
        return SendRequest(request.node_id, request.incarnation, self._correlation_id, rest)
