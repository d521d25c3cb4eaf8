"""Goal: positions reflect what is processed. Method: Assignment by itself."""

from __future__ import annotations

from brokerd.consumer.core.assignment import Assignment, Gone
from brokerd.ids import LogPosition, TopicIdPartition
from tests.support.consumers import T0, T1


def test_all_that_is_finished_when_the_work_ends_counts_as_processed() -> None:
    """Includes the records handed over last, in partitions whose records are all finished."""
    assignment = Assignment()
    assignment.assign([T0, T1])
    ids = [TopicIdPartition(b"t" * 16, number) for number in range(2)]
    for one, id_tp in zip(assignment.partitions.values(), ids, strict=True):
        assert assignment.found(one, id_tp, LogPosition(0), one.version)
    assignment.first_unfinished = {T0: None, T1: 3}.get
    assignment.confirm()
    assignment.move(dict.fromkeys(ids, 10), {})
    first, second = assignment.partitions.values()
    assert assignment.back_to_unfinished() == [second]
    assert assignment.positions([first, second], is_confirmed=True) == {first: 10, second: 3}


def test_a_partition_that_is_gone_goes_on_at_its_first_unfinished_record() -> None:
    assignment = Assignment()
    assignment.assign([T0])
    (one,) = assignment.partitions.values()
    id_tp = TopicIdPartition(b"t" * 16, 0)
    assert assignment.found(one, id_tp, LogPosition(0), one.version)
    assignment.first_unfinished = {T0: 3}.get
    assignment.move({id_tp: 10}, {})
    assignment.forget_id(one)
    assert one.gone == Gone(id_tp, LogPosition(10), LogPosition(0))
    assert assignment.back_to_unfinished() == []
    assert one.gone == Gone(id_tp, LogPosition(3), LogPosition(0))
    assignment.seek(one, 5)
    assert one.gone is None


def test_a_partition_is_read_once_the_groups_offset_is_known_again() -> None:
    """The next transaction needs the group's offset, even if a seek has set the position."""
    assignment = Assignment()
    assignment.assign([T0])
    (one,) = assignment.partitions.values()
    id_tp = TopicIdPartition(b"t" * 16, 0)
    assert assignment.found(one, id_tp, LogPosition(0), one.version, 7)
    assignment.seek_to_committed(one)
    assignment.seek(one, 5)
    assert (assignment.unresolved(), assignment.fetchable()) == ([one], [])
    assert assignment.found(one, id_tp, LogPosition(5), one.version, 8)
    assert (assignment.unresolved(), assignment.fetchable()) == ([], [one])
