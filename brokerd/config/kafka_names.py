"""Settings of Kafka's clients that a ported pipeline may bring and brokerd does not have: each one is ignored or refused.

Ignored are settings that only tune machinery which brokerd's client does not have: the rows are the same without them. Refused,
with the reason and the remedy, are settings whose promise would not hold here: the client's identity, encryption, what happens to
the rows.
"""

from __future__ import annotations

# Consumer groups: the source decides where it reads, so there are no groups to join.
_GROUPS = (
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "auto.commit.interval.ms",
    "internal.leave.group.on.close",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "share.acknowledgement.mode",
)
# Sockets, name resolution and broker discovery: gRPC has its own.
_CONNECTIONS = (
    "send.buffer.bytes",
    "receive.buffer.bytes",
    "connections.max.idle.ms",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "client.dns.lookup",
    "client.rack",
    "metadata.recovery.strategy",
    "metadata.recovery.rebootstrap.trigger.ms",
)
# Client telemetry.
_REPORTS = (
    "enable.metrics.push",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "auto.include.jmx.reporter",
)
# Reads never create topics, and internal topics never match a pattern.
_TOPICS = ("allow.auto.create.topics", "exclude.internal.topics")
# The effort of a codec, and the partition of a record without a key.
_PRODUCER = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
)
PASSED_OVER = frozenset((*_GROUPS, *_CONNECTIONS, *_REPORTS, *_TOPICS, *_PRODUCER))

_NO_TWO_PHASES = "the broker itself remembers what is committed, and a commit may be repeated: leave it out"
_NO_JAVA = "Java classes cannot be loaded"
_STORE = (
    "certificates are PEM files: set ssl.ca.file to trust a broker, ssl.certificate.file and ssl.key.file to identify this client"
)

# Setting -> the rest of a sentence: why it is refused, and what to do instead.
REFUSED = {
    "key.serializer": "keys are written unchanged: cast the key column to string or binary",
    "value.serializer": "values are written unchanged: cast the value column to string or binary",
    "key.deserializer": "keys are read as binary: cast the key column in the query",
    "value.deserializer": "values are read as binary: cast the value column in the query",
    "interceptor.classes": "there are no interceptors: change the rows in the query",
    "partitioner.class": f"{_NO_JAVA}; a column 'partition' chooses the partition of each row, else its key does, as in Kafka",
    "transaction.two.phase.commit.enable": _NO_TWO_PHASES,
    "security.providers": f"{_NO_JAVA}; TLS is gRPC's own",
    "auto.offset.reset": "a query starts at startingOffsets, and afterwards at its checkpoint",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "config.providers": f"{_NO_JAVA}; auth.token.file keeps a secret out of the options",
    "ssl.endpoint.identification.algorithm": "the broker's name is always checked against its certificate",
    "ssl.key.password": "ssl.key.file is a private key without a passphrase, readable by its owner alone",
}
# The same, for all names with this prefix.
REFUSED_FAMILIES = {
    "sasl.": "brokerd identifies clients by a token or a certificate: set auth.token.file, or ssl.certificate.file and "
    "ssl.key.file",
    "ssl.truststore.": _STORE,
    "ssl.keystore.": _STORE,
    "ssl.": "TLS is gRPC's own; use ssl.ca.file, ssl.certificate.file and ssl.key.file, all PEM files",
}
# Values that Kafka knows and brokerd does not, of settings that both have.
REFUSED_VALUES = {
    ("security.protocol", "sasl_ssl"): (
        "set security.protocol=SSL, and authenticate with auth.token.file, or with ssl.certificate.file and ssl.key.file"
    ),
    ("security.protocol", "sasl_plaintext"): (
        "a token needs TLS beyond this machine: set security.protocol=SSL and auth.token.file"
    ),
    ("compression.type", "gzip"): "the codecs are Arrow's own: lz4 (fast) and zstd (small)",
    ("compression.type", "snappy"): "the codecs are Arrow's own: lz4 (fast) and zstd (small)",
}


def why_refused(setting: str) -> str | None:
    """The rest of a sentence that says why a setting of Kafka's clients (lower case, without prefix) is refused, or None if it is
    not refused."""
    reason = REFUSED.get(setting)
    if reason is not None:
        return reason
    return next((reason for family, reason in REFUSED_FAMILIES.items() if setting.startswith(family)), None)
