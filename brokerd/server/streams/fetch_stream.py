"""One fetch stream: at most one parked fetch, answered in order. handlers/fetch.py reads the data.

A parked fetch costs only memory: the stream's own task is waiting for the client's next message anyway, and the parked fetch is
one DelayedFetch. When it completes, a short-lived task reads and responds.

A response counts against max.fetch.bytes.in.flight from before it is read until gRPC has accepted it, which is when the client
reads: background.py disconnects a client that requests and does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import grpc

from brokerd.clock import stopwatch_ns
from brokerd.errors import BrokerdError, ErrorCode, NotReadyError, ResourceExhaustedError
from brokerd.partition.reader import NeedsRoom
from brokerd.server.broker import Broker
from brokerd.server.failures import internal
from brokerd.server.handlers import fetch
from brokerd.server.handlers.fetch import FetchParams, PartitionRead
from brokerd.server.metrics.counters import Phase
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.streams.client_stream import ClientStream
from brokerd.server.streams.messages import Context
from brokerd.server.tasks import look_at_end
from brokerd.server.waiting.delayed_fetch import DelayedFetch
from brokerd.server.waiting.turns import LARGE_BYTES, LARGE_PARTITIONS

_RETRY_AFTER_MS = 1_000
_FIRST_BATCH_BYTES = 1_048_576  # room for a first batch that is larger than what was asked for: the batch size of producers


class FetchStream(ClientStream):
    """Serves one stream to its end."""

    def __init__(self, broker: Broker, context: Context, authorizer: TopicAuthorizer) -> None:
        super().__init__(broker, context, authorizer)
        self._parked: DelayedFetch | None = None
        self._answered: asyncio.Future[None] | None = None  # done when the parked fetch is answered
        self._answering: asyncio.Task[None] | None = None
        self._held_bytes = 0  # this stream's part of the response budget
        self._parked_count = 0  # partitions of the parked fetch

    async def run(self) -> None:
        """Returns when the client has ended its side and everything is answered. Raises BrokerdError to end the stream."""
        try:
            while isinstance(data := cast("object", await self._context.read()), bytes):  # the end is none
                self._broker.last_requests.completed(self.peer)
                await self._finish_parked()
                principal, turns = self._authorizer.principal, self._broker.turns
                if self._is_large:
                    await turns.take(principal, self.peer)
                elif principal != turns.last_principal:
                    turns.note(principal)
                params = fetch.decode(self._broker, data)
                self._is_large = len(params.partitions) > LARGE_PARTITIONS
                del data
                await self._serve(params)
            if self._answered is not None:
                await self._answered
        except grpc.aio.BaseError as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
        finally:
            self._end()

    async def close(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream from outside, once its response is out."""
        with contextlib.suppress(BrokerdError):
            await self._finish_parked()
        await self._abort(code, details)

    async def revoke(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream of a caller whose credentials were revoked: no further response goes out."""
        self._is_revoked = True
        if self._parked is not None:
            self._parked.cancel()
            self._parked = None
            self._count_parked(0)
            if self._answered is not None:
                self._answered.set_result(None)
        await self._abort(code, details)

    async def _finish_parked(self) -> None:
        """The next request has arrived: answers the parked fetch with the data available."""
        if self._parked is not None:
            self._parked.force_complete()
        if self._answered is not None:
            await asyncio.shield(self._answered)
            self._answered = None

    async def _serve(self, params: FetchParams) -> None:
        if self._broker.is_stopping:
            await self._write(
                fetch.encode_error(params, NotReadyError("the broker is stopping: try again, it or another one will be available"))
            )
            return
        received_ns = stopwatch_ns()
        try:
            reads = await self._read(params)
            if fetch.must_answer_now(params, reads):
                await self._turn()
                data = self._encode(params, reads)
                del reads  # a second copy of the bytes, not to be kept while the client reads
                await self._turn()
                await self._write_response(data, received_ns, parked_ns=0)
                return
        finally:
            self._hold(0)
        if self._is_revoked:
            return
        if self._is_full(len(params.partitions)):
            self._broker.counters.failed_fetch[ErrorCode.RESOURCE_EXHAUSTED] += 1
            await self._write(fetch.encode_error(params, self._too_many()))
        else:
            self._park(params, reads, received_ns)

    def _is_full(self, partition_count: int) -> bool:
        """True if a fetch of `partition_count` partitions may not be parked with the others."""
        return not self._broker.parked_partitions.has_room(self._authorizer.principal, partition_count)

    async def _read(self, params: FetchParams) -> list[PartitionRead]:
        """Reads as much as the budget allows, and takes that from the budget. If that is less than the first batch, waits until
        there is room for it."""
        self._hold(self._broker.response_budget.share(max(params.max_bytes, _FIRST_BATCH_BYTES)))
        while True:
            try:
                reads = await fetch.read(self._broker, self._authorizer, self.caller, params, room_bytes=self._held_bytes)
            except NeedsRoom as needs:
                self._hold(0)
                await self._broker.response_budget.take(self.caller, needs.size_bytes)
                self._held_bytes = needs.size_bytes
            else:
                self._hold(sum([result.size_bytes for result in reads]))
                return reads

    async def _turn(self) -> None:
        """Waits for the caller's turn if there is much to read or to copy; before each, since one turn for all would be long."""
        if self._is_large or self._held_bytes >= LARGE_BYTES:
            await self._broker.turns.take(self._authorizer.principal, self.peer)

    def _encode(self, params: FetchParams, reads: list[PartitionRead]) -> bytes:
        for result in reads:
            if result.data is not None:
                self._broker.counters.fetched(result.asked.tp.topic_id, result.data.size_bytes)
        return fetch.encode(params, reads)

    def _hold(self, size_bytes: int) -> None:
        if size_bytes != self._held_bytes:
            self._broker.response_budget.add(self.caller.owner, size_bytes - self._held_bytes)
            self._held_bytes = size_bytes

    def _count_parked(self, partition_count: int) -> None:
        self._broker.parked_partitions.add(self._authorizer.principal, partition_count - self._parked_count)
        self._parked_count = partition_count

    def _park(self, params: FetchParams, reads: list[PartitionRead], received_ns: int) -> None:
        loop = asyncio.get_running_loop()
        parked_from_ns = stopwatch_ns()
        answered = self._answered = loop.create_future()

        def start_response() -> asyncio.Task[None]:
            self._answering = loop.create_task(self._answer_parked(params, answered, received_ns, parked_from_ns))
            look_at_end(self._answering, "response to a parked fetch")
            return self._answering

        operation = DelayedFetch(
            self._broker.clock.monotonic_ms() + params.max_wait_ms,
            fetch.to_park(params, reads),
            end=params.end,
            min_bytes=params.min_bytes,
            on_done=lambda: self._broker.response_queue.put(self.caller, start_response),
        )
        self._parked = operation
        self._count_parked(len(params.partitions))
        # Records may have been appended during a cold read above, so check again before parking.
        self._broker.fetch_purgatory.watch(operation)

    async def _answer_parked(
        self, params: FetchParams, answered: asyncio.Future[None], received_ns: int, parked_from_ns: int
    ) -> None:
        self._parked = None
        self._count_parked(0)
        parked_ns = stopwatch_ns() - parked_from_ns
        try:
            await self._turn()
            reads = await self._read(params)
            await self._turn()
            data = self._encode(params, reads)
            del reads
            await self._turn()
            await self._write_response(data, received_ns, parked_ns=parked_ns)
        except grpc.aio.BaseError:
            pass  # the client is gone; reading will report it too
        except Exception as error:
            internal("response to a parked fetch", error)
            await self._abort(grpc.StatusCode.INTERNAL, "internal error: see the broker's log")
        finally:
            self._hold(0)
            self._answering = None
            if not answered.done():
                answered.set_result(None)

    async def _write_response(self, data: bytes, received_ns: int, *, parked_ns: int) -> None:
        ready_ns = stopwatch_ns()
        await self._write(data)
        now_ns = stopwatch_ns()
        counters = self._broker.counters
        counters.bytes_out += len(data)
        counters.fetch_time[Phase.LOCAL].observe_ns(ready_ns - received_ns - parked_ns)
        counters.fetch_time[Phase.REMOTE].observe_ns(parked_ns)
        counters.fetch_time[Phase.RESPONSE_SEND].observe_ns(now_ns - ready_ns)
        counters.fetch_time[Phase.TOTAL].observe_ns(now_ns - received_ns)

    async def _write(self, data: bytes) -> None:
        if self._is_revoked:
            return
        budget = self._broker.response_budget
        budget.begin_write(self, self.caller.owner, len(data), now_ms=self._broker.clock.monotonic_ms())
        try:
            await self._context.write(data)
        finally:
            budget.end_write(self)

    def _too_many(self) -> ResourceExhaustedError:
        waiting, principal = len(self._broker.fetch_purgatory), self._authorizer.principal
        parked = self._broker.parked_partitions
        return ResourceExhaustedError(
            f"{waiting} fetches of {parked.total} partitions wait already, {parked.count(principal)} of them of principal "
            f"'{principal}', and max.parked.partitions allows no more: try again later",
            retry_after_ms=_RETRY_AFTER_MS,
        )

    def _end(self) -> None:
        self._is_over = True
        if self._parked is not None:
            self._parked.cancel()
            self._parked = None
        self._count_parked(0)
        if self._answering is not None:
            self._answering.cancel()
