"""Kafka's settings that brokerd does not have, and how each is handled.

A Spark source or sink ignores settings that only tune machinery which brokerd's client lacks: the rows are the same without them.
It refuses settings whose promise would not hold (identity, encryption, treatment of rows), with the reason and the remedy.
Elsewhere, the error about an unknown name gives the replacement; its table covers Kafka's brokers and clients, librdkafka and
kafka-python.
"""

from __future__ import annotations

# Settings that only tune machinery which brokerd's client lacks.
_GROUPS = """
    group.instance.id group.protocol group.remote.assignor partition.assignment.strategy session.timeout.ms heartbeat.interval.ms
    max.poll.interval.ms max.poll.records auto.commit.interval.ms internal.leave.group.on.close
    internal.throw.on.fetch.stable.offset.unsupported share.acknowledgement.mode
"""
_CONNECTIONS = """
    send.buffer.bytes receive.buffer.bytes connections.max.idle.ms socket.connection.setup.timeout.ms
    socket.connection.setup.timeout.max.ms client.dns.lookup client.rack metadata.recovery.strategy
    metadata.recovery.rebootstrap.trigger.ms
"""
_REPORTS = """
    enable.metrics.push metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    auto.include.jmx.reporter
"""
_TOPICS = "allow.auto.create.topics exclude.internal.topics"
_PRODUCER = """
    compression.gzip.level compression.lz4.level compression.zstd.level partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms
"""
PASSED_OVER = frozenset((_GROUPS + _CONNECTIONS + _REPORTS + _TOPICS + _PRODUCER).split())

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
# The same for all names with a prefix.
REFUSED_FAMILIES = {
    "sasl.": "brokerd identifies clients by a token or a certificate: set auth.token.file, or ssl.certificate.file and "
    "ssl.key.file",
    "ssl.truststore.": _STORE,
    "ssl.keystore.": _STORE,
    "ssl.": "TLS is gRPC's own; use ssl.ca.file, ssl.certificate.file and ssl.key.file, all PEM files",
}
# Values that Kafka accepts and brokerd does not, for settings that both have.
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
    """Why a setting of Kafka's clients (lower case, without prefix) is refused, as the rest of a sentence, or None if it is not."""
    reason = REFUSED.get(setting)
    if reason is not None:
        return reason
    return next((reason for family, reason in REFUSED_FAMILIES.items() if setting.startswith(family)), None)


_REMOVE = "remove it"
_ETCD = f"nodes agree through etcd (cluster.name, coordination.servers): {_REMOVE}"
_FOLLOWERS = f"of copies, replica.lag.time.max.ms alone can be set: {_REMOVE}"
_NO_MEMBERS = f"groups have no members, a consumer is assigned its partitions: {_REMOVE}"
_NO_COMPACTION = f"topics are not compacted: {_REMOVE}"
_GRPC = f"gRPC has connections of its own: {_REMOVE}"
_TLS = "certificates are PEM files: ssl.certificate.file and ssl.key.file"
_BYTES = "keys and values are bytes: encode and decode them in your program, and remove it"
_ALWAYS_SYNCED = f"with acks=all every acknowledged record is on disk: {_REMOVE}"
_LISTEN = "set host and port to listen on, advertised.host and advertised.port for clients"
_PROCESSED = "records count as processed with the next poll; with enable.auto.commit=false your program commits"
_THREADS = f"threads need no tuning: {_REMOVE}"

# Setting -> the rest of a sentence.
_HINTS = {
    # Brokers.
    "listeners": _LISTEN,
    "advertised.listeners": _LISTEN,
    "listener.security.protocol.map": "TLS is on once ssl.certificate.file and ssl.key.file are set",
    "inter.broker.listener.name": _ETCD,
    "log.dirs": "here it is data.dir",
    "log.dir": "here it is data.dir",
    "broker.id": "here it is node.id",
    "process.roles": _ETCD,
    "offsets.topic.replication.factor": "here it is default.replication.factor",
    "transaction.state.log.replication.factor": "here it is default.replication.factor",
    "transaction.state.log.min.isr": "here it is min.insync.replicas",
    "unclean.leader.election.enable": f"only 'brokerd cluster elect-unclean' elects a replica that is not in sync: {_REMOVE}",
    "replica.lag.time.max.ms": "it is a setting of the broker, as in Kafka, and holds for all topics",
    "log.retention.hours": "here it is log.retention.ms",
    "log.retention.minutes": "here it is log.retention.ms",
    "log.roll.hours": "here it is log.roll.ms",
    "log.segment.ms": "here it is log.roll.ms",
    "log.cleanup.policy": _NO_COMPACTION,
    "offsets.retention.hours": "here it is offsets.retention.minutes",
    "min.compaction.lag.ms": _NO_COMPACTION,
    "max.compaction.lag.ms": _NO_COMPACTION,
    "delete.retention.ms": _NO_COMPACTION,
    "delete.topic.enable": f"topics can always be deleted, by principals with that right in auth.file: {_REMOVE}",
    "num.network.threads": _THREADS,
    "num.io.threads": _THREADS,
    "background.threads": _THREADS,
    "num.recovery.threads.per.data.dir": _THREADS,
    "authorizer.class.name": "set the rights of principals in auth.file",
    "super.users": "set the rights of principals in auth.file",
    "allow.everyone.if.no.acl.found": "set the rights of principals in auth.file",
    # Clients.
    "max.poll.interval.ms": _NO_MEMBERS,
    "session.timeout.ms": _NO_MEMBERS,
    "heartbeat.interval.ms": _NO_MEMBERS,
    "partition.assignment.strategy": _NO_MEMBERS,
    "enable.auto.offset.store": _PROCESSED,
    "auto.offset.store.enable": _PROCESSED,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "interceptor.classes": f"there are no interceptors: {_REMOVE}",
    "partitioner.class": "partition= of send chooses it, else the key does as with Kafka's Java client",
    "partitioner": "partition= of send chooses it, else the key does as with Kafka's Java client",
    "metadata.broker.list": "here it is bootstrap.servers",
    "api.version.request": f"the client always asks for the broker's version: {_REMOVE}",
    "api.version": f"the client always asks for the broker's version: {_REMOVE}",
    "request.required.acks": "here it is acks",
    "compression.codec": "here it is compression.type",
    "message.timeout.ms": "here it is delivery.timeout.ms",
    "queue.buffering.max.ms": "here it is linger.ms",
    "queue.buffering.max.messages": "buffer.memory limits unsent records, in bytes",
    "queue.buffering.max.kbytes": "buffer.memory limits unsent records, in bytes",
    "batch.num.messages": "here batch.size limits a batch, in bytes",
    "message.send.max.retries": "here it is retries",
    "fetch.message.max.bytes": "here it is max.partition.fetch.bytes",
    "fetch.wait.max.ms": "here it is fetch.max.wait.ms",
    "socket.timeout.ms": "here it is request.timeout.ms",
    "consumer.timeout.ms": "an iteration runs until close(), and poll(timeout_ms=...) returns after its timeout",
    "statistics.interval.ms": "Producer.metrics() returns what a client counts, /metrics what the broker does",
    "enable.partition.eof": "use end_offsets for the end of a partition",
    "ssl.certfile": "here it is ssl.certificate.file",
    "ssl.ca.location": "here it is ssl.ca.file",
    "ssl.certificate.location": "here it is ssl.certificate.file",
    "ssl.key.location": "here it is ssl.key.file",
    "ssl.truststore.location": "certificates are PEM files: ssl.ca.file",
    "ssl.keystore.location": _TLS,
}
# The same for all other names with a prefix; the longest match wins.
_FAMILIES = {
    "zookeeper.": _ETCD,
    "controller.": _ETCD,
    "replica.": _FOLLOWERS,
    "leader.": _FOLLOWERS,
    "transaction.state.log.": _FOLLOWERS,
    "log.flush.": _ALWAYS_SYNCED,
    "log.cleaner.": _NO_COMPACTION,
    "flush.": _ALWAYS_SYNCED,
    "group.": _NO_MEMBERS,
    "socket.": _GRPC,
    "broker.address.": _GRPC,
    "sasl.": "clients authenticate with a token (auth.token.file) or a certificate (ssl.certificate.file and ssl.key.file); the "
    "broker's auth.file maps them to principals",
    "ssl.": "TLS is gRPC's own, with PEM files: ssl.ca.file, ssl.certificate.file, ssl.key.file",
}


def kafka_hint(name: str) -> tuple[str | None, str | None]:
    """Hints about a setting that brokerd does not have, given in lower case, each the rest of a sentence, or None: for exactly this
    setting, and for all with its prefix."""
    fitting = [family for family in _FAMILIES if name.startswith(family)]
    return _HINTS.get(name), _FAMILIES[max(fitting, key=len)] if fitting else None
