"""The composition root: the only module that builds the broker's parts. Starts them in order, stops them in reverse.

Start: bind the port, open the data directory (recovery), serve. Stop: refuse new work, answer parked fetches, wait for flushes and
responses (at most shutdown.grace.ms), end the streams, close the logs; one deadline covers all of it. Clients may use up the grace
period; the broker's own work after it gets a fixed time plus a little for each partition to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from brokerd.clock import Clock, SystemClock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.partition_opening import RecoveryReport
from brokerd.errors import BrokerdError, counted
from brokerd.ids import address_of
from brokerd.server.background import Background
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.calls import SERVICE as INTERNODE
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.delayed_produce import Appended, wait_durable
from brokerd.server.failures import internal
from brokerd.server.internode import InternodeService
from brokerd.server.logs import quiet_grpc
from brokerd.server.metrics.endpoint import MetricsEndpoint
from brokerd.server.metrics.families import scrape
from brokerd.server.security.authenticator import Authenticator, Callers
from brokerd.server.security.credentials import Certificates, load_credentials
from brokerd.server.service import BrokerService, accept_undecodable_names
from brokerd.storage.files import Files, RealFiles
from brokerd.wire.channel import server_arguments
from brokerd.wire.methods import SERVICE

logger = logging.getLogger(__name__)

# After the grace period: the metrics endpoint and gRPC stop, threads finish their reads, logs are closed.
REST_MS = 1_750
_PARTITION_MS = 10  # to close one (index, snapshot and their syncs, many at a time); 5,000 partitions fit into a minute
_REPLICATED_S = 1.0  # time for followers to copy the last writes
_PATIENCE_S = 0.5  # time for gRPC and the metrics endpoint to end their clients' connections
_FETCHES_AT_ONCE = 64  # parked fetches that a shutdown ends per iteration of the event loop
RESERVED = 256  # open files for listeners, the metrics port, the event loop, threads working on directories, libraries
_FILES_SHARE = 4  # log files get at least a quarter of the limit, however many connections are allowed
_HEALTH_REQUEST_MAX_BYTES = 1_024
_HEALTH_PATIENCE_S = 10.0

_Context = grpc.aio.ServicerContext[Any, Any]


class ListenError(BrokerdError):
    """The broker cannot listen on the configured address."""


class StopOverdueError(BrokerdError):
    """A shutdown that missed its deadline: the process must exit at once, without waiting for any thread."""


def overdue(limit_ms: int, step: str) -> StopOverdueError:
    """The error for a shutdown that was in `step` at its deadline."""
    return StopOverdueError(
        f"the stop is not done after {limit_ms} ms ({step}): the process exits now, and the next start recovers logs that were "
        "not closed"
    )


class HealthService:
    """grpc.health.v1, open to any caller: reports the broker as a whole and its service as serving until `begin_stop`.

    gRPC assembles a request of any size before it calls a unary method, and these two need no credentials. So they read a stream,
    as all of the broker's methods do, and a call whose request does not arrive is ended. Each watch waits for its own client alone:
    the servicer of grpc_health writes under a lock, so a client that does not read would silence all other watches.
    """

    def __init__(self) -> None:
        self._stops = asyncio.Event()

    def begin_stop(self) -> None:
        """Reports to all watches that the broker no longer serves."""
        self._stops.set()

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        serialize = HealthCheckResponse.SerializeToString
        return {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=serialize),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=serialize),
        }

    async def _check(self, _requests: object, context: _Context) -> Any:
        response = self._response(await self._request(context))
        if response.status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return response

    async def _watch(self, _requests: object, context: _Context) -> None:
        request = await self._request(context)
        await context.write(self._response(request))
        await self._stops.wait()
        await context.write(self._response(request))

    def _response(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in ("", SERVICE):
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        return HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING if self._stops.is_set() else HealthCheckResponse.SERVING)

    async def _request(self, context: _Context) -> HealthCheckRequest:
        """The request of a call; ends the call if it does not arrive."""
        try:
            async with asyncio.timeout(_HEALTH_PATIENCE_S):
                data = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request arrived within {_HEALTH_PATIENCE_S:.0f} s")
        if isinstance(data, bytes) and len(data) <= _HEALTH_REQUEST_MAX_BYTES:
            with contextlib.suppress(DecodeError):
                return HealthCheckRequest.FromString(data)
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "HealthCheckRequest: did not arrive, cannot be parsed, or is too large"
        )
        raise AssertionError("abort raises")


class Daemon:
    """One broker in this process. `files` and `clock` default to the machine's own. `waits`: if the coordination store is
    unavailable at the start, a node of a cluster waits for it; otherwise the start fails."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        waits: bool = True,
    ) -> None:
        self.config = config
        self._waits = waits
        self.port = 0  # the bound port, from start() on
        self.metrics_port = -1  # the same; -1 = off
        self._files = files
        self._interceptors = interceptors
        self._clock = clock if clock is not None else SystemClock()
        self._health = HealthService()  # reports "serving" from the start on; before that, no call is answered
        self._server: grpc.aio.Server | None = None
        self._logs: LogManager | None = None
        self._cluster: ClusterNode | None = None  # None: the node is alone
        self._broker: BrokerParts | None = None
        self._service: BrokerService | None = None
        self._background: Background | None = None
        self._metrics: MetricsEndpoint | None = None
        self._certificates: Certificates | None = None  # None: plaintext
        self._callers: Callers | None = None
        self._reloading = asyncio.Lock()
        self._has_started = False
        self._step = ""  # the shutdown's current step

    @property
    def stop_limit_ms(self) -> int:
        """The longest that stop() may take."""
        partition_count = self._logs.topics.partition_count() if self._logs is not None else 0
        return self.config.shutdown_grace_ms + REST_MS + _PARTITION_MS * partition_count

    @property
    def broker(self) -> BrokerParts:
        """The running broker's parts; available from start() to stop()."""
        assert self._broker is not None
        return self._broker

    @property
    def open_stream_count(self) -> int:
        """Produce and fetch streams open now."""
        return self._service.open_stream_count if self._service is not None else 0

    async def start(self) -> None:
        """Returns once the broker serves. Raises ConfigError, ListenError, CoordinationError or
        DataDirectoryError, leaving nothing open."""
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def reload(self) -> None:
        """Reloads the certificates and the auth file. They apply to new handshakes and calls; rights apply to open streams too, and
        streams whose credentials are no longer valid are ended. Raises ConfigError, having changed nothing.
        """
        assert self._callers is not None
        async with self._reloading:  # the last reload wins
            newer = await asyncio.to_thread(load_credentials, self.config)
            if self._cluster is not None:
                await self._cluster.reload()
            if self._certificates is not None and newer.certificates is not None:
                self._certificates.replace(newer.certificates)
            self._callers.replace(newer.identities)
            ended_count = await self._service.end_revoked_streams() if self._service is not None else 0
            if self._metrics is not None and newer.certificates is not None:
                self._metrics.tls = newer.certificates.tls
        identities = newer.identities
        principals = counted(len(identities.principals), "principal") if identities is not None else "no principals"
        self.broker.audit.reloaded(f"{principals}, {counted(ended_count, 'stream')} ended")
        logger.info(
            "reloaded: %s, %s; %s of revoked credentials ended",
            "certificates" if newer.certificates is not None else "no certificates",
            f"auth file with {principals}" if identities is not None else "no auth file",
            counted(ended_count, "stream"),
        )

    async def wait_until_ended(self) -> None:
        """Returns when gRPC stops serving, through stop() or an error of its own; the process should exit then."""
        assert self._server is not None
        try:
            await self._server.wait_for_termination()
        except Exception as error:
            internal("gRPC's server", error)

    async def stop(self) -> None:
        """Drains and closes. Acknowledged records are on disk, and the next start needs no recovery.

        Raises StopOverdueError at its deadline, whatever it is waiting for. After that, nothing in this process may use the data
        directory, and the process must exit without waiting for its threads.
        """
        limit_ms, audit = self.stop_limit_ms, self.broker.audit
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._stop()
        except TimeoutError:
            raise overdue(limit_ms, self._step) from None
        audit.end()
        logger.info("stopped")

    @property
    def has_opened_nothing(self) -> bool:
        """True while a start waits for the coordination store or for its node id: the process may be ended at once."""
        return self._cluster is not None and self._cluster.is_waiting

    async def _stop(self) -> None:
        assert self._broker is not None
        assert self._service is not None
        assert self._background is not None
        self._broker.begin_stop()
        self._health.begin_stop()
        self._step = "stopping periodic jobs"
        await self._background.stop()
        self._step = "answering requests in progress"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.shutdown_grace_ms / 1000):
                await self._end_parked_fetches(self._broker)
                await self._broker.flusher.drain()
                await self._service.drain()
                if self._cluster is not None:
                    await self._hand_over(self._broker, self._cluster)
                await self._service.close_streams()
        await self._release()

    async def _hand_over(self, broker: BrokerParts, cluster: ClusterNode) -> None:
        """Lets other replicas lead, after waiting at most _REPLICATED_S for them to catch up."""
        led = [partition for partition in broker.partitions if partition.is_leader]
        behind = [
            Appended(partition, end - 1, partition.leader_epoch)
            for partition in led
            if partition.ends.high_watermark < (end := partition.ends.log_end_offset)
        ]
        await within(_REPLICATED_S, wait_durable(broker.produce_purgatory, behind))
        await cluster.hand_over()

    async def _end_parked_fetches(self, broker: BrokerParts) -> None:
        ended = 1
        while ended:
            ended = broker.fetch_purgatory.force_complete(_FETCHES_AT_ONCE)
            await asyncio.sleep(0)

    async def _start(self) -> None:
        read = load_credentials(self.config)
        certificates = self._certificates = read.certificates
        authenticator = Authenticator(read.identities, needs_certificate=self.config.ssl_client_auth == "required")
        self.config = fitted(self.config, raise_limit())
        accept_undecodable_names()
        quiet_grpc()
        self._server = grpc.aio.server(options=server_arguments(self.config), interceptors=self._interceptors)
        credentials = certificates.credentials() if certificates is not None else None
        self.port = _bind(self._server, self.config.host, self.config.port, credentials)
        files = self._files if self._files is not None else RealFiles(self.config.data_dir)
        self._cluster = ClusterNode(self.config, self._clock, waits=self._waits) if self.config.cluster_name else None
        identity = await self._cluster.identify(files) if self._cluster is not None else None
        logs = self._logs = LogManager(self.config, files, self._clock, cluster=identity)
        report = await asyncio.to_thread(logs.open)
        level = logging.WARNING if report.read_only_reason or report.damaged else logging.INFO
        logger.log(level, "data directory %s %s", self.config.data_dir, _summary(report))
        self._broker = BrokerParts(self.config, logs, self._clock, self._cluster)
        self._broker.port = self.port
        if self._cluster is None:
            await self._broker.coordinator.start()
        self._callers = Callers(
            authenticator,
            logs.topics,
            self._broker.audit,
            on_stranger=self._broker.counters.authentication_failures.inc,
        )
        self._service = BrokerService(self._broker, self._callers)
        # Registered by name: gRPC keeps a separate queue of calls per method, so a flood of calls to others does not delay these.
        self._server.add_registered_method_handlers(SERVICE, self._service.method_handlers())
        self._server.add_registered_method_handlers(health.SERVICE_NAME, self._health.method_handlers())
        self._background = Background(self._broker, logs.expire_producers, logs.checkpoint_job)
        self._background.start()
        if self.config.metrics_port >= 0:
            await self._start_metrics(authenticator)
        if self._cluster is not None:
            service = InternodeService(self._broker, self._cluster)
            self._server.add_registered_method_handlers(INTERNODE, service.method_handlers())
            broker = self._broker
            on_change = broker.coordinator.follow
            await self._cluster.join(logs, broker.admin, broker.flusher, broker.address(), broker.forget_topic, on_change)
        await self._server.start()
        self._has_started = True

    async def _start_metrics(self, authenticator: Authenticator) -> None:
        broker = self.broker
        endpoint = self._metrics = MetricsEndpoint(
            lambda: scrape(broker, stream_count=self.open_stream_count),
            lambda: self._has_started and not broker.is_stopping,
            authenticator,
            broker.audit,
        )
        tls = self._certificates.tls if self._certificates is not None else None
        await endpoint.start(self.config.metrics_host, self.config.metrics_port, tls)
        self.metrics_port = endpoint.port

    async def _release(self) -> None:
        """Closes everything that is open, in reverse order."""
        if self._cluster is not None:
            self._step = "leaving the cluster"
            await within(_PATIENCE_S, self._cluster.leave())
        if self._metrics is not None:
            self._step = "stopping the metrics endpoint"
            await within(_PATIENCE_S, self._metrics.stop())
        if self._background is not None:
            await self._background.stop()
        if self._broker is not None:
            self._broker.drop_waiting()
        if self._server is not None:
            self._step = "stopping gRPC's server"
            await within(_PATIENCE_S, self._server.stop(0))
        if self._broker is not None:
            self._step = "finishing topic changes"
            await self._broker.admin.drain()
            await self._broker.coordinator.drain()
            self._step = "finishing flushes and reads"
            await self._broker.close()
        if self._logs is not None:
            self._step = "closing the logs"
            await asyncio.to_thread(self._logs.close)
        self._metrics = self._background = self._server = self._broker = self._logs = self._cluster = None


async def within(seconds: float, step: Awaitable[object]) -> None:
    """Waits at most `seconds` for a step that depends on others, since later steps matter more. The step itself is not cancelled:
    cancelling gRPC's server during its stop would cancel everything that waits for its end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.shield(step)


def _bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    address = address_of(host, port)
    problem = _bind_problem(host, port)
    if problem is None:
        try:
            if credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, credentials)
        except RuntimeError:
            problem = _bind_problem(host, port) or "gRPC refused it"
    raise ListenError(f"cannot listen on {address}: {problem}")


def _bind_problem(host: str, port: int) -> str | None:
    """Why the address cannot be bound, or None. Binds a probe socket, since gRPC does not report the reason."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does: lingering connections of an earlier broker must not block the address.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except socket.gaierror as error:
        return f"the host is unknown ({error.strerror})"
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        return f"{reason}; stop the process that uses it, or choose another port" if error.errno == errno.EADDRINUSE else reason
    return None


def _summary(report: RecoveryReport) -> str:
    how = "was closed cleanly" if report.partitions else "is new or empty"
    if report.unclean:
        some = f"but for {counted(report.unclean, 'partition')}, recovered"
        how = "was not closed cleanly and is recovered" if report.unclean == report.partitions else f"{how} {some}"
    cut_bytes = sum(report.cut_bytes.values())
    return (
        f"{how}, {counted(report.partitions, 'partition')}, {len(report.damaged)} of them damaged, "
        f"{counted(cut_bytes, 'byte')} of torn tails cut"
        + (f"; read-only: {report.read_only_reason}" if report.read_only_reason else "")
        + (f"; left alone: {', '.join(report.unknown_directories)}" if report.unknown_directories else "")
    )


def raise_limit() -> int:
    """Raises the soft limit of open files to the hard limit, since shells start with 1,024. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems refuse a hard limit of infinity
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**31 - 1


def fitted(config: BrokerConfig, limit: int) -> BrokerConfig:
    """`config`, with fewer open log files and connections if they do not fit into `limit`."""
    wanted = config.max_connections + config.log_max_open_files + RESERVED
    if wanted <= limit:
        return config
    room = max(limit - RESERVED, 32)
    files = min(config.log_max_open_files, max(room - config.max_connections, room // _FILES_SHARE))
    connections = min(config.max_connections, room - files)
    logger.warning(
        "max.connections (%d) and log.max.open.files (%d) need %d open files, but the process may have %d (RLIMIT_NOFILE): using "
        "%d log files and %d connections; raise the limit (LimitNOFILE= of a unit, ulimit -n), or lower the settings",
        config.max_connections,
        config.log_max_open_files,
        wanted,
        limit,
        files,
        connections,
    )
    return dataclasses.replace(config, log_max_open_files=files, max_connections=connections)
