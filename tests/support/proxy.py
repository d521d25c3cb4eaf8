"""A TCP proxy on loopback that cuts, holds and counts bytes: network faults below the code under test. It runs on its own thread
and event loop; its methods may be called from any thread. It does not parse the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.wait import DEADLINE_S

_CHUNK_BYTES = 65_536
T = TypeVar("T")


class Proxy:
    """Forwards connections to `target`. A context manager.

    `cut_after_request_bytes(n)` resets the connection that carries the n-th byte from now towards the target, after forwarding that
    byte. `cut_before_answer_bytes(n)` resets the one that carries the n-th byte back, before forwarding that byte."""

    def __init__(self, target: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.target = target
        self.cut_count = 0
        self.request_bytes = 0
        self.answer_bytes = 0
        self._cut_at_request_byte: int | None = None
        self._cut_at_answer_byte: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut_all(self) -> None:
        """Resets all connections."""
        self._call(self._run(self._cut_now))

    def hold_answers(self) -> None:
        """Holds all answers until `release_answers`; requests still pass."""
        self._call(self._run(self._answers_flow.clear))

    def release_answers(self) -> None:
        """Lets held and further answers pass."""
        self._call(self._run(self._answers_flow.set))

    def cut_after_request_bytes(self, count: int) -> None:
        """See the class."""
        self._cut_at_request_byte = self.request_bytes + count

    def cut_before_answer_bytes(self, count: int) -> None:
        """See the class."""
        self._cut_at_answer_byte = self.answer_bytes + count

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _run(self, work: Callable[[], object]) -> None:
        work()

    async def _listen(self) -> None:
        self._answers_flow = asyncio.Event()
        self._answers_flow.set()
        self._server = await asyncio.start_server(self._serve, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        self._cut_now()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut_now(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
            self.cut_count += 1
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            target_reader, target_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        self._writers |= {writer, target_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, target_writer, self._request_allowed))
                group.create_task(self._pump(target_reader, writer, self._answer_allowed))
        except* OSError:
            pass
        finally:
            for end in (writer, target_writer):
                self._writers.discard(end)
                end.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: Callable[[int], int]) -> None:
        is_answer = allowed == self._answer_allowed
        while data := await reader.read(_CHUNK_BYTES):
            if is_answer:
                await self._answers_flow.wait()
            passing = allowed(len(data))
            writer.write(data[:passing])
            with contextlib.suppress(OSError):
                await writer.drain()
            if passing < len(data):
                self.cut_count += 1
                raise ConnectionResetError
        raise ConnectionResetError

    def _request_allowed(self, size: int) -> int:
        self.request_bytes += size
        limit = self._cut_at_request_byte
        if limit is None or self.request_bytes <= limit:
            return size
        self._cut_at_request_byte = None
        return max(0, size - (self.request_bytes - limit))

    def _answer_allowed(self, size: int) -> int:
        self.answer_bytes += size
        limit = self._cut_at_answer_byte
        if limit is None or self.answer_bytes < limit:
            return size
        self._cut_at_answer_byte = None
        return max(0, size - 1 - (self.answer_bytes - limit))
