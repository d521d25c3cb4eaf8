"""Names and types of the service's methods, in the order of broker.proto: the only table of them. A test keeps it equal to the
service descriptor. The two streams carry raw bytes, which records.py encodes and decodes."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import Message

from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2, transaction_pb2

SERVICE = "brokerd.wire.v1.Broker"
PRODUCE = f"/{SERVICE}/Produce"
FETCH = f"/{SERVICE}/Fetch"
# Largest unary request: two bytes of an empty submessage become about seventy when parsed.
UNARY_REQUEST_MAX_BYTES = 2_097_152
# Largest response that a client reads, for the same reason: enough for some hundred thousand partitions, for the settings of all
# topics with their documentation, or for the metadata of a thousand offsets.
UNARY_RESPONSE_MAX_BYTES = 2_097_152
UNARY_RESPONSES_MAX_BYTES = {
    "Metadata": 8_388_608,
    "DescribeTopics": 33_554_432,
    "FetchGroupOffsets": 8_388_608,
    "DescribeGroup": 8_388_608,
}
STREAMS = ("Produce", "Fetch")


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
    method.name: method
    for method in (
        Unary("GetServerInfo", metadata_pb2.GetServerInfoRequest, metadata_pb2.GetServerInfoResponse),
        Unary("Metadata", metadata_pb2.MetadataRequest, metadata_pb2.MetadataResponse),
        Unary("FindCoordinator", metadata_pb2.FindCoordinatorRequest, metadata_pb2.FindCoordinatorResponse),
        Unary("CreateTopics", topics_pb2.CreateTopicsRequest, topics_pb2.CreateTopicsResponse),
        Unary("DeleteTopics", topics_pb2.DeleteTopicsRequest, topics_pb2.DeleteTopicsResponse),
        Unary("DescribeTopics", topics_pb2.DescribeTopicsRequest, topics_pb2.DescribeTopicsResponse),
        Unary("CreatePartitions", topics_pb2.CreatePartitionsRequest, topics_pb2.CreatePartitionsResponse),
        Unary("AlterTopicConfigs", topics_pb2.AlterTopicConfigsRequest, topics_pb2.AlterTopicConfigsResponse),
        Unary("DeleteRecords", topics_pb2.DeleteRecordsRequest, topics_pb2.DeleteRecordsResponse),
        Unary("ListOffsets", offsets_pb2.ListOffsetsRequest, offsets_pb2.ListOffsetsResponse),
        Unary("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest, offsets_pb2.CommitGroupOffsetsResponse),
        Unary("FetchGroupOffsets", offsets_pb2.FetchGroupOffsetsRequest, offsets_pb2.FetchGroupOffsetsResponse),
        Unary("ListGroups", offsets_pb2.ListGroupsRequest, offsets_pb2.ListGroupsResponse),
        Unary("DescribeGroup", offsets_pb2.DescribeGroupRequest, offsets_pb2.DescribeGroupResponse),
        Unary("DeleteGroup", offsets_pb2.DeleteGroupRequest, offsets_pb2.DeleteGroupResponse),
        Unary("InitProducerId", transaction_pb2.InitProducerIdRequest, transaction_pb2.InitProducerIdResponse),
        Unary("EndTransaction", transaction_pb2.EndTransactionRequest, transaction_pb2.EndTransactionResponse),
        Unary("Heartbeat", transaction_pb2.HeartbeatRequest, transaction_pb2.HeartbeatResponse),
        Unary("ListTransactions", transaction_pb2.ListTransactionsRequest, transaction_pb2.ListTransactionsResponse),
        Unary("DescribeTransaction", transaction_pb2.DescribeTransactionRequest, transaction_pb2.DescribeTransactionResponse),
        Unary("AbortTransaction", transaction_pb2.AbortTransactionRequest, transaction_pb2.AbortTransactionResponse),
        Unary(
            "FindHangingTransactions",
            transaction_pb2.FindHangingTransactionsRequest,
            transaction_pb2.FindHangingTransactionsResponse,
        ),
        Unary(
            "ForgetTransactionalId",
            transaction_pb2.ForgetTransactionalIdRequest,
            transaction_pb2.ForgetTransactionalIdResponse,
        ),
    )
}
