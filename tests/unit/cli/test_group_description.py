"""Goal: the description of a group says what is not known."""

from __future__ import annotations

from brokerd.cli.groups import _description_lines
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse, GroupPartitionDescription


def test_a_lag_that_is_unknown_is_not_counted_as_none() -> None:
    """As while a partition has no leader."""
    described = DescribeGroupResponse()
    for partition, end in enumerate((10, -1, 3)):
        one = GroupPartitionDescription(topic="t", end_offset=end, log_start_offset=min(end, 0), lag_bytes=-1, lag_ms=-1)
        one.committed.partition, one.committed.offset = partition, 2
        described.partitions.append(one)
    told, _, left = list(_description_lines(described, {}))[:3]
    assert told.endswith(": 3 partitions, lag 9 and that of 1 partition whose end is unknown")
    assert left == "  0 B left to read, not counting 3 unknown partitions"
