"""Goal: `poll` hands over each record once, in order, from the right offset, whatever is sought, paused or assigned meanwhile; a
position moves only with the records handed over. Method: a broker in memory behind a real port.
"""

from __future__ import annotations

import threading

import pytest

from brokerd import Consumer, TopicPartition
from brokerd.config.client import PlainConsumerConfig
from brokerd.errors import (
    NoOffsetForPartitionError,
)
from brokerd.record.header import Attributes
from tests.support.consumers import LONG_MS, T0, T1, fill, filled, offsets, put_marker, read, settings
from tests.support.fake_broker import FakeBroker
from tests.support.records import TIMESTAMP_MS, key_values, new_batch
from tests.support.wait import DEADLINE_S, wait_until

# --- records


def test_poll_returns_records_with_all_their_fields(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    headers = [[("h", b"x"), ("g", None)], None, []]
    columns = key_values([b"a", None, b""], keys=[b"k", None, b""], headers=headers)
    partition.put(new_batch(columns, tp=partition.tp))
    partition.put(new_batch(key_values([b"late"]), tp=partition.tp), is_log_append_time=True)
    consumer.assign([T0])
    assert read(consumer, 4) == [
        ("t", 0, 0, TIMESTAMP_MS, 0, b"k", b"a", (("h", b"x"), ("g", None))),
        ("t", 0, 1, TIMESTAMP_MS + 1, 0, None, None, ()),
        ("t", 0, 2, TIMESTAMP_MS + 2, 0, b"", b"", ()),
        ("t", 0, 3, 1_800_000_000_000, 1, None, b"late", ()),
    ]


def test_poll_returns_no_more_than_it_was_asked_for_and_goes_on_there(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [10, 1, 700, 3])
    consumer.assign([T0])
    sizes = []
    seen: list[int] = []
    while len(seen) < 714:
        records = consumer.poll(LONG_MS, max_records=300)
        assert consumer.position(T0) == records[-1].offset + 1
        sizes.append(len(records))
        seen += offsets(records)
    assert seen == list(range(714))
    assert max(sizes) == 300


def test_max_poll_records_is_the_default(broker: FakeBroker) -> None:
    filled(broker, [20])
    with Consumer(settings(broker, max_poll_records=7)) as consumer:
        consumer.assign(T0)
        assert [len(consumer.poll(LONG_MS)) for _ in range(3)] == [7, 7, 6]


def test_poll_that_finds_nothing_returns_in_time(broker: FakeBroker, consumer: Consumer) -> None:
    broker.create("t")
    consumer.assign([T0])
    assert consumer.poll(0) == []
    assert consumer.poll(20) == []
    assert consumer.poll_arrow(20).num_rows == 0
    assert consumer.position(T0) == 0


def test_poll_arrow_has_the_columns_of_the_spark_source(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [3, 2])
    consumer.assign([T0])
    rows = consumer.poll_arrow(LONG_MS)
    assert rows.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert rows.column("offset").to_pylist() == [0, 1, 2]
    assert rows.column("topic").to_pylist() == ["t"] * 3
    assert rows.column("value").to_pylist() == [b"0", b"1", b"2"]
    rows.validate(full=True)
    assert consumer.poll_arrow(LONG_MS, max_records=1).column("offset").to_pylist() == [3]
    assert offsets(consumer.poll(LONG_MS)) == [4]


def test_records_and_columns_may_be_taken_in_turn_from_one_batch(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [20])
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS, 3)) == [0, 1, 2]
    assert consumer.poll_arrow(LONG_MS, 4).column("offset").to_pylist() == [3, 4, 5, 6]
    assert next(consumer).offset == 7
    assert offsets(consumer.poll(LONG_MS)) == list(range(8, 20))


def test_iteration_moves_the_position_record_by_record(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [5, 5])
    consumer.assign([T0])
    for number, record in enumerate(consumer):
        assert record.offset == number
        assert consumer.position(T0) == number + 1
        if number == 7:
            break
    assert offsets(consumer.poll(LONG_MS)) == [8, 9]


def test_iteration_ends_when_the_consumer_is_closed(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [3])
    consumer.assign([T0])
    seen = []
    for record in consumer:
        seen.append(record.offset)
        if record.offset == 1:
            consumer.close()
    assert seen == [0, 1]


def test_no_change_of_the_assignment_waits_for_the_thread_that_fetches(broker: FakeBroker, consumer: Consumer) -> None:
    """While that thread is busy, `poll` still returns in time; it continues once the thread is free."""
    for partition in broker.create("t", 2):
        fill(partition, [5, 5])
    consumer.assign([T0, T1])
    assert read(consumer, 1)
    free, is_held = threading.Event(), threading.Event()
    freed: list[bool] = []

    def hold() -> None:
        is_held.set()
        freed.append(free.wait(DEADLINE_S))

    consumer._client.loop_thread.loop.call_soon_threadsafe(hold)
    try:
        assert is_held.wait(DEADLINE_S)
        consumer.pause(T1)
        consumer.seek(T0, 3)
        assert consumer.poll(0) == []
        consumer.seek(T0, 4)
        assert consumer.poll(1) == []
        assert not freed, "poll waited for it"
    finally:
        free.set()
    assert offsets(read(consumer, 6)) == [4, 5, 6, 7, 8, 9]


def test_partitions_come_in_turn_and_each_in_order(broker: FakeBroker, consumer: Consumer) -> None:
    for partition in broker.create("t", 3):
        fill(partition, [50] * 4)
    consumer.assign([("t", 0), ("t", 1), ("t", 2)])
    by_partition: dict[int, list[int]] = {}
    for record in read(consumer, 600):
        by_partition.setdefault(record.partition, []).append(record.offset)
    assert by_partition == {number: list(range(200)) for number in range(3)}


def test_partitions_come_in_turn_though_the_assignment_changes_with_each_poll(broker: FakeBroker) -> None:
    *partitions, _ = broker.create("t", 6)
    for partition in partitions:
        fill(partition, [1] * 50)
    idle = TopicPartition("t", 5)
    with Consumer(settings(broker, fetch_max_bytes=1, max_partition_fetch_bytes=1)) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(6)])
        seen: list[int] = []
        while len(seen) < 50:
            (consumer.pause if idle not in consumer.paused() else consumer.resume)(idle)
            seen += [record.partition for record in consumer.poll(LONG_MS)]
    assert set(seen) == set(range(5))


# --- control batches, aborted records, gaps


def test_position_passes_markers_and_aborted_records_behind_the_last_record(broker: FakeBroker, consumer: Consumer) -> None:
    partition = filled(broker, [2])
    aborted = new_batch(key_values([b"x"]), tp=partition.tp, attributes=int(Attributes.TRANSACTIONAL), producer_id=9)
    first = partition.put(aborted)
    partition.aborted.append((9, first, put_marker(partition)))
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS)) == [0, 1]
    assert consumer.position(T0) == 4 == consumer.end_offsets([T0])[T0]


def test_position_passes_a_response_of_markers_alone(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    put_marker(partition)
    consumer.assign([T0])
    wait_until(lambda: consumer.poll(10) == [] and consumer.position(T0) == 1)


def test_position_stays_before_the_markers_while_records_before_them_are_left(broker: FakeBroker, consumer: Consumer) -> None:
    partition = filled(broker, [3])
    put_marker(partition)
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS, 2)) == [0, 1]
    assert consumer.position(T0) == 2
    assert offsets(consumer.poll(LONG_MS, 1)) == [2]
    assert consumer.position(T0) == 4


# --- where reading begins


@pytest.mark.parametrize(("reset", "first"), [("earliest", 4), ("latest", 10)])
def test_partition_without_position_begins_as_auto_offset_reset_says(broker: FakeBroker, reset: str, first: int) -> None:
    partition = filled(broker, [10])
    partition.log_start_offset = 4
    with Consumer(settings(broker, auto_offset_reset=reset)) as consumer:
        consumer.assign([T0])
        assert consumer.position(T0) == first
        fill(partition, [1])
        assert read(consumer, 1)[0].offset == first


def test_latest_is_the_default(broker: FakeBroker) -> None:
    assert PlainConsumerConfig().auto_offset_reset == "latest"


def test_partition_without_position_is_an_error_if_auto_offset_reset_is_none(broker: FakeBroker) -> None:
    filled(broker, [3])
    with Consumer(settings(broker, auto_offset_reset="none")) as consumer:
        consumer.assign([T0])
        with pytest.raises(NoOffsetForPartitionError, match=r"^t-0 has no offset to begin at.*seek\(\)"):
            consumer.poll(LONG_MS)
        consumer.seek(T0, 1)
        assert offsets(consumer.poll(LONG_MS)) == [1, 2]


def test_latest_of_read_committed_is_the_last_stable_offset(broker: FakeBroker) -> None:
    partition = filled(broker, [6])
    partition.last_stable_offset = 4
    for isolation, end in (("read_committed", 4), ("read_uncommitted", 6)):
        with Consumer(settings(broker, isolation_level=isolation)) as consumer:
            consumer.assign([T0])
            consumer.seek_to_end()
            assert consumer.position(T0) == end == consumer.end_offsets(T0)[T0]


# --- seek, pause, assign


def test_seek_hands_over_nothing_that_was_fetched_before(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5] * 100)
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS, 7)) == list(range(7))
    consumer.seek(T0, 301)
    assert consumer.position(T0) == 301
    assert offsets(consumer.poll(LONG_MS, 5))[0] == 301
    consumer.seek_to_beginning([T0])
    assert offsets(consumer.poll(LONG_MS, 3)) == [0, 1, 2]
    consumer.seek_to_end()
    assert consumer.poll(20) == []
    assert consumer.position(T0) == 500  # known before more records arrive
    fill(partition, [2])
    assert offsets(consumer.poll(LONG_MS)) == [500, 501]


def test_seek_of_one_partition_leaves_the_others_where_they_are(broker: FakeBroker, consumer: Consumer) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [5] * 20)
    consumer.assign([T0, T1])
    read(consumer, 30)
    before = consumer.position(T1)
    consumer.seek(T0, 90)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for record in read(consumer, 10 + 100 - before):
        seen[record.partition].append(record.offset)
    assert seen == {0: list(range(90, 100)), 1: list(range(before, 100))}


def test_seek_before_the_first_poll(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [5])
    consumer.assign([T0])
    consumer.seek(T0, 3)
    assert broker.calls["ListOffsets"] == 0
    assert offsets(consumer.poll(LONG_MS)) == [3, 4]
    assert broker.calls["ListOffsets"] == 0


def test_paused_partition_is_not_handed_over_and_loses_nothing(broker: FakeBroker, consumer: Consumer) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [5] * 20)
    consumer.assign([T0, T1])
    first = read(consumer, 12)
    at = {partition: sum(record.partition == partition for record in first) for partition in (0, 1)}
    consumer.pause([T0])
    assert consumer.paused() == {T0}
    rest = read(consumer, 100 - at[1])
    assert [record.offset for record in rest if record.partition == 1] == list(range(at[1], 100))
    assert consumer.poll(20) == []
    assert consumer.position(T0) == at[0]
    consumer.resume([T0])
    assert offsets(read(consumer, 100 - at[0])) == list(range(at[0], 100))


def test_resumed_partition_is_not_fetched_again(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5] * 4)
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS, 2)) == [0, 1]
    consumer.pause(T0)
    assert consumer.poll(0) == []
    broker.fetched_offsets.clear()
    consumer.resume(T0)
    assert offsets(read(consumer, 18)) == list(range(2, 20))
    assert set(broker.fetched_offsets) <= {20}


def test_paused_partition_that_is_sought_goes_on_there(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5] * 4)
    consumer.assign([T0])
    consumer.poll(LONG_MS, 2)
    consumer.pause(T0)
    consumer.seek(T0, 17)
    assert consumer.poll(0) == []
    consumer.resume(T0)
    assert offsets(consumer.poll(LONG_MS)) == [17, 18, 19]


def test_assign_keeps_the_positions_of_those_that_stay(broker: FakeBroker, consumer: Consumer) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [5] * 4)
    consumer.assign([T0])
    consumer.poll(LONG_MS, 7)
    consumer.assign([T1, T0])
    assert consumer.position(T0) == 7
    assert consumer.position(T1) == 0
    consumer.assign([T1])
    assert {record.partition for record in read(consumer, 20)} == {1}
    consumer.assign([T0])
    assert consumer.position(T0) == 0, "it was given up, so it begins as a new one"
    assert offsets(read(consumer, 20)) == list(range(20))


def test_partition_given_up_and_assigned_again_before_a_poll_begins_anew(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5] * 4)
    consumer.assign([T0])
    consumer.pause(T0)
    consumer.assign([])
    consumer.assign([T0])
    assert consumer.paused() == set()
    assert offsets(read(consumer, 20)) == list(range(20))
