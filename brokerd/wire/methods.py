"""Names and types of the service's methods, in the order of broker.proto. The two streams carry raw bytes, which records.py encodes
and decodes."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from brokerd.wire.v1 import broker_pb2

SERVICE = "brokerd.wire.v1.Broker"
PRODUCE = f"/{SERVICE}/Produce"
FETCH = f"/{SERVICE}/Fetch"
# Largest unary request: two bytes of an empty submessage become about seventy when parsed.
UNARY_REQUEST_MAX_BYTES = 2_097_152
# Largest response that a client reads, for the same reason. The exceptions have room for some hundred thousand partitions, the
# settings of all topics with their documentation, or the metadata of a thousand offsets.
UNARY_RESPONSE_MAX_BYTES = 2_097_152
UNARY_RESPONSES_MAX_BYTES = {
    "Metadata": 8_388_608,
    "DescribeTopics": 33_554_432,
    "FetchGroupOffsets": 8_388_608,
    "DescribeGroup": 8_388_608,
}
STREAMS = ("Produce", "Fetch")
# Methods of transactions, producer ids and groups: in a cluster, only the coordinator answers them.
OF_COORDINATOR = frozenset(
    {
        "AbortTransaction",
        "CommitGroupOffsets",
        "DeleteGroup",
        "DescribeGroup",
        "DescribeTransaction",
        "EndTransaction",
        "FetchGroupOffsets",
        "FindHangingTransactions",
        "ForgetTransactionalId",
        "Heartbeat",
        "InitProducerId",
        "ListGroups",
        "ListTransactions",
    }
)


class Unary(NamedTuple):
    """A unary method's name, request and response."""

    name: str
    request: type[Message]
    response: type[Message]

    @property
    def path(self) -> str:
        """The method's path in gRPC."""
        return f"/{SERVICE}/{self.name}"


UNARY: dict[str, Unary] = {
    method.name: Unary(method.name, GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for method in broker_pb2.DESCRIPTOR.services_by_name["Broker"].methods
    if method.name not in STREAMS
}
