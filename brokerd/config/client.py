"""Settings of clients: shared, the producer's, the consumer's. Names and defaults are Kafka's where Kafka has them; the
description of a setting notes a different default. `producer_config` and `check_producer` check the rules between settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from brokerd.config.settings import INT32_MAX, INT64_MAX, from_mapping, is_number, setting
from brokerd.errors import ConfigError
from brokerd.ids import TRANSACTIONAL_ID_MAX_LENGTH

DEFAULT_PORT = 9192
GRPC_MAX_MESSAGE_BYTES = 41_943_040  # of clients and brokers


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings that every client needs to reach a broker."""

    LISTED: ClassVar[str] = "docs/reference/settings-clients.md lists them all"

    bootstrap_servers: str = setting(f"127.0.0.1:{DEFAULT_PORT}", "Comma-separated host:port list of brokers to contact.")
    security_protocol: str = setting(
        "PLAINTEXT",
        "SSL = TLS, with the broker's certificate checked; it never falls back to PLAINTEXT.",
        choices=("PLAINTEXT", "SSL"),
    )
    ssl_ca_file: str = setting("", "PEM file with the authorities that may sign the broker's certificate; empty = the public ones.")
    ssl_certificate_file: str = setting("", "PEM file with this client's certificate, for mutual TLS.")
    ssl_key_file: str = setting("", "PEM file with the private key of ssl.certificate.file, without a passphrase.")
    auth_token: str = setting("", "Token that identifies this client; auth.token.file keeps it off command lines.", is_secret=True)
    auth_token_file: str = setting("", "File with the token, read again for each connection and stream.")
    auth_allow_plaintext: bool = setting(
        False, "Send the token beyond loopback without TLS (behind a proxy or a mesh that encrypts)."
    )
    client_id: str = setting("", "Free text: names the owner of its transactions in `brokerd transactions list`.")
    request_timeout_ms: int = setting(
        30_000, "How long one request may take before its fate counts as unknown and it is retried.", between=(1, INT32_MAX)
    )
    api_timeout_ms: int = setting(
        60_000,
        "How long a call (metadata, offsets, topics) may take, retries included.",
        between=(1, INT32_MAX),
        name="default.api.timeout.ms",
    )
    retry_backoff_ms: int = setting(100, "First wait before a retry; doubles each time, with jitter.", between=(0, INT32_MAX))
    retry_backoff_max_ms: int = setting(1_000, "Longest wait before a retry.", between=(0, INT32_MAX))
    reconnect_backoff_ms: int = setting(50, "First wait before reconnecting.", between=(0, INT32_MAX))
    reconnect_backoff_max_ms: int = setting(1_000, "Longest wait before reconnecting.", between=(0, INT32_MAX))
    metadata_max_age_ms: int = setting(300_000, "Metadata older than this is fetched again.", between=(0, INT64_MAX))


@dataclass(frozen=True, slots=True)
class ProducerConfig(ClientConfig):
    """Settings of the producer, shared by plain Python, the command line and the Spark sink."""

    acks: str = setting(
        "all", "When a record counts as written: flushed to disk (all), appended (1), or sent (0).", choices=("all", "-1", "1", "0")
    )
    enable_idempotence: bool = setting(True, "Retries never duplicate and never reorder; needs acks=all.")
    max_in_flight_requests: int = setting(
        5, "Requests sent but not yet answered on one connection.", between=(1, 5), name="max.in.flight.requests.per.connection"
    )
    max_in_flight_batches: int = setting(
        1,
        "Batches of one partition sent but not yet answered: 1 mutes the partition while one is in flight, 2-5 order by sequence "
        "(not in Kafka).",
        between=(1, 5),
        name="max.in.flight.batches.per.partition",
    )
    linger_ms: int = setting(
        5, "How long a batch waits for more records (the Spark sink's default is 100).", between=(0, INT32_MAX)
    )
    batch_size: int = setting(
        1_048_576, "A batch closes at this many bytes (Kafka: 16384; Arrow batches want more).", between=(1, INT32_MAX)
    )
    buffer_memory: int = setting(67_108_864, "Bytes that unsent records may hold before send blocks.", between=(1, INT64_MAX))
    max_block_ms: int = setting(
        60_000, "How long send waits for metadata or buffer memory, and a transaction waits to begin.", between=(0, INT32_MAX)
    )
    metadata_max_idle_ms: int = setting(
        300_000,
        "The metadata of a topic unused for this long is dropped, and fetched again when needed.",
        between=(5_000, INT64_MAX),
    )
    max_request_size: int = setting(8_388_608, "Bytes of one request (Kafka: 1048576).", between=(1, INT32_MAX))
    delivery_timeout_ms: int = setting(
        120_000, "How long a record may take from send to its response, retries included.", between=(1, INT32_MAX)
    )
    retries: int = setting(
        INT32_MAX, "How often a batch is retried; delivery.timeout.ms is the usual limit.", between=(0, INT32_MAX)
    )
    compression_type: str = setting("none", "How the record payload is compressed.", choices=("none", "lz4", "zstd"))
    transactional_id: str = setting(
        "",
        "Names the transactions of a producer, across its restarts: records are then sent inside transactions only; empty = none.",
    )
    transaction_timeout_ms: int = setting(
        900_000, "The broker aborts a transaction without heartbeats for this long (Kafka: 60000).", between=(1_000, INT32_MAX)
    )
    partitioner_ignore_keys: bool = setting(False, "Spread records with a key as if they had none.")


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ClientConfig):
    """Settings for reading: all that the command line and the Spark source use."""

    fetch_min_bytes: int = setting(1, "The broker answers a fetch once this many bytes are available.", between=(0, INT32_MAX))
    fetch_max_wait_ms: int = setting(500, "The broker answers a fetch after at most this long.", between=(0, INT32_MAX))
    fetch_max_bytes: int = setting(
        16_777_216,
        "Most bytes in one response; its first batch is returned even if larger (Kafka: 52428800).",
        between=(1, INT32_MAX),
    )
    max_partition_fetch_bytes: int = setting(
        4_194_304, "Most bytes of one partition in one response (Kafka: 1048576).", between=(1, INT32_MAX)
    )
    isolation_level: str = setting(
        "read_committed",
        "Whether records of open and aborted transactions are returned.",
        choices=("read_committed", "read_uncommitted"),
    )
    check_crcs: bool = setting(True, "Check the CRC32C of every batch read.")
    max_decompressed_bytes: int = setting(
        268_435_456, "Largest batch, after decompression, that a reader allocates (not in Kafka).", between=(1, INT64_MAX)
    )
    skip_corrupt_batches: bool = setting(
        False,
        "Skip unreadable data with a warning that names its offsets: a batch that arrived intact but cannot be decoded, "
        "and damage after which the log continues (not in Kafka).",
    )


@dataclass(frozen=True, slots=True)
class PlainConsumerConfig(ConsumerConfig):
    """Settings of the plain Python Consumer: reading, its starting position and its commits."""

    group_id: str = setting(
        "",
        "Names the group under which the broker keeps committed offsets; empty = none. The consumer assigns its partitions itself.",
    )
    auto_offset_reset: str = setting(
        "latest",
        "Where reading begins without a committed offset, or if the offset is not in the log; none = an error.",
        choices=("earliest", "latest", "none"),
    )
    enable_auto_commit: bool = setting(
        True,
        "With group.id: poll and close commit offsets. Records count as processed once the next ones are requested; Kafka's close "
        "also commits those of the last poll.",
    )
    auto_commit_interval_ms: int = setting(5_000, "How often poll commits offsets.", between=(0, INT32_MAX))
    max_poll_records: int = setting(500, "Most records that one poll returns.", between=(1, INT32_MAX))


def parse_bootstrap_servers(text: str) -> tuple[str, ...]:
    """The addresses in a comma-separated host:port list. Raises ConfigError naming an invalid entry."""
    addresses = tuple(entry.strip() for entry in text.split(",") if entry.strip())
    if not addresses:
        raise ConfigError("bootstrap.servers is empty: give one or more host:port, separated by commas")
    for address in addresses:
        host, _, port = address.rpartition(":")
        is_plain_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
        is_port = is_number(port, 65_535) and port[0] != "0"
        if not host or "/" in address or is_plain_ipv6 or not is_port:
            raise ConfigError(
                f"bootstrap.servers must be host:port, with a port from 1 to 65535 (several separated by commas), not '{address}'"
            )
    return addresses


def producer_config(given: Mapping[str, object], *, where: str = "") -> ProducerConfig:
    """Builds a checked ProducerConfig from settings by name. Raises ConfigError.

    As in Kafka, explicit acks or retries that contradict idempotence switch it off, or are an error if enable.idempotence is set
    explicitly. Unless it is given, delivery.timeout.ms is raised to linger.ms + request.timeout.ms.
    """
    config = from_mapping(ProducerConfig, given, where=where)
    if len(config.transactional_id) > TRANSACTIONAL_ID_MAX_LENGTH or not config.transactional_id.isprintable():
        raise ConfigError(
            f"transactional.id {config.transactional_id[:TRANSACTIONAL_ID_MAX_LENGTH]!a} must have at most "
            f"{TRANSACTIONAL_ID_MAX_LENGTH} characters that can be printed, it has {len(config.transactional_id)} characters"
        )
    conflict = transaction_conflict(config) if config.transactional_id else None
    if conflict:
        raise ConfigError(f"transactional.id needs {conflict}; change it, or remove transactional.id")
    if config.enable_idempotence:
        conflict = _idempotence_conflict(config)
        if conflict:
            if "enable.idempotence" in given:
                raise ConfigError(f"enable.idempotence=true needs {conflict}; change it, or set enable.idempotence=false")
            config = from_mapping(ProducerConfig, {**given, "enable.idempotence": False}, where=where)
    least_ms = min(config.linger_ms + config.request_timeout_ms, INT32_MAX)
    if config.delivery_timeout_ms < least_ms and "delivery.timeout.ms" not in given:
        config = replace(config, delivery_timeout_ms=least_ms)
    check_producer(config)
    return config


def check_producer(config: ProducerConfig) -> None:
    """Checks the rules on sizes and timeouts. Raises ConfigError naming the settings."""
    if config.batch_size > config.max_request_size:
        raise ConfigError(
            f"batch.size ({config.batch_size}) must not exceed max.request.size ({config.max_request_size}): "
            "lower the first or raise the second"
        )
    if config.delivery_timeout_ms < min(config.linger_ms + config.request_timeout_ms, INT32_MAX):
        raise ConfigError(
            f"delivery.timeout.ms ({config.delivery_timeout_ms}) must be at least linger.ms + request.timeout.ms "
            f"({config.linger_ms} + {config.request_timeout_ms}): raise it, or lower request.timeout.ms"
        )


def transaction_conflict(config: ProducerConfig) -> str | None:
    """What a transaction needs that this configuration lacks, as the end of a sentence, or None."""
    if not config.enable_idempotence and not _idempotence_conflict(config):
        return "enable.idempotence=true"
    return _idempotence_conflict(config)


def _idempotence_conflict(config: ProducerConfig) -> str | None:
    if config.acks not in ("all", "-1"):
        return f"acks=all, not acks={config.acks}"
    if config.retries == 0:
        return "retries above 0, not retries=0"
    return None


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`. Names other than localhost count as reachable from elsewhere, since their
    resolution may change."""
    host = host.strip().strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
