"""Handwritten HTTP/2 for attackers: calls that never end, messages that stop midway, frames that no library sends.

Uses no gRPC and has no safeguards; it obeys flow control only so that the broker keeps the connection.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

_READ_BYTES = 262_144
_PIECE = 16_384


class RawHttp2:
    """One blocking connection. Only `pump` reads."""

    def __init__(
        self, port: int, *, token: str | None = None, tls: ssl.SSLContext | None = None, window: int | None = None
    ) -> None:
        """`window`: the flow-control window of each response, never extended; None = the default, extended as bytes arrive."""
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = tls.wrap_socket(connection, server_hostname="localhost") if tls is not None else connection
        config = h2.config.H2Configuration(client_side=True, header_encoding=None, validate_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self._keeps_window = window is None
        self._headers = [("authorization", f"Bearer {token}")] if token is not None else []
        self._pending: dict[int, list[memoryview]] = {}  # parts of messages, waiting for flow control
        self.sent_bytes = 0  # of messages
        self.statuses: dict[int, str] = {}  # grpc-status of ended calls; "" = none
        self.received_bytes = 0
        self.data_bytes = 0  # of responses
        self.ping_acks = 0
        self.is_closed = False
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.flush()

    @property
    def is_sending(self) -> bool:
        """True while part of a message waits for flow control."""
        return bool(self._pending)

    def call(self, path: str, *, headers: list[tuple[str, str]] | None = None, flush: bool = True) -> int:
        """Begins a call; returns its stream. Raises h2.exceptions.TooManyStreamsError above the broker's limit."""
        stream = self.h2.get_next_available_stream_id()
        standard = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
        content = [("content-type", "application/grpc")]
        self.h2.send_headers(stream, [*standard, *content, *self._headers, *(headers or [])])
        if flush:
            self.flush()
        return stream

    def send_message(
        self, stream: int, message: bytes, *, announced_bytes: int | None = None, end: bool = False, is_compressed: bool = False
    ) -> None:
        """Sends as much of a message as flow control allows, and the rest in `pump`. `announced_bytes`: the size in its prefix."""
        size = len(message) if announced_bytes is None else announced_bytes
        first = struct.pack(">?I", is_compressed, size) + message[:_PIECE]  # the rest is not copied: it may be large
        self._pending[stream] = [part for part in (memoryview(first), memoryview(message)[_PIECE:]) if part]
        self._send_pending(stream)
        if end and stream not in self._pending and stream not in self.statuses:
            self.h2.end_stream(stream)
        self.flush()

    def reset(self, stream: int) -> None:
        """Resets a call."""
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)

    def flush(self) -> None:
        """Sends the pending frames."""
        self.send_bytes(self.h2.data_to_send())

    def send_bytes(self, data: bytes) -> None:
        """Sends raw bytes."""
        try:
            self.socket.settimeout(30)
            self.socket.sendall(data)
        except OSError:
            self.is_closed = True

    def pump(self, seconds: float = 0.0) -> None:
        """Reads what arrives within `seconds`, and answers as HTTP/2 requires."""
        if self.is_closed:
            return
        try:
            self.socket.settimeout(max(seconds, 0.0005))
            data = self.socket.recv(_READ_BYTES)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return
        self.received_bytes += len(data)
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.is_closed = True
            return
        for event in events:
            self._take(event)
        for stream in list(self._pending):
            self._send_pending(stream)
        self.flush()

    def status_of(self, stream: int, seconds: float) -> str | None:
        """The grpc-status of the call, as text; None if it does not end within `seconds`."""
        end = time.monotonic() + seconds
        while stream not in self.statuses and not self.is_closed and time.monotonic() < end:
            self.pump(0.1)
        return self.statuses.get(stream)

    def ping(self, seconds: float) -> bool:
        """True if the broker's gRPC has read everything sent so far, within `seconds`; its handlers may not have."""
        acks = self.ping_acks
        self.h2.ping(bytes(8))
        self.flush()
        end = time.monotonic() + seconds
        while self.ping_acks == acks and not self.is_closed and time.monotonic() < end:
            self.pump(0.1)
        return self.ping_acks > acks

    def pump_until_all_ended(self, seconds: float) -> None:
        """Pumps until every call or the connection has ended, or until the deadline."""
        end = time.monotonic() + seconds
        while self.h2.open_outbound_streams and not self.is_closed and time.monotonic() < end:
            self.pump(0.1)

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.data_bytes += len(event.data)
            if self._keeps_window and event.flow_controlled_length:
                with contextlib.suppress(h2.exceptions.ProtocolError):
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, (h2.events.TrailersReceived, h2.events.ResponseReceived)):
            for name, value in event.headers or ():
                if name == b"grpc-status":
                    self._ended(event.stream_id, bytes(value).decode())
        elif isinstance(event, (h2.events.StreamReset, h2.events.StreamEnded)):
            self._ended(event.stream_id, "")
        elif isinstance(event, h2.events.PingAckReceived):
            self.ping_acks += 1
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.is_closed = True

    def _ended(self, stream: int | None, status: str) -> None:
        if stream is None:
            return
        self._pending.pop(stream, None)
        self.statuses.setdefault(stream, status)
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.h2.reset_stream(stream)  # this side is still open

    def _send_pending(self, stream: int) -> None:
        parts = self._pending.get(stream, [])
        while parts and stream not in self.statuses:
            data = parts.pop(0)
            try:
                size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, _PIECE, len(data))
                if size > 0:
                    self.h2.send_data(stream, data[:size].tobytes())
            except h2.exceptions.ProtocolError:
                parts.clear()
                break
            if size < len(data):
                parts.insert(0, data[max(size, 0) :])
            if size <= 0:
                break
            self.sent_bytes += size
            self.flush()
        if not parts or stream in self.statuses:
            self._pending.pop(stream, None)
