"""Advice about settings of Kafka's brokers and clients that brokerd does not have: for the error about an unknown name.

Names of librdkafka and kafka-python are among them. What a pipeline of Spark may bring, and is ignored or refused, is in
kafka_names.py.
"""

from __future__ import annotations

from typing import NamedTuple

_REMOVE = "remove it"
_ONE_NODE = f"there is one node and no replica: {_REMOVE}"
_NO_MEMBERS = f"groups have no members, a consumer is assigned its partitions: {_REMOVE}"
_NO_COMPACTION = f"topics are not compacted: {_REMOVE}"
_GRPC = f"gRPC has connections of its own: {_REMOVE}"
_TLS = "certificates are PEM files: ssl.certificate.file and ssl.key.file"
_BYTES = "keys and values are bytes: encode and decode them in your program, and remove it"
_ALWAYS_SYNCED = f"what is acknowledged with acks=all is on the disk, always: {_REMOVE}"
_LISTEN = "here host and port say where to listen, advertised.host and advertised.port what clients are told"
_PROCESSED = "records count as processed with the next poll; with enable.auto.commit=false your program commits"
_THREADS = f"threads need no tuning: {_REMOVE}"

# Setting -> the rest of a sentence.
_HINTS = {
    # Brokers.
    "listeners": _LISTEN,
    "advertised.listeners": _LISTEN,
    "listener.security.protocol.map": "TLS is on once ssl.certificate.file and ssl.key.file are set",
    "inter.broker.listener.name": _ONE_NODE,
    "log.dirs": "here it is data.dir",
    "log.dir": "here it is data.dir",
    "broker.id": "here it is node.id",
    "process.roles": _ONE_NODE,
    "min.insync.replicas": _ONE_NODE,
    "default.replication.factor": _ONE_NODE,
    "offsets.topic.replication.factor": _ONE_NODE,
    "unclean.leader.election.enable": _ONE_NODE,
    "log.retention.hours": "here it is log.retention.ms",
    "log.retention.minutes": "here it is log.retention.ms",
    "log.roll.hours": "here it is log.roll.ms",
    "log.segment.ms": "here it is log.roll.ms",
    "log.cleanup.policy": _NO_COMPACTION,
    "offsets.retention.hours": "here it is offsets.retention.minutes",
    "min.compaction.lag.ms": _NO_COMPACTION,
    "max.compaction.lag.ms": _NO_COMPACTION,
    "delete.retention.ms": _NO_COMPACTION,
    "delete.topic.enable": f"topics can always be deleted, by those whom auth.file allows it: {_REMOVE}",
    "num.network.threads": _THREADS,
    "num.io.threads": _THREADS,
    "background.threads": _THREADS,
    "num.recovery.threads.per.data.dir": _THREADS,
    "authorizer.class.name": "here auth.file says who may do what",
    "super.users": "here auth.file says who may do what",
    "allow.everyone.if.no.acl.found": "here auth.file says who may do what",
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
    "api.version.request": f"the client always asks what the broker can do: {_REMOVE}",
    "api.version": f"the client always asks what the broker can do: {_REMOVE}",
    "request.required.acks": "here it is acks",
    "compression.codec": "here it is compression.type",
    "message.timeout.ms": "here it is delivery.timeout.ms",
    "queue.buffering.max.ms": "here it is linger.ms",
    "queue.buffering.max.messages": "here buffer.memory limits what waits, in bytes",
    "queue.buffering.max.kbytes": "here buffer.memory limits what waits, in bytes",
    "batch.num.messages": "here batch.size limits a batch, in bytes",
    "message.send.max.retries": "here it is retries",
    "fetch.message.max.bytes": "here it is max.partition.fetch.bytes",
    "fetch.wait.max.ms": "here it is fetch.max.wait.ms",
    "socket.timeout.ms": "here it is request.timeout.ms",
    "consumer.timeout.ms": "an iteration goes on until close(), and poll(timeout_ms=...) returns after its time without records",
    "statistics.interval.ms": "Producer.metrics() returns what a client counts, /metrics what the broker does",
    "enable.partition.eof": "end_offsets says where a partition ends",
    "ssl.certfile": "here it is ssl.certificate.file",
    "ssl.ca.location": "here it is ssl.ca.file",
    "ssl.certificate.location": "here it is ssl.certificate.file",
    "ssl.key.location": "here it is ssl.key.file",
    "ssl.truststore.location": "certificates are PEM files: ssl.ca.file",
    "ssl.keystore.location": _TLS,
}
# The same for all other names with this prefix; the longest that fits.
_FAMILIES = {
    "zookeeper.": _ONE_NODE,
    "controller.": _ONE_NODE,
    "replica.": _ONE_NODE,
    "leader.": _ONE_NODE,
    "transaction.state.log.": _ONE_NODE,
    "log.flush.": _ALWAYS_SYNCED,
    "log.cleaner.": _NO_COMPACTION,
    "flush.": _ALWAYS_SYNCED,
    "group.": _NO_MEMBERS,
    "socket.": _GRPC,
    "broker.address.": _GRPC,
    "sasl.": "here clients show a token (auth.token.file) or a certificate (ssl.certificate.file and ssl.key.file), and the "
    "broker's auth.file says whose they are",
    "ssl.": "TLS is gRPC's own, with PEM files: ssl.ca.file, ssl.certificate.file, ssl.key.file",
}


class KafkaHint(NamedTuple):
    """The rest of a sentence about a setting that brokerd does not have; None if nothing is known."""

    of_name: str | None  # it is a setting of Kafka or librdkafka
    of_family: str | None  # its name begins like settings of theirs


def kafka_hint(name: str) -> KafkaHint:
    """All that is known about a name, given in lower case."""
    fitting = [family for family in _FAMILIES if name.startswith(family)]
    return KafkaHint(_HINTS.get(name), _FAMILIES[max(fitting, key=len)] if fitting else None)
