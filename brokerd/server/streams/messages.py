"""Reads one message of a stream, or its end; shared by both streams."""

from __future__ import annotations

from typing import cast

import grpc

Context = grpc.aio.ServicerContext[bytes, bytes]


async def read_message(context: Context) -> bytes | None:
    """The next message's bytes; None when the client has ended its side. Cancelled when the client disconnects."""
    message = cast("object", await context.read())
    return message if isinstance(message, bytes) else None
