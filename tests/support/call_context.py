"""A gRPC call without gRPC: the messages that a handler reads, and its responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from tests.support.loop import one_turn


class Context:
    """The part of gRPC's servicer context that handlers use."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = deque(messages)
        self.written: list[bytes] = []
        self.code = grpc.StatusCode.OK
        self.details = ""
        self._aborted: grpc.aio.AbortError | None = None
        self._callbacks: list[Callable[[Context], None]] = []

    async def read(self) -> Any:
        """The client's next message, after one turn of the loop."""
        await one_turn()
        self._check()
        return self._messages.popleft() if self._messages else grpc.aio.EOF

    async def write(self, data: bytes) -> None:
        """Records a response."""
        self._check()
        self.written.append(data)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: object = ()) -> NoReturn:
        """See gRPC, which allows one abort only."""
        if self._aborted is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self.code, self.details, self._aborted = code, details, grpc.aio.AbortError(details)
        raise self._aborted

    def add_done_callback(self, callback: Callable[[Context], None]) -> None:
        """Adds a function to be called when the call has ended."""
        self._callbacks.append(callback)

    def end(self) -> None:
        """Ends the call, as gRPC does once it has accepted the response."""
        for callback in self._callbacks:
            callback(self)

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
        """A fixed address."""
        return "ipv4:127.0.0.1:1"
