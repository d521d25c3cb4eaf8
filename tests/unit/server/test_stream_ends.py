"""Streams that end by themselves while the broker ends them. gRPC logs an error if it is told of two ends of one call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

import grpc
import pytest

from brokerd.ids import TopicIdPartition
from brokerd.server.handlers import produce
from brokerd.server.handlers.fetch import FetchHandler
from brokerd.server.handlers.produce import ProduceHandler
from brokerd.server.security.authenticator import Authenticator, Callers, UnauthenticatedError
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.server.service import BrokerService
from brokerd.sharing import Caller
from brokerd.wire.records import join_records
from brokerd.wire.v1 import fetch_pb2, produce_pb2
from tests.support.call_context import Context
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.inner_broker import TransactionBroker, running
from tests.support.loop import all_wait
from tests.support.raw_client import values_batch
from tests.support.wait import DEADLINE_S

Stream = ProduceHandler | FetchHandler
S = TypeVar("S", bound=ProduceHandler | FetchHandler)
CALLER = Caller("ipv4:127.0.0.1:1", "ipv4:127.0.0.1:1")
ENDED = grpc.StatusCode.UNAVAILABLE, "ended"


def produce_request(tp: TopicIdPartition) -> bytes:
    head = produce_pb2.ProduceRequest(acks=-1, hello=produce_pb2.Hello(instance_id=b"i" * 16, incarnation=1))
    head.partitions.add(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=1)
    return join_records(head, [[values_batch(tp)]])


def fetch_request(tp: TopicIdPartition) -> bytes:
    head = fetch_pb2.FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1_000)
    head.partitions.add(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=1, partition_max_bytes=1_000)
    return head.SerializeToString()


def stream_of(kind: type[S], broker: TransactionBroker, context: Context) -> S:
    """A stream of ANYBODY that has not begun."""
    return kind(broker.broker, context, TopicAuthorizer(ANYBODY, broker.logs.topics), CALLER)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "end"), [(ProduceHandler, "close"), (ProduceHandler, "revoke"), (FetchHandler, "close")])
async def test_a_stream_whose_client_has_ended_it_is_not_ended_twice(
    kind: type[Stream], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_LAST_RESPONSES_S", DEADLINE_S)

    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        (tp, _) = await broker.topic()
        context = Context([produce_request(tp) if kind is ProduceHandler else fetch_request(tp)])  # then the client ends the stream
        stream = stream_of(kind, broker, context)
        with Gate(files, "fdatasync", path=tp.directory_name):
            serving = asyncio.create_task(stream.run())
            await all_wait()
            assert not serving.done(), "its last response is not out"
            ending = asyncio.create_task(stream.close(*ENDED, is_revoked=end == "revoke"))
            await all_wait()
        await serving
        await ending
        assert context.code is grpc.StatusCode.OK


async def test_a_stream_that_fails_while_it_is_revoked_is_not_ended_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failing stream still waits for its last response; the revocation no longer does."""
    monkeypatch.setattr(produce, "_LAST_RESPONSES_S", 0)

    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        (tp, _) = await broker.topic()
        callers = Callers(Authenticator(None, needs_certificate=False), broker.logs.topics, broker.broker.audit)
        service = BrokerService(broker.broker, callers)
        context = Context([produce_request(tp), b"senseless"])
        with Gate(files, "fdatasync", path=tp.directory_name):
            serving = asyncio.create_task(service._serve("Produce", ProduceHandler, None, context))  # type: ignore[arg-type]
            await all_wait()
            assert not serving.done(), "its last response is not out"
            monkeypatch.setattr(callers, "revoked", lambda *_: UnauthenticatedError("revoked"))
            assert await service.end_revoked_streams() == 1
            assert context.code is grpc.StatusCode.UNAUTHENTICATED
        with contextlib.suppress(grpc.aio.AbortError):
            await serving
        assert context.code is grpc.StatusCode.UNAUTHENTICATED
        assert service.open_stream_count == 0


@pytest.mark.parametrize(("kind", "end"), [(ProduceHandler, "close"), (FetchHandler, "close"), (FetchHandler, "revoke")])
async def test_a_stream_that_two_tasks_end_is_ended_once(kind: type[Stream], end: str) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        context = Context([])
        stream = stream_of(kind, broker, context)
        with pytest.raises(grpc.aio.AbortError):
            await stream.close(*ENDED, is_revoked=end == "revoke")
        await stream.close(grpc.StatusCode.UNAUTHENTICATED, "revoked", is_revoked=True)
        assert context.code is ENDED[0]


@pytest.mark.parametrize("end", ["close", "revoke"])
async def test_a_stream_that_has_ended_is_left_alone(end: str) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        context = Context([])
        stream = stream_of(FetchHandler, broker, context)
        await stream.run()
        await stream.close(*ENDED, is_revoked=end == "revoke")
        assert context.code is grpc.StatusCode.OK


async def test_responses_dropped_with_their_client_hold_no_bytes_of_the_streams_budget() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        (tp, _) = await broker.topic()
        context = Context([produce_request(tp)])
        stream = stream_of(ProduceHandler, broker, context)

        async def gone(data: bytes) -> None:
            raise grpc.aio.UsageError("the client is gone")

        context.write = gone  # type: ignore[method-assign]
        await stream.run()
        assert not stream._responses
        assert stream._waiting_bytes == 0


@pytest.mark.parametrize("error", [grpc.aio.UsageError("gone"), asyncio.InvalidStateError("gone")])
async def test_a_parked_fetch_whose_client_is_gone_is_no_internal_error(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        (tp, _) = await broker.topic()
        context = Context([fetch_request(tp)])

        async def gone(data: bytes) -> None:
            raise error

        context.write = gone  # type: ignore[method-assign]
        serving = asyncio.create_task(stream_of(FetchHandler, broker, context).run())
        await all_wait()
        assert broker.broker.fetch_purgatory.force_complete(1) == 1
        await serving
        assert "internal error" not in caplog.text
        assert context.code is grpc.StatusCode.OK


async def test_a_parked_fetch_whose_client_goes_while_its_response_is_queued_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        (tp, _) = await broker.topic()
        queued: list[Callable[[], asyncio.Task[None]]] = []
        monkeypatch.setattr(broker.broker.response_queue, "put", lambda _, start: queued.append(start))
        context = Context([fetch_request(tp)])
        stream = stream_of(FetchHandler, broker, context)
        serving = asyncio.create_task(stream.run())
        await all_wait()
        assert broker.broker.fetch_purgatory.force_complete(1) == 1
        serving.cancel()  # as gRPC does when the client is gone
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        reads: list[object] = []
        monkeypatch.setattr(stream, "_read", reads.append)
        (start,) = queued
        await start()
        assert not reads
        assert broker.broker.response_budget.used == 0


async def test_a_parked_fetch_whose_response_is_cancelled_before_it_begins_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        (tp, _) = await broker.topic()
        queued: list[Callable[[], asyncio.Task[None]]] = []
        monkeypatch.setattr(broker.broker.response_queue, "put", lambda _, start: queued.append(start))
        context = Context([fetch_request(tp)])
        messages = [await context.read()]

        async def read() -> object:
            return messages.pop() if messages else await asyncio.Event().wait()

        context.read = read  # type: ignore[method-assign]
        stream = stream_of(FetchHandler, broker, context)
        serving = asyncio.create_task(stream.run())
        await all_wait()
        closing = asyncio.create_task(stream.close(*ENDED))
        await all_wait()
        serving.cancel()
        (start,) = queued
        answering = start()  # scheduled after the cancellation, which cancels it
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await all_wait()
        assert answering.cancelled()
        assert closing.done()
