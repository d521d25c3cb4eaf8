"""Names of Kafka's clients that a ported pipeline may bring and brokerd has no setting for: each is passed over or refused.

Passed over is what only tunes machinery that brokerd's client does not have: the rows are the same without it. Refused, with
the reason and what to do instead, is what promises something that would not hold here: who the client is, how it is
encrypted, what becomes of the rows.
"""

from __future__ import annotations

# Consumer groups: offsets are in Spark's checkpoint, as with Spark's Kafka connector, and there are no groups to join.
_GROUPS = (
    "group.id",
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
# Sockets, name look-up and the finding of brokers: gRPC has its own.
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
# Reports about the client, to whoever wants them.
_REPORTS = (
    "enable.metrics.push",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "auto.include.jmx.reporter",
)
# Topics are never created by a read, and internal ones never match a pattern.
_TOPICS = ("allow.auto.create.topics", "exclude.internal.topics")
# How hard a codec works, and which partition a record without a key goes to.
_PRODUCER = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "transaction.timeout.ms",
)
PASSED_OVER = frozenset((*_GROUPS, *_CONNECTIONS, *_REPORTS, *_TOPICS, *_PRODUCER))

_NO_TRANSACTIONS = "transactions are not supported yet, and the sink is at-least-once across Spark's own retries"
_NO_JAVA = "no Java class can be loaded here"
_STORE = "certificates are PEM files here: ssl.ca.file for whom to trust, ssl.certificate.file and ssl.key.file for who this is"

# Setting -> the rest of a sentence that says why it is refused, and what to do instead.
REFUSED = {
    "key.serializer": "keys are written as they are: cast the key column to string or binary",
    "value.serializer": "values are written as they are: cast the value column to string or binary",
    "key.deserializer": "keys are read as binary: cast the key column in the query",
    "value.deserializer": "values are read as binary: cast the value column in the query",
    "interceptor.classes": "there are no interceptors: change the rows in the query",
    "partitioner.class": f"{_NO_JAVA}; a column 'partition' chooses the partition of each row, else its key does, as in Kafka",
    "transactional.id": _NO_TRANSACTIONS,
    "transaction.two.phase.commit.enable": _NO_TRANSACTIONS,
    "security.providers": f"{_NO_JAVA}; TLS is gRPC's own",
    "auto.offset.reset": "a query starts at startingOffsets, and later at its own checkpoint",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "config.providers": f"{_NO_JAVA}; auth.token.file keeps a secret out of the options",
    "ssl.endpoint.identification.algorithm": "the broker's name is always checked against its certificate",
    "ssl.key.password": "ssl.key.file is a private key without a passphrase, readable by its owner alone",
}
# The same for all names that begin so.
REFUSED_FAMILIES = {
    "sasl.": "brokerd knows clients by a token or by a certificate: set auth.token.file, or ssl.certificate.file and ssl.key.file",
    "ssl.truststore.": _STORE,
    "ssl.keystore.": _STORE,
    "ssl.": "TLS is gRPC's own; there are ssl.ca.file, ssl.certificate.file and ssl.key.file, all of them PEM files",
}
# Values of settings that exist here too, which Kafka knows and brokerd does not.
REFUSED_VALUES = {
    ("security.protocol", "sasl_ssl"): (
        "set security.protocol=SSL, and say who you are with auth.token.file, or with ssl.certificate.file and ssl.key.file"
    ),
    ("security.protocol", "sasl_plaintext"): (
        "a token needs TLS beyond this machine: set security.protocol=SSL and auth.token.file"
    ),
    ("compression.type", "gzip"): "the codecs are Arrow's own: lz4 (fast) and zstd (small)",
    ("compression.type", "snappy"): "the codecs are Arrow's own: lz4 (fast) and zstd (small)",
}


def why_refused(setting: str) -> str | None:
    """The rest of a sentence that says why a setting of Kafka's clients (in lower case, without prefix) is refused; None if it
    is not one of those."""
    reason = REFUSED.get(setting)
    if reason is not None:
        return reason
    return next((reason for family, reason in REFUSED_FAMILIES.items() if setting.startswith(family)), None)
