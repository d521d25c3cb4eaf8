"""The broker's settings. `conf/brokerd.toml` lists them all; a test keeps it equal to the declarations here.

Precedence: defaults < TOML file < environment (`BROKERD_LOG_SEGMENT_BYTES`) < flags. load.py loads them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from brokerd.config.client import DEFAULT_PORT, GRPC_MAX_MESSAGE_BYTES, is_loopback
from brokerd.config.settings import INT32_MAX, INT64_MAX, Value, declared, setting, settings_of
from brokerd.config.topic import REPLICAS_MAX, TopicConfig, topic_config
from brokerd.errors import ConfigError, InvalidConfigError
from brokerd.ids import cluster_name_problem

_ETCD = "etcd://"
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}")
REQUEST_OVERHEAD_BYTES = 1_048_576  # a request without its batch: ids of max.partitions.per.request partitions, and a reserve


def _default_of(name: str, more: str = "") -> Any:
    """Declares the broker-wide default of a topic setting, with the same range and meaning. `more`: a further sentence."""
    spec = settings_of(TopicConfig)[name]
    doc = f"Default of {name}: {spec.doc[0].lower()}{spec.doc[1:]}{more}"
    return declared(replace(spec, name="", doc=doc, default_of=name))


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of one broker, in groups: location, logs, limits and timeouts, security, metrics and logging."""

    LISTED: ClassVar[str] = "'brokerd config --sample' prints them all"

    host: str = setting("127.0.0.1", "Address to listen on; beyond loopback it needs authentication (auth.file).")
    port: int = setting(DEFAULT_PORT, "Port to listen on; 0 picks a free one.", between=(0, 65_535))
    advertised_host: str = setting("", "Host that clients connect to; empty = host.")
    advertised_port: int = setting(0, "Port that clients connect to; 0 = port.", between=(0, 65_535))
    data_dir: str = setting("./brokerd-data", "Directory of all data; created if missing, locked while in use.")
    node_id: int = setting(
        -1,
        "This node's id, kept in the data directory from its first start on; -1 = the directory's, 0 in a new one.",
        between=(-1, INT32_MAX),
    )
    rack: str = setting("", "Rack or zone of this node; replicas of a partition are spread over racks.", name="broker.rack")

    cluster_name: str = setting("", "The cluster that this node belongs to; empty = a single node without a cluster.")
    coordination_servers: str = setting("", "The etcd that coordinates the cluster's nodes: etcd://HOST:PORT[,HOST:PORT].")
    broker_session_timeout_ms: int = setting(
        9_000,
        "A node that etcd has not heard from for this long is dead: its partitions get new leaders. Whole seconds only.",
        between=(2_000, 600_000),
    )
    coordination_ssl_ca_file: str = setting(
        "", "PEM file with the authorities that sign etcd's certificates; if set, etcd is reached by TLS only. Empty = plaintext."
    )
    coordination_ssl_certificate_file: str = setting("", "PEM file with this node's certificate for etcd, if etcd wants one.")
    coordination_ssl_key_file: str = setting("", "PEM file with that certificate's private key, without a passphrase.")
    cluster_ssl_ca_file: str = setting(
        "",
        "PEM file with the authorities that sign the other nodes' certificates; needed in a cluster with ssl.certificate.file, "
        "which nodes also show to each other.",
    )

    num_partitions: int = setting(1, "Partitions of a topic created without a partition count.", between=(1, 10_000))
    default_replication_factor: int = setting(
        1,
        "Replicas of each partition of a topic created without a replication factor, and of the coordinator's log. Set the same "
        "value on all nodes.",
        between=(1, REPLICAS_MAX),
    )
    min_insync_replicas: int = _default_of(
        "min.insync.replicas",
        " For the log of transactions and groups it is at least 2 (Kafka: transaction.state.log.min.isr).",
    )
    replica_lag_time_max_ms: int = setting(
        30_000, "A replica that has not caught up with its leader for this long leaves the in-sync set.", between=(1_000, INT32_MAX)
    )
    auto_create_topics: bool = setting(
        False,
        "Create unknown topics on first use (Kafka: true; a mistyped name should be an error).",
        name="auto.create.topics.enable",
    )
    log_segment_bytes: int = _default_of("segment.bytes")
    log_roll_ms: int = _default_of("segment.ms")
    log_index_interval_bytes: int = _default_of("index.interval.bytes")
    log_retention_ms: int = _default_of("retention.ms")
    log_retention_bytes: int = _default_of("retention.bytes")
    log_retention_check_interval_ms: int = setting(300_000, "How often retention is checked.", between=(1, INT64_MAX))
    message_max_bytes: int = _default_of("max.message.bytes")
    message_max_decompressed_bytes: int = setting(
        67_108_864,
        "Largest record batch accepted, by its size in a reader's memory: a few kilobytes on the wire can claim far more.",
        between=(1_024, 268_435_456),
    )
    log_message_timestamp_type: str = _default_of("message.timestamp.type")
    log_message_timestamp_after_max_ms: int = _default_of("message.timestamp.after.max.ms")
    log_checkpoint_interval_ms: int = setting(
        1_000, "Shortest time between two writes of the durable-end checkpoint.", between=(10, 60_000)
    )
    log_max_open_files: int = setting(
        4_096, "Segment files kept open; the least recently used are closed.", between=(16, 1_000_000)
    )
    log_max_dirty_bytes: int = setting(
        268_435_456, "Bytes appended but not yet flushed before producers are throttled.", between=(1_048_576, INT64_MAX)
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "A silent producer's sequence state is forgotten after this long.", between=(1, INT64_MAX)
    )

    fetch_max_wait_ms: int = setting(60_000, "Longest time that a fetch may wait for data.", between=(0, 3_600_000))
    fetch_max_bytes: int = setting(16_777_216, "Most bytes in one fetch response.", between=(1_024, 33_554_432))
    max_partitions_per_request: int = setting(2_000, "Partitions in one request.", between=(1, 100_000))
    max_topics: int = setting(10_000, "Most topics.", between=(1, 1_000_000))
    max_partitions: int = setting(50_000, "Most partitions over all topics.", between=(1, 1_000_000))
    max_partitions_per_topic: int = setting(10_000, "Partitions of one topic.", between=(1, 100_000))
    max_producer_ids: int = setting(
        100_000, "Producer ids remembered by one partition.", between=(1, 10_000_000), name="max.producer.ids.per.partition"
    )
    max_parked_partitions: int = setting(
        200_000,
        "Partitions in all parked fetches, half a kilobyte each; one principal may use four fifths of what others leave.",
        between=(1, 10_000_000),
    )
    max_connections: int = setting(
        10_000,
        "Connections open at the same time (Kafka: 2147483647); another one is closed at once, and its client retries. Health "
        "checks over gRPC count too: let probes use /health at metrics.port, so that a full broker is not taken for a dead one.",
        between=(1, 1_000_000),
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "A connection without calls is closed after this long; clients reconnect when they need to.",
        between=(1_000, INT32_MAX),
    )
    socket_request_max_bytes: int = setting(
        17_825_792,
        "Largest request (Kafka: 104857600). Each stream may hold that many bytes while it sends a request, before "
        "max.in.flight.bytes counts them. At least 1 MiB above message.max.bytes.",
        between=(1_049_600, GRPC_MAX_MESSAGE_BYTES),
    )
    max_memory_bytes: int = setting(
        0,
        "Memory use above which the broker closes its clients' connections; they connect again. 0 = half of "
        "the machine's (or of the lowest limit of its unit or container), or 128 MiB + max.in.flight.bytes + "
        "2 * max.fetch.bytes.in.flight if that is more, but at most 7/8. "
        "It covers memory that no other limit counts: set it well above their sum.",
        between=(0, INT64_MAX),
    )
    max_streams: int = setting(
        30_000,
        "Produce and fetch streams open at the same time. "
        "One principal (without principals, one connection) may use four fifths of what others leave.",
        between=(1, 1_000_000),
    )
    max_streams_per_connection: int = setting(
        100,
        "Calls and streams open at the same time on one connection. For more, brokerd's own clients open another connection, and "
        "other clients wait.",
        between=(100, 1_000_000),
    )
    max_producer_instances: int = setting(
        300_000,
        "Producer instances remembered for ten minutes past their last stream, to fence requests left in older streams; one "
        "principal "
        "may use four fifths of what others leave.",
        between=(1, 10_000_000),
    )
    max_transactional_ids: int = setting(
        100_000,
        "Transactional ids remembered with their last committed version; one principal may use four fifths of what others leave.",
        between=(1, 10_000_000),
    )
    max_open_members: int = setting(
        50_000,
        "Open members of all transactions, one for each task that writes; one principal may use four fifths of what others leave.",
        between=(1, 1_000_000),
    )
    transaction_max_timeout_ms: int = setting(
        3_600_000, "Longest transaction.timeout.ms that a producer may request (Kafka: 900000).", between=(1_000, INT32_MAX)
    )
    transaction_max_age_ms: int = setting(
        86_400_000,
        "A transaction open for this long (counted from the broker's start at the earliest) is aborted even if its members send "
        "heartbeats, since readers of committed records wait for it.",
        between=(1_000, INT64_MAX),
    )
    max_groups: int = setting(
        10_000, "Groups whose offsets are kept; one principal may use four fifths of what others leave.", between=(1, 1_000_000)
    )
    max_group_offsets: int = setting(
        200_000,
        "Offsets kept for all groups: one for each partition of a group, plus one for each 256 bytes of its metadata; one "
        "principal may use four fifths of what others leave.",
        between=(1, 10_000_000),
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "A group's offsets are kept this long after its last commit and its consumers' last poll, or up to a quarter longer.",
        between=(1, INT32_MAX),
    )
    max_in_flight_bytes: int = setting(
        134_217_728, "Bytes of produce requests held in memory over all streams.", between=(1_048_576, INT64_MAX)
    )
    max_fetch_bytes_in_flight: int = setting(
        134_217_728,
        "Bytes of fetch responses, over all streams, that are read but not yet written, which take twice as much memory, and of "
        "other large responses that are being written. "
        "Responses shrink as it fills, to one batch each beyond half of it; fetches wait once it is used up. "
        "One principal (without principals, one connection) may use four fifths of what others leave.",
        between=(1_048_576, INT64_MAX),
    )
    fetch_write_timeout_ms: int = setting(
        60_000,
        "The connection of a client that takes longer to read one large response is closed; the limit is one second while "
        "others wait for max.fetch.bytes.in.flight.",
        between=(100, 3_600_000),
    )
    shutdown_grace_ms: int = setting(5_000, "How long a stop waits for requests in progress.", between=(0, 600_000))

    ssl_certificate_file: str = setting(
        "", "PEM file with the broker's certificate chain; if set, only TLS is accepted. Empty = plaintext."
    )
    ssl_key_file: str = setting("", "PEM file with the certificate's private key, without a passphrase.")
    ssl_client_ca_file: str = setting(
        "", "PEM file with the authorities that sign client certificates, for ssl.client.auth = required."
    )
    ssl_client_auth: str = setting(
        "none", "Whether a client must present a certificate (mutual TLS).", choices=("none", "required")
    )
    auth_file: str = setting("", "TOML file with principals, their hashed tokens and rights; if set, every call needs a principal.")
    allow_unauthenticated: bool = setting(False, "Listen beyond loopback without authentication: anybody may do anything.")
    allow_plaintext_tokens: bool = setting(
        False, "Accept tokens beyond loopback without TLS (behind a proxy or a mesh that encrypts)."
    )
    metrics_port: int = setting(
        -1,
        "Port of Prometheus metrics (/metrics) and of health over HTTP (/health); -1 = off, 0 picks a free one.",
        between=(-1, 65_535),
    )
    metrics_host: str = setting("127.0.0.1", "Address of the metrics endpoint; it uses the broker's own TLS and tokens.")
    metrics_max_partitions: int = setting(
        1_000,
        "Partitions whose offsets and sizes are reported in the metrics; beyond that, only topic totals are reported.",
        between=(0, 100_000),
    )
    metrics_max_group_partitions: int = setting(
        1_000,
        "Partitions whose group offset and lag are reported in the metrics; shared between principals, oldest groups first.",
        between=(0, 100_000),
    )
    log_level: str = setting("info", "Least severity that is logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("text", "One line per event, as text or as a JSON object.", choices=("text", "json"))

    @property
    def largest_batch_bytes(self) -> int:
        """Largest max.message.bytes that a topic may have: a batch must fit into a request."""
        return self.socket_request_max_bytes - REQUEST_OVERHEAD_BYTES

    def topic_defaults(self) -> dict[str, Value]:
        """The broker-wide defaults of topic settings, by the setting's name in a topic."""
        specs = settings_of(BrokerConfig).values()
        return {spec.default_of: getattr(self, spec.field) for spec in specs if spec.default_of}


def check_broker(config: BrokerConfig) -> None:
    """Checks the rules between settings. Raises ConfigError naming the settings and the remedy."""
    if config.fetch_max_bytes + config.message_max_bytes >= GRPC_MAX_MESSAGE_BYTES:
        raise ConfigError(
            f"fetch.max.bytes ({config.fetch_max_bytes}) + message.max.bytes ({config.message_max_bytes}) must stay below "
            f"{GRPC_MAX_MESSAGE_BYTES}, the largest gRPC message: lower one of them"
        )
    if config.message_max_bytes > config.largest_batch_bytes:
        raise ConfigError(
            f"message.max.bytes ({config.message_max_bytes}) must be at least {REQUEST_OVERHEAD_BYTES} below "
            f"socket.request.max.bytes ({config.socket_request_max_bytes}), or its batches do not fit into a request: raise the "
            "latter"
        )
    if config.num_partitions > config.max_partitions_per_topic:
        raise ConfigError(
            f"num.partitions ({config.num_partitions}) must not exceed max.partitions.per.topic ({config.max_partitions_per_topic})"
        )
    if not config.data_dir:
        raise ConfigError("data.dir is empty: name the directory of all data")
    hosts = (("host", config.host), ("advertised.host", config.advertised_host), ("metrics.host", config.metrics_host))
    for name, host in hosts:
        if "/" in host or (":" in host and not _is_ip_address(host)):
            raise ConfigError(f"{name} must be a name or an address without a port, not '{host}': the port is {name[:-4]}port")
    _check_cluster(config)
    check_listening(config)


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def coordination_endpoints(text: str) -> list[str]:
    """The addresses, HOST:PORT, in the setting coordination.servers. Raises ConfigError."""
    addresses = [each.strip() for each in text.removeprefix(_ETCD).split(",")]
    if not text.startswith(_ETCD) or not all(_ADDRESS.fullmatch(each) for each in addresses):
        raise ConfigError(f"coordination.servers must be etcd://HOST:PORT, several separated by commas, not '{text}'")
    return addresses


def _check_cluster(config: BrokerConfig) -> None:
    if not config.cluster_name:
        if config.coordination_servers:
            raise ConfigError("coordination.servers is set and cluster.name is not: a cluster needs both (--cluster NAME)")
        return
    problem = cluster_name_problem(config.cluster_name)
    if problem is not None:
        raise ConfigError(f"cluster.name '{config.cluster_name[:100]}' cannot be a cluster's name: {problem}")
    if not config.coordination_servers:
        raise ConfigError(
            "cluster.name is set and coordination.servers is not: a cluster needs an etcd (--coordination etcd://HOST:PORT)"
        )
    coordination_endpoints(config.coordination_servers)
    if config.node_id < 0:
        raise ConfigError("cluster.name is set and node.id is not: each node of a cluster needs an id of its own (--node-id N)")
    if bool(config.coordination_ssl_certificate_file) != bool(config.coordination_ssl_key_file):
        raise ConfigError("coordination.ssl.certificate.file and coordination.ssl.key.file belong together: set both, or neither")
    if config.coordination_ssl_certificate_file and not config.coordination_ssl_ca_file:
        raise ConfigError("coordination.ssl.certificate.file needs TLS: set coordination.ssl.ca.file")
    if bool(config.ssl_certificate_file) != bool(config.cluster_ssl_ca_file):
        raise ConfigError(
            "ssl.certificate.file and cluster.ssl.ca.file belong together in a cluster: nodes call each other by TLS if clients do"
        )


def check_listening(config: BrokerConfig) -> None:
    """Checks the rules between the settings for listening, TLS and authentication. Raises ConfigError naming the remedy."""
    _check_tls(config)
    _check_exposed("host", config.host, config)
    if config.metrics_port >= 0:
        _check_exposed("metrics.host", config.metrics_host, config)


def _check_exposed(name: str, host: str, config: BrokerConfig) -> None:
    """Unless the operator allows it explicitly, a host that other machines can reach needs authentication, and tokens must not
    cross a network in plaintext. Raises ConfigError."""
    if is_loopback(host):
        return
    is_authenticated = bool(config.auth_file) or config.ssl_client_auth == "required"
    if not is_authenticated and not config.allow_unauthenticated:
        raise ConfigError(
            f"{name} = {host} can be reached from other machines, without authentication: set auth.file (tokens) or "
            "ssl.client.auth = required (certificates); or listen on 127.0.0.1; or, if anyone who reaches the port may "
            "read, write and delete everything, set allow.unauthenticated = true"
        )
    if config.auth_file and not config.ssl_certificate_file and not config.allow_plaintext_tokens:
        raise ConfigError(
            f"{name} = {host} can be reached from other machines, and tokens would cross the network in plaintext: set "
            "ssl.certificate.file and ssl.key.file; or, if a proxy or a mesh encrypts, set allow.plaintext.tokens = true"
        )


def _check_tls(config: BrokerConfig) -> None:
    if bool(config.ssl_certificate_file) != bool(config.ssl_key_file):
        given, missing = ("ssl.certificate.file", "ssl.key.file")
        if config.ssl_key_file:
            given, missing = missing, given
        raise ConfigError(f"{given} is set and {missing} is not: TLS needs both")
    if config.ssl_client_auth == "required":
        if not config.ssl_certificate_file:
            raise ConfigError("ssl.client.auth = required needs TLS: set ssl.certificate.file and ssl.key.file")
        if not config.ssl_client_ca_file:
            raise ConfigError(
                "ssl.client.auth = required needs ssl.client.ca.file, the authorities that sign clients' certificates"
            )
    elif config.ssl_client_ca_file:
        raise ConfigError("ssl.client.ca.file is set, but ssl.client.auth is none: set it to required, or leave the file out")


def checked_topic_config(config: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The effective settings of a topic that is being created or altered. Raises InvalidConfigError naming the setting."""
    topic = topic_config(overrides, config.topic_defaults())
    if topic.max_message_bytes > config.largest_batch_bytes:
        raise InvalidConfigError(
            f"max.message.bytes ({topic.max_message_bytes}) must be at least {REQUEST_OVERHEAD_BYTES} below the broker's "
            f"socket.request.max.bytes ({config.socket_request_max_bytes}), or its batches do not fit into a request"
        )
    return topic
