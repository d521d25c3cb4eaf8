"""Keeps gRPC serving when a client calls a method whose name is not UTF-8.

grpc.aio decodes the name strictly, inside the one task that accepts calls. The exception ends that task, and with it the whole
server: a single packet from an unauthenticated client suffices. (Since grpcio 1.84; before, gRPC refused only that call.) The
decoding is in C, so the only hook is Python's error handler "strict". The handler installed here replaces such a name with one that
does not exist if gRPC's accepting task is decoding, and raises as before for all other code.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import sys

_ACCEPTING_TASK = "AioServer._server_main_loop"
_WHO_DECODES = 2  # frames above _is_accepting: the error handler, then the decoding code
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@functools.cache
def accept_undecodable_names() -> None:
    """Installs the error handler in this process; idempotent."""
    raise_error = codecs.lookup_error("strict")

    def strict(error: UnicodeError) -> tuple[str | bytes, int]:
        if isinstance(error, UnicodeDecodeError) and _is_accepting():
            return _REPLACEMENT, error.end
        return raise_error(error)

    codecs.register_error("strict", strict)


def _is_accepting() -> bool:
    """True if gRPC's accepting task is running, with no Python code in it but asyncio's own."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    if task is None or getattr(task.get_coro(), "__qualname__", None) != _ACCEPTING_TASK:
        return False
    frame = sys._getframe(_WHO_DECODES)  # noqa: SLF001 - there is no public way
    return str(frame.f_globals.get("__name__")).startswith("asyncio.")
