"""gRPC channel and server arguments, each with its reason; shared by client and server. No other module may set one."""

from __future__ import annotations

import json

from brokerd.config.broker import GRPC_MAX_MESSAGE_BYTES, BrokerConfig
from brokerd.wire.methods import SERVICE, UNARY, UNARY_RESPONSE_MAX_BYTES, UNARY_RESPONSES_MAX_BYTES

# The number of calls that our client puts on one connection; below max.streams.per.connection, which is never below 100. At the
# limit gRPC makes a call wait until another ends, which a stream may never do.
STREAMS_PER_CONNECTION = 64
CALLS_PER_CONNECTION = 32

_COMMON: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", GRPC_MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", GRPC_MAX_MESSAGE_BYTES),
    # Without these two, 30 unread streams buffer 227 MB before any handler runs; with them 2 MB, at the same speed.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 262_144),
    # Large frames save the receiving side work on messages of a MiB.
    ("grpc.http2.max_frame_size", 1_048_576),
)


def _response_limits() -> str:
    """gRPC's service configuration: the largest response of each unary method, checked before it is read."""
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
    # Notice a dead peer: ping after 30 s of silence while a call is open, give up 10 s later.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # reconnect.backoff.ms paces reconnects; gRPC's own back-off must not be slower.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name this is not a back-off but the time one connection attempt may take, handshakes included, like Kafka's
    # socket.connection.setup.timeout.ms. A distant broker with TLS, or a busy one, needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # Each client object owns its connection: otherwise channels with equal arguments would share one.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC would send even this through a web proxy from the environment (http_proxy), which responds with errors of its own.
    ("grpc.enable_http_proxy", 0),
)

SERVER_ARGUMENTS: tuple[tuple[str, int], ...] = (
    *_COMMON,
    # Otherwise a second daemon could bind the same port without an error.
    ("grpc.so_reuseport", 0),
    # gRPC's defaults cancel bursts of more than about a thousand calls that wait to be accepted.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # No compression by gRPC (1 = identity only): it decompresses a message completely before it checks the size limit, so a few
    # hundred kilobytes could take as many megabytes. Arrow compresses records, and they stay compressed in the broker.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # A peer that connects and sends nothing, or no HTTP/2, occupies a slot of max.connections no longer than this (gRPC: 120 s).
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 10_000),
    # Headers of one call: a token has at most 512 characters. gRPC may refuse a call above the first limit and does above the
    # second.
    ("grpc.max_metadata_size", 8_192),
    ("grpc.absolute_max_metadata_size", 16_384),
    # By default gRPC counts calls that have ended until their memory is free, and refuses those of a client that keeps to
    # max.streams.per.connection: it would see UNAVAILABLE, where HTTP/2 has it wait.
    ("grpc.http.overload_protection", 0),
    # Accept our own clients' pings: by default, a call that waits two minutes for its answer loses its connection. (The name has
    # no "recv", unlike that of gRPC's constant.)
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def server_arguments(config: BrokerConfig) -> tuple[tuple[str, int], ...]:
    """SERVER_ARGUMENTS plus those that depend on settings."""
    configured = {
        # Per listening address. gRPC accepts the connection and closes it again: a client sees UNAVAILABLE, "Socket closed".
        "grpc.max_allowed_incoming_connections": config.max_connections,
        # An open call costs 20 KB before any of it is read and before the caller is authenticated.
        "grpc.max_concurrent_streams": config.max_streams_per_connection,
        "grpc.max_connection_idle_ms": config.connections_max_idle_ms,
        # gRPC assembles a message before anything else sees it, and holds it however slowly it arrives.
        "grpc.max_receive_message_length": config.socket_request_max_bytes,
    }
    return tuple({**dict(SERVER_ARGUMENTS), **configured}.items())
