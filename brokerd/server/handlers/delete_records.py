"""DeleteRecords: move the log start of partitions forward.

Behaviour
- Partitions are handled independently; one write makes all new log starts durable before the response. -1 means the high
  watermark.
- A failed write moves nothing; if its last step failed, its fate is unknown: the log start may have moved after a restart.
- Never beyond the high watermark: OFFSET_OUT_OF_RANGE. Below the current log start nothing changes.
- A parked fetch whose offset is now below the log start is answered at once.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import HIGH_WATERMARK
from brokerd.partition.partition import Partition
from brokerd.server.broker import Broker
from brokerd.server.failures import internal, malformed
from brokerd.server.fields import topic_id_partition
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2


def check(request: topics_pb2.DeleteRecordsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    for entry in request.partitions:
        if entry.before_offset < HIGH_WATERMARK:
            raise malformed(
                "partitions.before_offset", f"is {entry.before_offset}, but must be an offset, or -1 for the high watermark"
            )
        topic_id_partition("partitions", entry.topic_id, entry.partition)


async def handle(
    broker: Broker, _authorizer: TopicAuthorizer, request: topics_pb2.DeleteRecordsRequest
) -> topics_pb2.DeleteRecordsResponse:
    """One result per requested partition, in the same order."""
    broker.require_ready()
    asked = [(TopicIdPartition(entry.topic_id, entry.partition), entry.before_offset) for entry in request.partitions]
    response = topics_pb2.DeleteRecordsResponse()
    found: list[tuple[Partition, int, topics_pb2.PartitionDeleteRecordsResult]] = []
    pauses = Pauses(broker.turns)
    for tp, before_offset in asked:
        await pauses.after()
        result = response.results.add(topic_id=tp.topic_id, partition=tp.partition, log_start_offset=-1)
        try:
            found.append((broker.partitions.leader(tp), before_offset, result))
        except WireError as error:
            result.error.CopyFrom(to_proto(error))
        except Exception as error:
            result.error.CopyFrom(to_proto(internal(f"deleting records of {tp}", error)))
    await _delete(broker, found)
    return response


async def _delete(broker: Broker, found: list[tuple[Partition, int, topics_pb2.PartitionDeleteRecordsResult]]) -> None:
    errors = await broker.admin.run(broker.logs.retention.delete_records([(log, before_offset) for log, before_offset, _ in found]))
    for (log, _, result), error in zip(found, errors, strict=True):
        if error is not None:
            result.error.CopyFrom(to_proto(error))
        else:
            result.log_start_offset = log.ends.log_start_offset
