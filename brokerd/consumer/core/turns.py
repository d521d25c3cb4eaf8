"""Turns: of records in work, which may be handled now, and which are passed over. Pure.

A record has to be the first of its lane (lanes.py), and no other of its message may be at work (message_ids.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from brokerd.consumer.core.lanes import Lanes
from brokerd.consumer.core.message_ids import AtWork, MessageId, Verdict, Window


class InWork(Protocol):
    """A record in work, as this module sees it."""

    @property
    def lane(self) -> Hashable:
        """Its lane."""

    @property
    def message_id(self) -> MessageId | None:
        """Its id, if it has one."""


T = TypeVar("T", bound=InWork)


class Turns(Generic[T]):
    """The records in work."""

    def __init__(self, window: Window, *, begin: Callable[[T], None], pass_over: Callable[[T], None]) -> None:
        """`begin` is called with each record that may be handled now, and `pass_over` with each whose message was handled
        before."""
        self._lanes: Lanes[T] = Lanes()
        self._ids: AtWork[T] = AtWork(window)
        self._begin = begin
        self._pass_over = pass_over

    def enter(self, one: T) -> None:
        """A record is taken into work; in the order of its lane."""
        if self._lanes.enter(one):
            self._take_turn(one)

    def leave(self, one: T, *, is_handled: bool) -> None:
        """A record that began has ended: others have their turns."""
        again = self._ids.leave(one, is_handled=is_handled)
        following = self._lanes.leave(one)
        if following is not None:
            self._take_turn(following)
        for waiting in again:
            self._take_turn(waiting)

    def _take_turn(self, one: T) -> None:
        following: T | None = one
        while following is not None:
            verdict = self._ids.enter(following)
            if verdict is Verdict.BEGIN:
                self._begin(following)
            if verdict is not Verdict.HANDLED:
                return
            self._pass_over(following)
            following = self._lanes.leave(following)
