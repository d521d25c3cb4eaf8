"""A call without gRPC: what a handler reads, and what it answered."""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

import grpc

from tests.support.loop import one_turn


class Context:
    """The part of gRPC's context that a handler needs."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = deque(messages)
        self.written: list[bytes] = []
        self.code = grpc.StatusCode.OK
        self.details = ""
        self._aborted: grpc.aio.AbortError | None = None

    async def read(self) -> Any:
        """The client's next message; a turn of the loop lies before it."""
        await one_turn()
        self._check()
        return self._messages.popleft() if self._messages else grpc.aio.EOF

    async def write(self, data: bytes) -> None:
        """Takes a response."""
        self._check()
        self.written.append(data)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: object = ()) -> NoReturn:
        """See gRPC, which takes one end only."""
        if self._aborted is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self.code, self.details, self._aborted = code, details, grpc.aio.AbortError(details)
        raise self._aborted

    def _check(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    def invocation_metadata(self) -> tuple[()]:
        """No headers."""
        return ()

    def auth_context(self) -> dict[str, Any]:
        """No TLS."""
        return {}

    def peer(self) -> str:
        """Somebody."""
        return "ipv4:127.0.0.1:1"
