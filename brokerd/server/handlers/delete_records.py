"""DeleteRecords: move the log start of partitions forward.

Behaviour
- Each partition on its own; the new log start is durable when it is answered. -1 means the high watermark.
- Never beyond the high watermark: OFFSET_OUT_OF_RANGE. Below the present log start nothing changes.
- A parked fetch whose offset is now below the log start is answered at once.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.failures import internal, malformed
from brokerd.server.fields import check_count, topic_id_partition
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2

_HIGH_WATERMARK = -1


async def handle(broker: Broker, request: topics_pb2.DeleteRecordsRequest) -> topics_pb2.DeleteRecordsResponse:
    """One result per partition asked, in the same order."""
    broker.require_ready()
    check_count("partitions", request.partitions, broker.config.max_partitions_per_request, "max.partitions.per.request")
    asked = [(_checked(entry), entry.before_offset) for entry in request.partitions]
    response = topics_pb2.DeleteRecordsResponse()
    for tp, before_offset in asked:
        _delete(broker, tp, before_offset, response.results.add(topic_id=tp.topic_id, partition=tp.partition, log_start_offset=-1))
    return response


def _checked(entry: topics_pb2.PartitionDeleteRecords) -> TopicIdPartition:
    if entry.before_offset < _HIGH_WATERMARK:
        raise malformed("partitions.before_offset", f"is {entry.before_offset}, must be an offset, or -1 for the high watermark")
    return topic_id_partition("partitions", entry.topic_id, entry.partition)


def _delete(broker: Broker, tp: TopicIdPartition, before_offset: int, result: topics_pb2.PartitionDeleteRecordsResult) -> None:
    try:
        log = broker.replicas.replica(tp).log
        result.log_start_offset = log.delete_records(log.high_watermark if before_offset == _HIGH_WATERMARK else before_offset)
    except WireError as error:
        result.error.CopyFrom(to_proto(error))
    except Exception as error:
        result.error.CopyFrom(to_proto(internal(f"delete of records of {tp}", error)))
    else:
        broker.replicas.wake(tp)
