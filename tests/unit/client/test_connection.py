"""Goal: each kind of failure that gRPC reports becomes an error that says what to do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from brokerd.client.connection import RawStream
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    InvalidRequestError,
    MessageTooLargeError,
    ResourceExhaustedError,
    UnknownServerError,
    UnsupportedVersionError,
)
from tests.support.connections import connection_to
from tests.support.loop import one_turn

REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: "
    "connect: Connection refused (111)"
)
UNRESOLVED = (
    "DNS resolution failed for nohost:1: C-ares status is not ARES_SUCCESS qtype=AAAA name=nohost is_balancer=0: "
    "Domain name not found"
)
UNRESOLVED_TOO = (
    "errors resolving nohost:1: [field:hostname lookup error:address lookup failed for nohost:1: Domain name not found]"
)
HTTP_1 = (
    "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: Failed parsing HTTP/2 (Expected SETTINGS "
    "frame as the first frame, got frame type 79)"
)
SILENT = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: connection attempt timed out before receiving "
    "SETTINGS frame"
)
OTHER_PROTOCOL = "host:1: the server there speaks another protocol: is it a brokerd port?"
NOBODY = "host:1: it accepted the connection, but did not respond: is it a brokerd port, or is the broker overloaded?"
TOO_LARGE = "CLIENT: Sent message larger than max (5 vs. 4)"
RESET = "Received RST_STREAM with error code 2"
LOST = "the connection to host:1 was lost"
UNKNOWN_METHOD = "host:1 does not know Metadata: is it a brokerd broker, and recent enough? (Method not found!)"


def translated(code: grpc.StatusCode, details: str) -> BrokerdError:
    async def main() -> BrokerdError:
        connection = connection_to("host:1")
        try:
            error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
            return connection.error_from(error, "Metadata")
        finally:
            await connection.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "details", "kind", "text"),
    [
        (grpc.StatusCode.UNAVAILABLE, REFUSED, BrokerUnreachableError, "Connection refused (111)"),
        (grpc.StatusCode.UNAVAILABLE, UNRESOLVED, BrokerUnreachableError, "nohost:1: Domain name not found"),
        (grpc.StatusCode.UNAVAILABLE, UNRESOLVED_TOO, BrokerUnreachableError, "nohost:1: Domain name not found"),
        (grpc.StatusCode.UNAVAILABLE, HTTP_1, BrokerUnreachableError, OTHER_PROTOCOL),
        (grpc.StatusCode.UNAVAILABLE, SILENT, BrokerUnreachableError, NOBODY),
        (grpc.StatusCode.CANCELLED, "", BrokerUnreachableError, LOST),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "x", BrokerUnreachableError, "host:1 did not respond to Metadata in time"),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", BrokerUnreachableError, LOST),
        (grpc.StatusCode.INTERNAL, RESET, BrokerUnreachableError, LOST),
        (grpc.StatusCode.CANCELLED, "Cancelling all calls", BrokerUnreachableError, LOST),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", BrokerUnreachableError, LOST),
        (grpc.StatusCode.INTERNAL, "oops", UnknownServerError, "host:1 failed in Metadata: oops"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", ResourceExhaustedError, "busy"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE, MessageTooLargeError, TOO_LARGE),
        (grpc.StatusCode.INVALID_ARGUMENT, "topics: too many", InvalidRequestError, "topics: too many"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", UnsupportedVersionError, UNKNOWN_METHOD),
    ],
)
def test_status_becomes_an_error(code: grpc.StatusCode, details: str, kind: type[BrokerdError], text: str) -> None:
    error = translated(code, details)
    assert type(error) is kind
    assert str(error) == text


@pytest.mark.parametrize("does", ["receive", "send"])
async def test_a_cancellation_is_not_lost_to_the_error_of_a_stream_that_ends_at_the_same_moment(does: str) -> None:
    """gRPC raises the stream's error alone. The task would go on as if only the connection had been lost."""

    class Call:
        async def read(self) -> bytes:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")

        async def write(self, _: bytes) -> None:
            await self.read()

        def cancel(self) -> bool:
            return True

    connection = connection_to("host:1")
    stream = RawStream(connection, cast("Any", Call()), "/Fetch")
    task = asyncio.create_task(stream.receive() if does == "receive" else stream.send(b""))
    await one_turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await connection.close()
