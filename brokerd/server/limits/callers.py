"""The caller of the unary call that runs, for what it waits for on its way. Each call is a task of its own, and tasks that it
starts know it too. A stream carries its caller itself: others start tasks for it.
"""

from __future__ import annotations

from contextvars import ContextVar

from brokerd.sharing.room import Caller

BROKER = Caller("", "")  # periodic jobs, and a stop
_CALLER: ContextVar[Caller] = ContextVar("caller", default=BROKER)
_PRINCIPAL: ContextVar[str] = ContextVar("principal", default="")


def set_caller(principal: str, caller: Caller) -> None:
    """Call it once the caller of a call is known."""
    _PRINCIPAL.set(principal)
    _CALLER.set(caller)


def current_principal() -> str:
    """The principal of `current_caller`, whose turn its call takes."""
    return _PRINCIPAL.get()


def current_caller() -> Caller:
    """The caller of this task; BROKER if it belongs to no call."""
    return _CALLER.get()
