"""GET /metrics and /health over HTTP/1.1, with the broker's own TLS. One response per connection; nothing else is served.

If every caller may use the broker, every caller may read the metrics. Otherwise the principal needs a right on every topic ("*"),
since the metrics name all topics and groups. Health is public: 200 while the broker serves, otherwise 503. Health probes must get
through to a full broker, or it would be restarted, so they count neither towards max.connections nor as scrapes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping

from brokerd.clock import stopwatch_ns
from brokerd.errors import BrokerdError, ConfigError
from brokerd.server.failures import internal
from brokerd.server.security.audit import Audit
from brokerd.server.security.authenticator import AUTHORIZATION, CERTIFICATE, Authenticator, UnauthenticatedError, caller_of
from brokerd.sharing import CALLER

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HEAD_MAX_BYTES = 8_192
_PATIENCE_S = 10.0
_CONNECTIONS_MAX = 16
_PROBES_MAX = 48  # further connections, for health only; one more replaces the oldest connection


class MetricsEndpoint:
    """A small HTTP server. `scrape` reads the broker in its caller's turns; `is_serving` returns its health.

    One scrape runs at a time, followed by a rest as long as the scrape: rendering its text in a thread holds the interpreter lock.
    """

    def __init__(
        self, scrape: Callable[[], Awaitable[bytes]], is_serving: Callable[[], bool], authenticator: Authenticator, audit: Audit
    ) -> None:
        self.port = 0  # the bound port, from start() on
        self.tls: ssl.SSLContext | None = None  # the certificates for new handshakes; None: plaintext
        self._read_broker = scrape
        self._scraping = asyncio.Lock()
        self._rests_until_ns = 0
        self._is_serving = is_serving
        self._authenticator = authenticator
        self._audit = audit
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], None] = {}  # oldest first

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Starts listening. Raises ConfigError if it cannot."""
        self.tls = tls
        try:
            # TLS starts in _serve, so that a client stalled in the handshake is counted and ended like any other.
            self._server = await asyncio.start_server(self._serve, host.strip("[]"), port, limit=_HEAD_MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"cannot listen on metrics.host = {host}, metrics.port = {port}: {error.strerror}") from None
        self.port = self._server.sockets[0].getsockname()[1]
        logger.info("metrics on http%s://%s:%d/metrics", "s" if tls else "", host, self.port)

    async def stop(self) -> None:
        """Stops the server and the responses in progress."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        if len(self._connections) > _CONNECTIONS_MAX + _PROBES_MAX:
            # The oldest is most likely idle. Refusing the new one would let a client that holds all of them make the broker
            # seem dead.
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        try:
            is_crowded = len(self._connections) > _CONNECTIONS_MAX
            async with asyncio.timeout(_PATIENCE_S):
                if self.tls is not None:
                    await writer.start_tls(self.tls)
                writer.write(await self._answer(reader, writer, is_crowded=is_crowded))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, silent or does not speak HTTP
        except asyncio.CancelledError:
            pass  # replaced by a newer one, or stopping: Python 3.11 logs a traceback for each cancelled task here
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()  # if not closed yet; after an aborted handshake, nothing else would close it

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_crowded: bool) -> bytes:
        method, path, headers = _parse(await reader.readuntil(b"\r\n\r\n"))
        if path == "/health":
            return _response("200 OK", "serving") if self._is_serving() else _response("503 Service Unavailable", "not serving")
        if is_crowded:
            return _response("503 Service Unavailable", "too many connections: try again later")
        try:
            principal = self._authenticator.principal(
                [(AUTHORIZATION, value) for name, value in headers if name == AUTHORIZATION], _peer(writer)
            )
        except UnauthenticatedError as error:
            self._audit.refused(_host(writer), f"metrics: {error.message}")
            return _response("401 Unauthorized", error.message, "WWW-Authenticate: Bearer")
        if not principal.rights.sees_everything:
            refusal = f"principal '{principal.name}' has no right on all topics ('*')"
            self._audit.refused(principal.name, f"metrics: {refusal}")
            return _response("403 Forbidden", refusal)
        if path != "/metrics":
            return _response("404 Not Found", "only /metrics and /health exist")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "GET it", "Allow: GET, HEAD")
        try:
            CALLER.set(caller_of(principal, _host(writer)))
            body = await self._scrape()
        except BrokerdError as error:
            return _response("503 Service Unavailable", error.message)
        except Exception as error:
            return _response("500 Internal Server Error", internal("metrics", error).message)
        return _head("200 OK", len(body), CONTENT_TYPE) + (body if method == "GET" else b"")

    async def _scrape(self) -> bytes:
        async with self._scraping:
            await asyncio.sleep((self._rests_until_ns - stopwatch_ns()) / 1e9)
            began_ns = stopwatch_ns()
            body = await self._read_broker()
            self._rests_until_ns = 2 * stopwatch_ns() - began_ns
            return body


def _parse(head: bytes) -> tuple[str, str, list[tuple[str, str]]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    headers = [line.partition(":")[::2] for line in lines]
    return method, path, [(name.strip().lower(), value.strip()) for name, value in headers]


def _peer(writer: asyncio.StreamWriter) -> Mapping[str, list[bytes]]:
    """The client's certificate, under gRPC's name for it."""
    tls = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    return {} if certificate is None else {CERTIFICATE: [ssl.DER_cert_to_PEM_cert(certificate).encode()]}


def _host(writer: asyncio.StreamWriter) -> str:
    """The client's host, in the notation of the audit trail."""
    name = writer.get_extra_info("peername")
    if not name:  # disconnected meanwhile
        return "unknown"
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    return f"ipv4:{address}" if address.version == 4 else f"ipv6:[{address}]"


def _response(status: str, text: str, *headers: str) -> bytes:
    body = (text + "\n").encode()
    return _head(status, len(body), "text/plain; charset=utf-8", *headers) + body


def _head(status: str, length: int, content_type: str, *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {length}", "Connection: close", *headers)
    return "\r\n".join((*lines, "", "")).encode()
