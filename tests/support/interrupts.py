"""Exceptions raised in a thread at any point, as by Ctrl-C, an alarm or a test's time-out."""

from __future__ import annotations

import ctypes
import dis
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import brokerd

_PACKAGE = Path(brokerd.__file__).parent
STRUCK = (str(_PACKAGE / "producer"), str(_PACKAGE / "client"))  # the code in which exceptions are raised


# CPython checks for signals after these bytecodes: calls, function starts, backward jumps.
_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")


@functools.cache
def _operations(code: CodeType) -> dict[int, str]:
    return {one.offset: one.opname for one in dis.get_instructions(code)}


class Struck(BaseException):
    """The interrupt. Like KeyboardInterrupt, not an Exception."""


class _Striker:
    """Raises Struck at the n-th event (line or bytecode) in the code of some files. `is_signal`: counts only events before which
    CPython checks for signals."""

    def __init__(self, at: int, within: tuple[str, ...], *, is_signal: bool) -> None:
        self._within = within
        self._is_signal = is_signal
        self._before: dict[FrameType, int] = {}  # each frame's last executed bytecode
        self.left = at
        self.where = ""

    def _looks(self, frame: FrameType) -> bool:
        before = self._before.get(frame)
        self._before[frame] = frame.f_lasti
        return before is not None and before != frame.f_lasti and _operations(frame.f_code).get(before, "").startswith(_LOOKS)

    def trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._within):
            return None
        frame.f_trace_opcodes = True
        if self._is_signal and not self._looks(frame):
            return self.trace
        self.left -= 1
        if self.left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, bytecode {frame.f_lasti}"
            raise Struck(self.where)
        return self.trace


def strike(action: Callable[[], object], at: int, within: tuple[str, ...] = STRUCK, *, is_signal: bool = False) -> str:
    """Runs `action` and raises Struck at its `at`-th line or bytecode in these files. Returns where that was, or "" if `action`
    ended before. `is_signal`: counts only points at which a signal handler can raise."""
    striker = _Striker(at, within, is_signal=is_signal)
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
    """Raises Struck in another thread, at its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(Struck))
