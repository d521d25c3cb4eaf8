"""gRPC channel and server arguments, each with its reason; shared by client and server. No other module sets any."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from brokerd.config.client import GRPC_MAX_MESSAGE_BYTES
from brokerd.wire.methods import SERVICE, UNARY, UNARY_RESPONSE_MAX_BYTES, UNARY_RESPONSES_MAX_BYTES

if TYPE_CHECKING:
    from brokerd.config.broker import BrokerConfig

# Calls that our client puts on one connection; below max.streams.per.connection, which is at least 100. At that limit gRPC queues a
# call until another ends, and a stream may never end.
STREAMS_PER_CONNECTION = 64
CALLS_PER_CONNECTION = 32

_NO_LIMIT = -1
_COMMON: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", GRPC_MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", GRPC_MAX_MESSAGE_BYTES),
    # Without these two, 30 unread streams buffer 227 MB before any handler runs; with them 2 MB, at the same speed.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 262_144),
    # Large frames save the receiver work on messages of a MiB.
    ("grpc.http2.max_frame_size", 1_048_576),
)


def _response_limits() -> str:
    """gRPC's service config: the largest response of each unary method, enforced before it is read."""
    methods = [
        {
            "name": [{"service": SERVICE, "method": name}],
            "maxResponseMessageBytes": UNARY_RESPONSES_MAX_BYTES.get(name, UNARY_RESPONSE_MAX_BYTES),
        }
        for name in UNARY
    ]
    return json.dumps({"methodConfig": methods})


CHANNEL_ARGUMENTS: tuple[tuple[str, int | str], ...] = (
    *_COMMON,
    ("grpc.service_config", _response_limits()),
    # No configuration through DNS.
    ("grpc.service_config_disable_resolution", 1),
    # Detect a dead peer: ping after 30 s of silence while a call is open, give up 10 s later.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # reconnect.backoff.ms paces reconnects; gRPC's own back-off must not be slower.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, this limits the time of one connection attempt, handshakes included, like Kafka's
    # socket.connection.setup.timeout.ms. A distant broker with TLS, or a busy broker, may need seconds.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # Each client object owns its connection; by default, channels with equal arguments share one.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC would send even this traffic through a web proxy from the environment (http_proxy), which responds with its own errors.
    ("grpc.enable_http_proxy", 0),
)

# Between nodes. The size of a leader's response to a follower is bounded (server/replication/serving.py), but may exceed a client's
# limit: large batches of several partitions, or the state of a million producers.
NODE_ARGUMENTS: tuple[tuple[str, int | str], ...] = tuple(
    {**dict(CHANNEL_ARGUMENTS), "grpc.max_receive_message_length": _NO_LIMIT}.items()
)

SERVER_ARGUMENTS: tuple[tuple[str, int], ...] = (
    *{**dict(_COMMON), "grpc.max_send_message_length": _NO_LIMIT}.items(),  # the receiver has a limit
    # With SO_REUSEPORT, a second daemon could bind the same port without an error.
    ("grpc.so_reuseport", 0),
    # gRPC's default cancels bursts of more than about a thousand calls waiting to be accepted.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # No compression by gRPC (1 = identity only): it decompresses a whole message before it checks the size limit, so a few hundred
    # kilobytes could expand to as many megabytes. Arrow compresses records, and they stay compressed in the broker.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # A peer that connects and sends nothing, or no HTTP/2, holds a slot of max.connections for at most this long (gRPC: 120 s).
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 10_000),
    # Headers of one call: a token has at most 512 characters. gRPC may refuse a call above the first limit, and always does above
    # the second.
    ("grpc.max_metadata_size", 8_192),
    ("grpc.absolute_max_metadata_size", 16_384),
    # By default gRPC counts ended calls until their memory is freed, and refuses calls of a client that stays within
    # max.streams.per.connection: the client would see UNAVAILABLE, where HTTP/2 makes a call wait.
    ("grpc.http.overload_protection", 0),
    # Accept our own clients' pings: by default, a call that waits two minutes for its response loses its connection. (Unlike gRPC's
    # constant, the name has no "recv".)
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def server_arguments(config: BrokerConfig) -> tuple[tuple[str, int], ...]:
    """SERVER_ARGUMENTS plus those that depend on settings."""
    configured = {
        # Per listening address. gRPC accepts and then closes further connections: the client sees UNAVAILABLE, "Socket closed".
        "grpc.max_allowed_incoming_connections": config.max_connections,
        # An open call costs 20 KB before any of it is read and before the caller is authenticated.
        "grpc.max_concurrent_streams": config.max_streams_per_connection,
        "grpc.max_connection_idle_ms": config.connections_max_idle_ms,
        # gRPC assembles a whole message before any other code sees it, however slowly it arrives.
        "grpc.max_receive_message_length": config.socket_request_max_bytes,
    }
    return tuple({**dict(SERVER_ARGUMENTS), **configured}.items())
