"""Notices nodes that are silent, for all requests of one client.

A process that hangs, or a machine that lost its power, leaves its connections open: a request would wait for request.timeout.ms,
though the cluster has other leaders a few seconds later. So while a node has said nothing for PATIENCE_MS and requests wait at it,
another node is asked about it, again and again. What a node that is alive is slow to answer is waited for as before.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from brokerd.ids import TopicIdPartition

_PATIENCE_LEAST_MS = 1_000
_LOOKS = 3  # in the time of the patience


def patience_ms(request_timeout_ms: int) -> int:
    """How long a node may be silent before others are asked about it."""
    return max(_PATIENCE_LEAST_MS, request_timeout_ms // 10)


class Asked(NamedTuple):
    """What a request is about. `epochs`: its partitions, each with the leader epoch that the client knew; none for a request that
    no leader of a partition need answer. `parked_ms`: how long the node may keep it."""

    epochs: Mapping[TopicIdPartition, int]
    parked_ms: int = 0


NOTHING = Asked({})


class Awaited:
    """A request without an answer yet."""

    __slots__ = ("address", "asked", "due_ms", "is_over")

    def __init__(self, address: str, asked: Asked, due_ms: int) -> None:
        self.address = address
        self.asked = asked
        self.due_ms = due_ms  # before, nothing is expected
        self.is_over = False


class _Node:
    """The requests that wait at one address."""

    __slots__ = ("awaited", "heard_ms")

    def __init__(self) -> None:
        self.awaited: set[Awaited] = set()
        self.heard_ms = 0


class Silence:
    """Calls `look_into` with an address, and the requests that wait there, each time it has been silent for too long."""

    def __init__(self, patience: int, look_into: Callable[[str, Sequence[Awaited]], Awaitable[None]]) -> None:
        """`patience`: in ms."""
        self._patience_ms = patience
        self._look_into = look_into
        self._nodes: dict[str, _Node] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, address: str, asked: Asked) -> Awaited:
        """A request goes to an address."""
        awaited = Awaited(address, asked, loop_ms() + asked.parked_ms)
        self._nodes.setdefault(address, _Node()).awaited.add(awaited)
        if self._timer is None:
            self._arm()
        return awaited

    def end(self, awaited: Awaited, *, is_answered: bool) -> None:
        """The request was answered, or is not waited for any more. Idempotent."""
        awaited.is_over = True
        node = self._nodes.get(awaited.address)
        if node is None:
            return
        if is_answered:
            node.heard_ms = loop_ms()
        node.awaited.discard(awaited)
        if not node.awaited:
            del self._nodes[awaited.address]

    def close(self) -> None:
        """Asks nobody any more."""
        self._nodes.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._looking.values():
            task.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience_ms / _LOOKS / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        since_ms = loop_ms() - self._patience_ms
        for address, node in self._nodes.items():
            waiting = [one for one in node.awaited if max(one.due_ms, node.heard_ms) <= since_ms]
            if waiting and address not in self._looking:
                task = asyncio.ensure_future(self._look_into(address, waiting))
                self._looking[address] = task
                task.add_done_callback(functools.partial(self._looked, address))
        if self._nodes:
            self._arm()

    def _looked(self, address: str, _task: asyncio.Task[None]) -> None:
        del self._looking[address]


def loop_ms() -> int:
    """The time of the running loop."""
    return round(asyncio.get_running_loop().time() * 1000)
