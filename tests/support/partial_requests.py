"""A client that begins requests and never ends them, in bare HTTP/2: all of a message but its last byte, as fast as flow control
lets it. No assertions here.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from tests.fuzz.inputs import PREFACE, frame, headers_block
from tests.support.wait import DEADLINE_S

_DATA, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 4, 6, 7, 8
_ACK = 1
_END_HEADERS = 4
_DEFAULT_WINDOW = 65_535
_INITIAL_WINDOW_SIZE = 4
_PIECE = 16_384


class PartialRequest:
    """One connection with streams 1, 3, 5..., each of which has sent `sent_bytes` of a message of `message_bytes`."""

    def __init__(self, port: int, path: str, message_bytes: int, *, streams: int = 1) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._received = b""
        self._window = _DEFAULT_WINDOW
        self._initial_window = _DEFAULT_WINDOW
        self._ids = range(1, 2 * streams, 2)
        self._windows = dict.fromkeys(self._ids, 0)  # beyond the initial one
        self._sent = dict.fromkeys(self._ids, 0)
        self.is_closed = False
        self._pending = {number: b"\0" + struct.pack(">I", message_bytes) for number in self._ids}
        self._length = 5 + message_bytes - 1
        self._socket.sendall(PREFACE + frame(_SETTINGS, 0, 0, b""))
        for number in self._ids:
            self._socket.sendall(frame(1, _END_HEADERS, number, headers_block(path)))

    @property
    def sent_bytes(self) -> int:
        """Bytes of messages sent so far."""
        return sum(self._sent.values())

    @property
    def is_done(self) -> bool:
        """True once only the last bytes are missing, or the broker has closed the connection."""
        return self.is_closed or all(sent == self._length for sent in self._sent.values())

    def step(self) -> None:
        """Sends what may be sent now and reads what came."""
        try:
            for number in self._ids:
                self._send(number)
            self._socket.settimeout(0.01)
            data = self._socket.recv(65_536)
            if not data:
                self.is_closed = True
            self._read(data)
        except TimeoutError:
            return
        except OSError:
            self.is_closed = True

    def close(self) -> None:
        """Cuts the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _send(self, number: int) -> None:
        self._socket.settimeout(DEADLINE_S)
        while True:
            room = min(self._window, self._initial_window + self._windows[number] - self._sent[number])
            size = min(room, _PIECE, self._length - self._sent[number])
            if size <= 0:
                return
            head, self._pending[number] = self._pending[number][:size], self._pending[number][size:]
            self._socket.sendall(frame(_DATA, 0, number, head + bytes(size - len(head))))
            self._sent[number] += size
            self._window -= size

    def _read(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags = self._received[3], self._received[4]
            number = int.from_bytes(self._received[5:9], "big")
            payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            self._take(kind, flags, number, payload)

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            if number == 0:
                self._window += size
            elif number in self._windows:
                self._windows[number] += size
        elif kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == _INITIAL_WINDOW_SIZE:
                    self._initial_window = value
            self._socket.sendall(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            self.is_closed = True
