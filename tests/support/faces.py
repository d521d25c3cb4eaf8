"""The asyncio clients wrapped as blocking ones, so that the same tests cover both APIs ("faces")."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Self

import pytest

import brokerd
import brokerd.aio
from brokerd.aio.producer import AsyncCoordinator, Transaction
from brokerd.client.blocking import LoopThread
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import TransactionEnd
from brokerd.producer.transaction import Coordinator as BlockingCoordinator


class OnALoop:
    """A client of brokerd.aio. Each call is a task in an event loop on its own thread."""

    kind: Callable[..., Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.client = self.kind(*arguments, **options)
        self.home = LoopThread()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.client, name)
        if not callable(attribute) or name.startswith("_"):
            return attribute
        return lambda *arguments, **options: self.home.run(_called(attribute, arguments, options))

    def __enter__(self) -> Self:
        self.home.run(self.client.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.home.run(self.client.__aexit__(kind, error, trace))
        finally:
            self.home.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.home.run(self.client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __del__(self) -> None:
        if "home" in self.__dict__:
            self.home.end()


async def _called(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    result = function(*arguments, **options)
    return await result if inspect.iscoroutine(result) else result


class LoopConsumer(OnALoop):
    """brokerd.aio.Consumer."""

    kind = brokerd.aio.Consumer


class LoopProducer(OnALoop):
    """brokerd.aio.Producer."""

    kind = brokerd.aio.Producer

    def __init__(self, *arguments: Any, coordinator: BlockingCoordinator | None = None, **options: Any) -> None:
        super().__init__(*arguments, coordinator=coordinator and AwaitedCoordinator(coordinator), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client._engine, name) if name.startswith("_") else super().__getattr__(name)

    def transaction(self, version: int | None = None) -> LoopTransaction:
        return LoopTransaction(self, self.client.transaction(version))


class LoopTransaction:
    """A transaction of a LoopProducer."""

    def __init__(self, producer: LoopProducer, transaction: Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def send_offsets(self, *arguments: Any, **options: Any) -> None:
        self._producer.home.run(self._transaction.send_offsets(*arguments, **options))

    def __enter__(self) -> Self:
        self._producer.home.run(self._transaction.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._producer.home.run(self._transaction.__aexit__(kind, error, trace))


class AwaitedCoordinator(AsyncCoordinator):
    """An AsyncCoordinator over a blocking one that never waits."""

    def __init__(self, coordinator: BlockingCoordinator) -> None:
        self._coordinator = coordinator

    async def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """See AsyncCoordinator."""
        return self._coordinator.last_version(transactional_id, timeout_ms=timeout_ms)

    async def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """See AsyncCoordinator."""
        self._coordinator.end(end, timeout_ms=timeout_ms)

    async def partition_ids(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """See AsyncCoordinator."""
        return self._coordinator.partition_ids(tps)


FACES: dict[str, dict[str, type]] = {
    "threads": {"Consumer": brokerd.Consumer, "Producer": brokerd.Producer},
    "asyncio": {"Consumer": LoopConsumer, "Producer": LoopProducer},
}


def take_face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Sets the names Consumer and Producer in the test's module and in `modules` to the face that the test runs with."""
    for name, kind in FACES[getattr(request, "param", "threads")].items():
        for module in (request.module, *modules):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, kind)


def both_faces(metafunc: pytest.Metafunc, *modules: str) -> None:
    """Runs the tests of these modules with both faces."""
    if metafunc.module.__name__.rpartition(".")[2] in modules:
        metafunc.parametrize("face", list(FACES), indirect=True)
