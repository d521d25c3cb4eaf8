"""Messages between the processes of this package: a JSON object, bytes, and at most one socket, over private socket pairs. An error
is sent as its class name and text, so no message can execute code.
"""

from __future__ import annotations

import array
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd import errors
from brokerd.errors import BrokerdError


class BrokerFailedError(BrokerdError):
    """The broker failed to start, or ended unexpectedly; the text names its directory and shows the end of its log."""


class UnmetFaultError(BrokerdError, AssertionError):
    """A fault met no request before the broker was closed: the test did not exercise it."""


_LENGTHS = struct.Struct("<IQ")  # of the object and of the bytes
_HEAD_MAX_BYTES = 16_777_216
BODY_MAX_BYTES = 2_147_483_647
_PIECE_BYTES = 1_048_576
_ERRORS: dict[str, type[Exception]] = {
    **{cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, BrokerdError)},
    **{cls.__name__: cls for cls in (BrokerFailedError, UnmetFaultError, ValueError, TypeError)},
}


class Message(NamedTuple):
    """A received message."""

    head: dict[str, Any]
    body: bytearray
    passed: socket.socket | None


class Channel:
    """One end of a socket pair. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.is_broken = False  # a reply to an interrupted call may still come

    def send(self, head: Mapping[str, object], body: Any = b"", *, passed: socket.socket | None = None) -> None:
        """Sends a message. Raises ValueError if it is too large, OSError if the other side is gone."""
        text = json.dumps(head).encode()
        view = memoryview(body).cast("B")
        if len(text) > _HEAD_MAX_BYTES or len(view) > BODY_MAX_BYTES:
            raise ValueError(f"{len(view)} bytes at once, at most {BODY_MAX_BYTES} are possible: take them in several calls")
        lengths = _LENGTHS.pack(len(text), len(view))
        rights = []
        if passed is not None:
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()])))
        sent = self.socket.sendmsg([lengths, text], rights)
        self.socket.sendall((lengths + text)[sent:])
        if len(view):
            self.socket.sendall(view)

    def receive(self) -> Message:
        """The next message. Raises EOFError if the other side is gone."""
        passed: list[socket.socket] = []
        lengths = self._read(_LENGTHS.size, passed)
        head_size, body_size = _LENGTHS.unpack(lengths)
        if head_size > _HEAD_MAX_BYTES or body_size > BODY_MAX_BYTES:
            raise EOFError
        head = json.loads(self._read(head_size, passed))
        return Message(head, self._read(body_size, passed), passed[0] if passed else None)

    def _read(self, size: int, passed: list[socket.socket]) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        count = 0
        while count < size:
            try:
                piece, fds, _, _ = socket.recv_fds(self.socket, min(size - count, _PIECE_BYTES), 1)
            except ConnectionError:
                raise EOFError from None
            passed += [socket.socket(fileno=fd) for fd in fds]
            if not piece:
                raise EOFError
            view[count : count + len(piece)] = piece
            count += len(piece)
        return data

    def close(self) -> None:
        """Closes this end."""
        self.socket.close()

    def end(self, timeout_s: float) -> None:
        """Shuts down sending, waits for the other side's EOF, at most `timeout_s`, and closes this end."""
        with self.socket, contextlib.suppress(OSError):  # it may be gone already
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(timeout_s)
            while self.socket.recv(_PIECE_BYTES):
                pass


def exchange(channel: Channel, head: Mapping[str, object], body: Any, passed: Any, gone: str) -> Message:
    """Sends a request and waits for its reply. Raises the error in the reply; BrokerFailedError with the text `gone` if the other
    side is gone.

    An interrupted wait (Ctrl-C) breaks the channel: the late reply would be taken for the reply to the next request.
    """
    if channel.is_broken:
        raise BrokerdError("an earlier call was interrupted: close this Broker, and make another")
    channel.is_broken = True
    try:
        channel.send(head, body, passed=passed)
        message = channel.receive()
    except (EOFError, ConnectionError):
        raise BrokerFailedError(gone) from None
    except (TypeError, ValueError):  # it could not be sent
        channel.is_broken = False
        raise
    channel.is_broken = False
    raise_error(message.head)
    return message


def pair() -> tuple[Channel, socket.socket]:
    """A socket pair: this process's end as a Channel, and the end to pass on."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


def error_head(error: BaseException) -> dict[str, object]:
    """The message that `raise_error` turns back into this error."""
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS), "")
    text = str(error) if name else f"{type(error).__name__}: {error}"
    return {"error": name or "BrokerdError", "message": text}


def raise_error(head: Mapping[str, Any]) -> None:
    """Raises the error in a message, if there is one."""
    if "error" in head:
        raise _ERRORS.get(head["error"], BrokerdError)(head["message"])
