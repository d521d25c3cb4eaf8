"""Exceptions that strike a thread in the middle of what it does, as Ctrl-C, an alarm or a test's time-out do."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import brokerd

_PACKAGE = Path(brokerd.__file__).parent
STRUCK = (str(_PACKAGE / "producer"), str(_PACKAGE / "client"))  # in whose code exceptions strike


class Struck(BaseException):
    """The interrupt. Not an Exception, as KeyboardInterrupt is not one."""


class _Striker:
    """Raises Struck at the n-th event (line or bytecode) in the code of some files."""

    def __init__(self, at: int, within: tuple[str, ...]) -> None:
        self._within = within
        self.left = at
        self.where = ""

    def trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._within):
            return None
        frame.f_trace_opcodes = True
        self.left -= 1
        if self.left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, bytecode {frame.f_lasti}"
            raise Struck(self.where)
        return self.trace


def strike(action: Callable[[], object], at: int, within: tuple[str, ...] = STRUCK) -> str:
    """Does `action`, and strikes it at its `at`-th line or bytecode in these files; where that was, or "" if it did
    not take so many."""
    striker = _Striker(at, within)
    before = sys.gettrace()
    sys.settrace(striker.trace)
    try:
        action()
    except Struck:
        pass
    finally:
        sys.settrace(before)
    return striker.where


def strike_thread(thread_id: int) -> None:
    """Has Struck raised in another thread, at whatever bytecode it is about to execute."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(Struck))
