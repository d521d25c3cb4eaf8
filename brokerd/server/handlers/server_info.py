"""GetServerInfo: versions, features and limits.

Behaviour
- Also works during shutdown. A client checks it before it relies on a feature.
"""

from __future__ import annotations

import brokerd
from brokerd.record.header import MAGIC, PAYLOAD_KIND_ARROW
from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.handlers.produce import WAITING_REQUESTS_MAX
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.delayed_produce import WAIT_MAX_MS
from brokerd.wire.v1 import metadata_pb2

WIRE_VERSION = 1
FEATURES = (
    "delete_records",
    "group_offsets",
    "idempotence",
    "long_poll",
    "offset_after_bytes",
    "read_committed",
    "transaction_offsets",
    "transactions",
)
_LIMITS = (
    ("message.max.bytes", "message_max_bytes"),
    ("fetch.max.bytes", "fetch_max_bytes"),
    ("fetch.max.wait.ms", "fetch_max_wait_ms"),
    ("socket.request.max.bytes", "socket_request_max_bytes"),
    ("max.partitions.per.request", "max_partitions_per_request"),
    ("max.partitions.per.topic", "max_partitions_per_topic"),
    ("max.streams.per.connection", "max_streams_per_connection"),
    ("transaction.max.timeout.ms", "transaction_max_timeout_ms"),
)
_CONSTANTS = (("produce.max.wait.ms", WAIT_MAX_MS), ("max.in.flight.requests.per.stream", WAITING_REQUESTS_MAX))
_SOFTWARE_MAX_CHARACTERS = 255


def check(request: metadata_pb2.GetServerInfoRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    if len(request.client_software) > _SOFTWARE_MAX_CHARACTERS:
        raise malformed(
            "client_software", f"has {len(request.client_software)} characters, at most {_SOFTWARE_MAX_CHARACTERS} are allowed"
        )


async def handle(
    broker: Broker, _authorizer: TopicAuthorizer, _request: metadata_pb2.GetServerInfoRequest
) -> metadata_pb2.GetServerInfoResponse:
    """The server's version, features and limits."""
    settings = [(name, getattr(broker.config, attribute)) for name, attribute in _LIMITS]
    return metadata_pb2.GetServerInfoResponse(
        cluster_id=broker.logs.cluster_id,
        node_id=broker.logs.node_id,
        software_version=brokerd.__version__,
        min_wire_version=WIRE_VERSION,
        max_wire_version=WIRE_VERSION,
        record_batch_versions=[MAGIC],
        payload_kinds=[PAYLOAD_KIND_ARROW],
        features=FEATURES,
        limits=[metadata_pb2.Limit(name=name, value=value) for name, value in (*settings, *_CONSTANTS)],
    )
