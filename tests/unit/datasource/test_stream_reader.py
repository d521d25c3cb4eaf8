"""spark.readStream as Spark drives it: offsets pass through JSON, and each new process means a new reader."""

from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from brokerd.client.leases import lease_client
from brokerd.datasource.offset_reader import OffsetReader
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.stream_reader import IDLE_WAIT_MS, LOOK_UP_MS, BrokerdStreamReader
from brokerd.errors import (
    ConfigError,
    DataLossError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import TopicIdPartition, TopicPartition
from tests.support.clock import ManualClock
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker, Partition
from tests.unit.datasource.reading import ALL_COLUMNS, options_for
from tests.unit.datasource.streaming import clocked_reader, latest, ranges, reader_for, rows_of, user_offsets


def test_first_batch_from_earliest(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest")
    start = reader.initialOffset()
    end = latest(reader, start)
    assert user_offsets(end) == {"events": {"0": 10, "1": 10}}
    assert ranges(reader, start, end) == [(0, 0, 10), (1, 0, 10)]
    assert reader.reportLatestOffset() == {"events": {"0": 10, "1": 10}}


def test_replayed_batch_0_reads_the_same_although_starting_offsets_would_resolve_anew(broker: FakeBroker) -> None:
    reader = reader_for(broker)  # startingOffsets=latest
    start = reader.initialOffset()
    end = latest(reader, start)
    assert ranges(reader, start, end) == []
    fill(broker.topics["events"][0], [5])
    end = latest(reader, end)
    fill(broker.topics["events"][0], [5])
    restarted = reader_for(broker)
    assert ranges(restarted, restarted.initialOffset(), latest(reader_for(broker), start)) == []
    assert ranges(restarted, latest(reader, start), end) == []
    first_end = latest(reader_for(broker, startingOffsets="earliest"), start)
    fill(broker.topics["events"][0], [5])
    assert ranges(restarted, restarted.initialOffset(), first_end) == [(0, 0, 20), (1, 0, 10)]


def test_nothing_new_gives_the_very_same_offset(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest")
    end = latest(reader, reader.initialOffset())
    assert json.dumps(latest(reader, end)) == json.dumps(end)


def test_next_batch_begins_where_the_last_one_ended(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest")
    first = latest(reader, reader.initialOffset())
    fill(broker.topics["events"][1], [3])
    second = latest(reader_for(broker), first)
    assert ranges(reader_for(broker), first, second) == [(1, 10, 13)]
    assert "starts" not in second["@brokerd"]


def test_limit_is_kept_batch_by_batch_until_all_is_read(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    offset = reader.initialOffset()
    sizes = []
    for _ in range(3):
        end = latest(reader, offset, limit)
        sizes.append(sum(until - start for _, start, until in ranges(reader, offset, end)))
        offset = end
    assert sizes == [8, 8, 4]


def test_a_backlog_is_not_looked_up_for_each_batch(broker: FakeBroker) -> None:
    clock = ManualClock()
    reader = clocked_reader(broker, clock, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    first = latest(reader, reader.initialOffset(), ReadMaxRows(4))
    looks = broker.calls["Metadata"]
    broker.add_partitions("events", 3)
    fill(broker.topics["events"][2], [4])
    second = latest(reader, first, ReadMaxRows(4))
    assert user_offsets(second) == {"events": {"0": 4, "1": 4}}
    assert broker.calls["Metadata"] == looks
    clock.advance(LOOK_UP_MS + 1)
    third = latest(reader, second, ReadMaxRows(4))
    assert user_offsets(third) == {"events": {"0": 5, "1": 5, "2": 1}}, "new partitions and rows are found soon"


def test_batches_in_quick_succession_look_up_ends_alone(broker: FakeBroker) -> None:
    reader = clocked_reader(broker, ManualClock(), startingOffsets="earliest")
    first = latest(reader, reader.initialOffset())
    looks = broker.calls["Metadata"]
    fill(broker.topics["events"][0], [6])
    second = latest(reader, first)
    assert ranges(reader, first, second) == [(0, 10, 16)]
    assert broker.calls["Metadata"] == looks
    del broker.topics["events"]
    with pytest.raises(DataLossError, match="gone or no longer subscribed to"):
        latest(reader, second)


def test_the_end_of_a_backlog_is_looked_up(broker: FakeBroker) -> None:
    reader = clocked_reader(broker, ManualClock(), startingOffsets="earliest", maxOffsetsPerTrigger=16)
    first = latest(reader, reader.initialOffset(), ReadMaxRows(16))
    fill(broker.topics["events"][0], [6])
    assert user_offsets(latest(reader, first, ReadMaxRows(16))) == {"events": {"0": 16, "1": 10}}
    fill(broker.topics["events"][0], [30])
    assert user_offsets(latest(reader, first, ReadAllAvailable())) == {"events": {"0": 46, "1": 10}}, "without a limit"


def test_what_a_backlog_loses_unseen_is_found_by_its_reads(broker: FakeBroker) -> None:
    reader = clocked_reader(broker, ManualClock(), startingOffsets="earliest", maxOffsetsPerTrigger=4)
    first = latest(reader, reader.initialOffset(), ReadMaxRows(4))
    broker.topics["events"][0].log_start_offset = 8
    second = latest(reader, first, ReadMaxRows(4))
    with pytest.raises(DataLossError, match="2 records of events-0 are gone"):
        rows_of(reader, first, second)


def test_a_log_cut_while_a_backlog_is_not_looked_up_is_judged_by_a_new_look_up(broker: FakeBroker) -> None:
    partition = broker.topics["events"][0]
    partition.epoch_ids = {0: 7, 9: 8}  # the look-up of the end returns another epoch than that of the records read
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    lenient = clocked_reader(broker, ManualClock(), failOnDataLoss="false", **options)
    strict = clocked_reader(broker, ManualClock(), **options)
    first = latest(lenient, INITIAL.to_json(), ReadMaxRows(4))
    assert latest(strict, INITIAL.to_json(), ReadMaxRows(4))["events"] == first["events"] == {"0": 2, "1": 2}
    partition.epoch_ids = {0: 7, 1: 9}
    looks = broker.calls["Metadata"]
    second = latest(lenient, first, ReadMaxRows(4))
    assert ranges(lenient, first, second) == [(0, 1, 3), (1, 2, 3)]
    with pytest.raises(DataLossError, match=r"offset 2 is of another history; .*; the next offset is 1"):
        latest(strict, first, ReadMaxRows(4))
    assert broker.calls["Metadata"] == looks, "the topics and partitions were looked up less than LOOK_UP_MS ago"


def test_a_limit_of_bytes_ends_a_batch_with_a_record_batch(broker: FakeBroker) -> None:
    first = broker.topics["events"][0]
    fill(first, [10] * 7)
    four = 4 * first.batches[-1][2].size
    reader = reader_for(broker, startingOffsets="earliest", maxBytesPerTrigger=four)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(four)
    end = latest(reader, reader.initialOffset(), limit)
    assert ranges(reader, reader.initialOffset(), end) == [(0, 0, 30), (1, 0, 10)]
    later = latest(reader, end, limit)
    assert ranges(reader, end, later) == [(0, 30, 70)]
    everything = latest(reader, reader.initialOffset(), ReadAllAvailable())
    assert user_offsets(everything) == {"events": {"0": 80, "1": 10}}, "trigger(once=True) takes all"


def test_rows_and_bytes_limit_a_batch_together(broker: FakeBroker) -> None:
    fill(broker.topics["events"][0], [10] * 7)
    few_bytes = reader_for(broker, startingOffsets="earliest", maxOffsetsPerTrigger=60, maxBytesPerTrigger=1)
    assert few_bytes.getDefaultReadLimit() == ReadMaxRows(60)
    assert user_offsets(latest(few_bytes, INITIAL.to_json(), ReadMaxRows(60))) == {"events": {"0": 10, "1": 6}}
    few_rows = reader_for(broker, startingOffsets="earliest", maxOffsetsPerTrigger=9, maxBytesPerTrigger=10**9)
    assert user_offsets(latest(few_rows, INITIAL.to_json(), ReadMaxRows(9))) == {"events": {"0": 8, "1": 1}}


def test_new_partition_begins_at_zero(broker: FakeBroker) -> None:
    clock = ManualClock()
    reader = clocked_reader(broker, clock)  # startingOffsets=latest, but new partitions are read from their start
    first = latest(reader, reader.initialOffset())
    clock.advance(LOOK_UP_MS + 1)
    partitions = broker.topics["events"]
    partitions.append(Partition(TopicIdPartition(partitions[0].tp.topic_id, 2)))
    fill(partitions[2], [4])
    second = latest(reader, first)
    assert ranges(reader, first, second) == [(2, 0, 4)]


def test_topic_created_anew_is_told_and_never_read_at_old_offsets(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest")
    first = latest(reader, reader.initialOffset())
    (fresh,) = broker.create("events")
    fill(fresh, [30])
    with pytest.raises(DataLossError, match="topic 'events' is not the one that this query has read"):
        latest(reader_for(broker), first)
    tolerant = reader_for(broker, failOnDataLoss="false")
    second = latest(tolerant, first)
    assert ranges(tolerant, first, second) == [(0, 0, 30)]
    assert json.dumps(latest(tolerant, second)) == json.dumps(second)


def test_retention_past_the_checkpoint_is_told_before_any_task_runs(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest")
    first = latest(reader, reader.initialOffset())
    fill(broker.topics["events"][0], [10])
    broker.topics["events"][0].log_start_offset = 13
    with pytest.raises(DataLossError, match="3 records of events-0 are gone, offsets 10 to 12"):
        latest(reader_for(broker), first)
    tolerant = reader_for(broker, failOnDataLoss="false")
    assert ranges(tolerant, first, latest(tolerant, first)) == [(0, 13, 20)]


def test_what_option_where_leaves_out_is_no_loss_when_it_goes(broker: FakeBroker) -> None:
    partitions = broker.topics["events"]
    first = latest(reader_for(broker, startingOffsets="earliest"), INITIAL.to_json())
    for partition in partitions:
        fill(partition, [10])
    partitions[0].log_start_offset = 13
    reader = reader_for(broker, where="partition = 1")
    assert ranges(reader, first, latest(reader, first)) == [(1, 10, 20)]
    asked = reader_for(broker, where="partition = 1", startingOffsets='{"events": {"0": 1, "1": 0}}')
    assert user_offsets(latest(asked, INITIAL.to_json())) == {"events": {"0": 20, "1": 20}}
    partitions[1].log_start_offset = 13
    with pytest.raises(DataLossError) as error:
        latest(reader, first)
    assert "events-1" in str(error.value)
    assert "events-0" not in str(error.value)


def test_what_was_read_before_it_was_committed_is_no_loss_and_is_not_read_again(broker: FakeBroker) -> None:
    partition = broker.topics["events"][0]
    partition.last_stable_offset = 4
    end = latest(reader_for(broker, startingOffsets="earliest", **{"isolation.level": "read_uncommitted"}), INITIAL.to_json())
    assert user_offsets(end) == {"events": {"0": 10, "1": 10}}
    reader = reader_for(broker)
    assert latest(reader, end) == end, "it waits where it is"
    fill(broker.topics["events"][1], [1])
    later = latest(reader, end)
    assert user_offsets(later) == {"events": {"0": 10, "1": 11}}
    assert ranges(reader, end, later) == [(1, 10, 11)]
    fill(partition, [2])
    partition.last_stable_offset = 11
    assert ranges(reader, later, latest(reader, later)) == [(0, 10, 11)]


def test_a_tail_that_is_lost_is_told_whatever_is_committed(broker: FakeBroker) -> None:
    before = reader_for(broker, startingOffsets="earliest")
    end = latest(before, INITIAL.to_json())
    assert rows_of(before, INITIAL.to_json(), end) == 20
    broker.topics["events"][0].last_stable_offset, broker.topics["events"][0].end_offset = 4, 7
    with pytest.raises(DataLossError, match="events-0 ends at offset 7, but was read up to 10: the log has lost its tail"):
        latest(reader_for(broker), end)
    lenient = reader_for(broker, failOnDataLoss="false")
    assert user_offsets(latest(lenient, end)) == {"events": {"0": 7, "1": 10}}


def test_where_a_time_begins_is_looked_up_again_once_a_tail_is_lost(broker: FakeBroker) -> None:
    partition = broker.topics["events"][0]
    partition.first_in_time = 9
    reader = reader_for(
        broker, startingOffsets="earliest", failOnDataLoss="false", where="partition = 0 AND timestamp > '2026-01-01T00:00Z'"
    )
    first = latest(reader, INITIAL.to_json())
    assert ranges(reader, INITIAL.to_json(), first) == [(0, 9, 10)]
    partition.end_offset = partition.first_in_time = 7
    second = latest(reader, first)
    fill(partition, [5])
    assert ranges(reader, second, latest(reader, second)) == [(0, 7, 12)], "what came since is of that time"


def test_a_replay_does_not_leave_out_what_a_log_has_lost_since(broker: FakeBroker) -> None:
    """The remaining log has no record of that time, but the lost tail may have had one."""
    (partition,) = broker.create("lost")
    fill(partition, [10])
    partition.first_in_time, partition.epoch_ids = 3, {0: 7}
    options = {"subscribe": "lost", "startingOffsets": "earliest", "taskPerPartition": "true"}
    options["where"] = "timestamp > '2026-01-01T00:00Z'"
    end = latest(reader_for(broker, **options), INITIAL.to_json())
    partition.end_offset, partition.first_in_time, partition.epoch_ids, partition.batches = 2, -1, {0: 7, 2: 9}, []
    assert ranges(reader_for(broker, **options), INITIAL.to_json(), end) == [(0, 0, 10)], "to be read, and found to be lost"


def test_a_start_may_lie_behind_what_is_committed(broker: FakeBroker) -> None:
    broker.topics["events"][0].last_stable_offset = 4
    reader = reader_for(broker, startingOffsets='{"events": {"0": 6, "1": 10}}')
    start = latest(reader, INITIAL.to_json())
    assert user_offsets(start) == {"events": {"0": 6, "1": 10}}
    broker.topics["events"][0].last_stable_offset = 8
    assert ranges(reader, start, latest(reader, start)) == [(0, 6, 8)]
    with pytest.raises(ConfigError, match="startingOffsets is 11 for events-0, but it can be read up to 10"):
        latest(reader_for(broker, startingOffsets='{"events": {"0": 11, "1": 10}}'), INITIAL.to_json())


COMMITTED = {"startingOffsets": "committed", "group.id": "g", "taskPerPartition": "true"}


@pytest.mark.parametrize(
    ("offset", "told", "begin"),
    [(6, "offset 6 is of another history", 4), (12, "events-0 ends at offset 10, but was read up to 12", 10)],
    ids=["another history", "lost tail"],
)
def test_what_a_group_has_read_and_the_log_has_lost_since_is_a_loss(
    broker: FakeBroker, offset: int, told: str, begin: int, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = broker.topics["events"]
    first.epoch_ids, second.epoch_ids = {0: 7, 4: 9}, {0: 7}
    broker.groups["g"] = {first.tp: (offset, ""), second.tp: (3, "")}
    broker.group_epoch_ids = {("g", first.tp): 8 if offset == 6 else 9, ("g", second.tp): 7}
    with pytest.raises(DataLossError, match=told):
        latest(reader_for(broker, **COMMITTED), INITIAL.to_json())
    lenient = reader_for(broker, failOnDataLoss="false", **COMMITTED)
    end = latest(lenient, INITIAL.to_json())
    assert end["@brokerd"]["starts"] == {"events": {"0": begin, "1": 3}}
    assert ranges(reader_for(broker), INITIAL.to_json(), end) == [one for one in [(0, begin, 10), (1, 3, 10)] if one[1] < one[2]]
    assert caplog.text.count(told) == 1
    unread = reader_for(broker, where="partition = 1", **COMMITTED)
    assert ranges(unread, INITIAL.to_json(), latest(unread, INITIAL.to_json())) == [(1, 3, 10)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_what_a_group_reads_while_the_query_starts_is_no_loss(broker: FakeBroker, isolation: str) -> None:
    (partition, _) = broker.topics["events"]
    options = options_for(broker, is_streaming=True, **COMMITTED, **{"isolation.level": isolation})
    with lease_client(options.consumer) as client:
        reader = OffsetReader(client, options)
        snapshot = reader.snapshot()
        fill(partition, [2])
        broker.groups["g"] = {partition.tp: (12, "")}
        begins = reader.resolve(options.starting, snapshot, now_ms=0)
    assert begins == {TopicPartition("events", 0): 12, TopicPartition("events", 1): 0}


def test_deleted_topic_is_told_once_and_every_later_batch_goes_on(broker: FakeBroker) -> None:
    fill(broker.create("more")[0], [2])
    options = {"subscribe": "events,more", "failOnDataLoss": "false"}
    first = latest(reader_for(broker, startingOffsets="earliest", **options), INITIAL.to_json())
    del broker.topics["more"]
    with pytest.raises(DataLossError, match="gone or no longer subscribed to: more-0"):
        latest(reader_for(broker, subscribe="events,more"), first)
    second = latest(reader_for(broker, **options), first)
    assert user_offsets(second) == {"events": {"0": 10, "1": 10}}
    fill(broker.topics["events"][0], [5])
    strict = reader_for(broker, subscribe="events,more")  # the checkpoint is past the loss
    third = latest(strict, second)
    assert ranges(strict, second, third) == [(0, 10, 15)]
    fill(broker.create("more")[0], [3])
    fourth = latest(strict, third)
    assert user_offsets(fourth) == {"events": {"0": 15, "1": 10}, "more": {"0": 3}}
    assert ranges(strict, third, fourth) == [(0, 0, 3)]


def test_pattern_without_match_waits_for_topics(broker: FakeBroker) -> None:
    reader = reader_for(broker, subscribePattern="later.*")
    first = latest(reader, reader.initialOffset())
    assert user_offsets(first) == {}
    fill(broker.create("later")[0], [3])
    second = latest(reader, first)
    assert ranges(reader, first, second) == [(0, 0, 3)]


def test_a_pattern_whose_topics_all_go_reads_those_that_come(broker: FakeBroker) -> None:
    clock = ManualClock()
    reader = clocked_reader(broker, clock, subscribePattern="^events", startingOffsets="earliest", failOnDataLoss="false")
    first = latest(reader, reader.initialOffset())
    del broker.topics["events"]
    with pytest.raises(DataLossError, match="gone or no longer subscribed to: events-0, events-1"):
        latest(reader_for(broker, subscribePattern="^events"), first)
    second = latest(reader, first)
    assert user_offsets(second) == {}
    assert latest(reader, second) == second
    fill(broker.create("events-eu")[0], [3])
    third = latest(reader, second)
    assert ranges(reader, second, third) == [(0, 0, 3)]
    fill(broker.create("events")[0], [2])
    clock.advance(LOOK_UP_MS + 1)
    assert user_offsets(latest(reader, third)) == {"events": {"0": 2}, "events-eu": {"0": 3}}


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_topic_of_a_pattern_that_may_not_be_seen_any_more_is_no_data_loss(broker: FakeBroker, is_available_now: bool) -> None:
    more = broker.create("more")
    fill(more[0], [3])
    first = latest(reader_for(broker, subscribePattern="e", startingOffsets="earliest"), INITIAL.to_json())
    del broker.topics["more"]
    broker.forbidden.add("more")
    reader = reader_for(broker, subscribePattern="e", failOnDataLoss="false")
    if is_available_now:
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(TopicAuthorizationFailedError, match="topic 'more' is not for you"):
        latest(reader, first)
    narrower = reader_for(broker, subscribePattern="^events$", failOnDataLoss="false")
    assert user_offsets(latest(narrower, first)) == {"events": {"0": 10, "1": 10}}, "it is not asked for"
    broker.forbidden.clear()
    broker.topics["more"] = more
    fill(more[0], [2])
    assert ranges(reader, first, latest(reader_for(broker, subscribePattern="e"), first)) == [(0, 3, 5)], "it goes on where it was"


def test_the_largest_limits_limit_nothing(broker: FakeBroker) -> None:
    largest = 2**63 - 1
    reader = reader_for(
        broker, startingOffsets='{"events": {"0": 5, "1": -2}}', maxOffsetsPerTrigger=largest, maxBytesPerTrigger=largest
    )
    end = latest(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert ranges(reader, reader.initialOffset(), end) == [(0, 5, 10), (1, 0, 10)]


class OwnReader(BrokerdStreamReader):
    """A subclass of the reader, which tasks must get too."""


def test_reader_pickles_as_spark_ships_it_to_tasks(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest")
    end = latest(reader, reader.initialOffset())
    copy = pickle.loads(pickle.dumps(reader))
    assert rows_of(copy, reader.initialOffset(), end) == 20
    reader.__class__ = OwnReader
    assert type(pickle.loads(pickle.dumps(reader))) is OwnReader


def test_a_batch_waits_for_min_offsets_or_for_the_delay_to_pass(broker: FakeBroker) -> None:
    clock = ManualClock()
    options = options_for(broker, is_streaming=True, startingOffsets="earliest", minOffsetsPerTrigger=8, maxTriggerDelay="2m")
    reader = BrokerdStreamReader(options, ALL_COLUMNS, clock)
    first = latest(reader, reader.initialOffset())
    assert user_offsets(first) == {"events": {"0": 10, "1": 10}}  # the first batch does not wait
    fill(broker.topics["events"][0], [5])
    assert json.dumps(latest(reader, first)) == json.dumps(first)
    fill(broker.topics["events"][1], [3])
    second = latest(reader, first)
    assert user_offsets(second) == {"events": {"0": 15, "1": 13}}
    fill(broker.topics["events"][0], [1])
    clock.advance(119_999)
    assert json.dumps(latest(reader, second)) == json.dumps(second)
    clock.advance(1)
    third = latest(reader, second)
    assert user_offsets(third) == {"events": {"0": 16, "1": 13}}
    fill(broker.topics["events"][0], [1])
    assert json.dumps(latest(reader, third)) == json.dumps(third)  # the delay counts from the last batch


def test_a_loss_is_told_once_however_few_records_are_left(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    partition = broker.topics["events"][0]
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 8, "failOnDataLoss": "false"}
    reader = clocked_reader(broker, ManualClock(), **options)
    first = latest(reader, reader.initialOffset())
    fill(partition, [3])
    partition.log_start_offset = 12
    second = latest(reader, first)
    assert ranges(reader, first, second) == [(0, 12, 13)]
    assert latest(reader, second) == second
    assert caplog.text.count("2 records of events-0 are gone") == 1


def test_assigned_partition_that_comes_later_is_read_from_its_start_and_told_once(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_for(broker, assign='{"events": [0, 2]}')
    first = latest(reader, reader.initialOffset())
    assert user_offsets(first) == {"events": {"0": 10}}
    assert json.dumps(latest(reader, first)) == json.dumps(first)
    assert caplog.text.count("option assign names partitions that do not exist; each is read once it does: events-2") == 1
    partitions = broker.topics["events"]
    partitions.append(Partition(TopicIdPartition(partitions[0].tp.topic_id, 2)))
    fill(partitions[2], [4])
    second = latest(reader, first)
    assert ranges(reader, first, second) == [(2, 0, 4)]


def test_what_where_names_is_told_once_and_read_once_it_exists(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "where" in record.getMessage()]

    clock = ManualClock()
    reader = clocked_reader(broker, clock, subscribePattern="e", where="topic IN ('events', 'later') AND partition IN (0, 2)")
    first = latest(reader, reader.initialOffset())
    assert latest(reader, first) == first
    clock.advance(LOOK_UP_MS + 1)
    assert told() == [
        "option where names topics that are not read: 'later'. Read now: events-0, events-1",
        "option where names partitions that are not read: 2. Read now: events-0, events-1",
    ]
    for partition in broker.create("later", 3):
        fill(partition, [4])
    second = latest(reader, first)
    assert ranges(reader, first, second) == [(0, 0, 4), (2, 0, 4)]
    assert len(told()) == 2
    reader.prepareForTriggerAvailableNow()
    assert latest(reader, second) == second
    assert len(told()) == 2


def test_what_goes_while_a_stream_waits_for_records_is_told(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.create("later")[0], [1])
    options = {"subscribePattern": "e", "where": "topic IN ('events', 'later')", "failOnDataLoss": "false"}
    reader = clocked_reader(broker, ManualClock(), **options)
    first = latest(reader, reader.initialOffset())
    monkeypatch.setattr(OffsetReader, "wait_for_records", lambda *_, **__: broker.topics.pop("later", None))
    latest(reader, latest(reader, latest(reader, first)))
    assert caplog.text.count("option where names topics that are not read: 'later'. Read now: events-0, events-1") == 1


def test_a_source_without_rows_waits_only_while_the_query_is_idle(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    reader = clocked_reader(broker, clock)
    end = latest(reader, reader.initialOffset())

    def wait(*_: object, timeout_ms: int) -> None:
        clock.advance(timeout_ms)

    def waited_ms(*, since_last_call_ms: int) -> int:
        clock.advance(since_last_call_ms)
        before_ms = clock.monotonic_ms()
        assert latest(reader, end) == end
        return clock.monotonic_ms() - before_ms

    monkeypatch.setattr(OffsetReader, "wait_for_records", wait)
    assert waited_ms(since_last_call_ms=10) == 0, "the first call without rows"
    assert waited_ms(since_last_call_ms=10) == IDLE_WAIT_MS, "Spark polls"
    assert waited_ms(since_last_call_ms=10) == IDLE_WAIT_MS
    for _ in range(3):
        assert waited_ms(since_last_call_ms=150) == 0, "another source had rows, and may have more"
    assert waited_ms(since_last_call_ms=10) == IDLE_WAIT_MS


@pytest.mark.parametrize(("option", "value"), [("subscribe", "events,nope"), ("assign", '{"nope": [0]}')])
def test_a_missing_topic_is_told_with_the_option_that_names_it(broker: FakeBroker, option: str, value: str) -> None:
    reader = reader_for(broker, **{option: value})
    with pytest.raises(UnknownTopicOrPartitionError, match=f"topic 'nope' does not exist: .* or correct option {option}$"):
        latest(reader, reader.initialOffset())
