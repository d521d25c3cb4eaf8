"""spark.read: bounds are resolved against the broker, and impossible ones are refused."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter
from pyspark.sql.pandas.types import from_arrow_schema

from brokerd.clock import SystemClock
from brokerd.datasource.batch_reader import BrokerdBatchReader, PushdownReader
from brokerd.datasource.planning import RangePartition
from brokerd.datasource.source import BrokerdDataSource
from brokerd.errors import BrokerUnreachableError, ConfigError, DataLossError, UnknownTopicOrPartitionError
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker, fake_broker
from tests.unit.datasource.reading import ALL_COLUMNS, options_for


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as broker:
        first, second = broker.create("events", 2)
        fill(first, [10])
        fill(second, [20])
        yield broker


def planned(broker: FakeBroker, **options: Any) -> list[tuple[str, int, int, int]]:
    reader = BrokerdBatchReader(options_for(broker, is_streaming=False, **options), ALL_COLUMNS, SystemClock())
    ranges = []
    for partition in reader.partitions():
        assert isinstance(partition, RangePartition)
        ranges += [
            (one.topic, one.tp.partition, one.start_offset, one.until_offset)
            for one in pickle.loads(pickle.dumps(partition)).ranges
        ]
    return ranges


def test_everything_by_default(broker: FakeBroker) -> None:
    assert planned(broker) == [("events", 0, 0, 10), ("events", 1, 0, 20)]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 1), ({"taskPerPartition": "true"}, 2), ({"minPartitions": 1}, 2), ({"maxRecordsPerPartition": 20}, 2)],
)
def test_partitions_with_few_rows_share_a_task(broker: FakeBroker, options: dict[str, Any], tasks: int) -> None:
    reader = BrokerdBatchReader(options_for(broker, is_streaming=False, **options), ALL_COLUMNS, SystemClock())
    assert len(reader.partitions()) == tasks


def test_offsets_from_json(broker: FakeBroker) -> None:
    ranges = planned(broker, startingOffsets='{"events": {"0": 3, "1": -2}}', endingOffsets='{"events": {"0": -1, "1": 7}}')
    assert ranges == [("events", 0, 3, 10), ("events", 1, 0, 7)]


def test_both_bounds_count_from_one_end_of_a_topic_that_is_written(broker: FakeBroker) -> None:
    broker.after["ListOffsets"] = lambda: fill(broker.topics["events"][0], [10])
    ranges = planned(broker, startingOffsets="-5", endingOffsets="-3")
    assert ranges == [("events", 0, 5, 7), ("events", 1, 15, 17)]


def test_both_bounds_mean_one_time(broker: FakeBroker) -> None:
    """However long the broker takes to look up the first bound."""
    asked: list[int] = []

    class Hasty(SystemClock):
        def wall_ms(self) -> int:
            asked.append(1)
            return super().wall_ms()

    options = options_for(broker, is_streaming=False, startingTimestamp="-2h", endingTimestamp="-1h")
    BrokerdBatchReader(options, ALL_COLUMNS, Hasty()).partitions()
    assert asked == [1]


def test_assigned_partitions_and_no_others(broker: FakeBroker) -> None:
    assert planned(broker, assign='{"events": [1]}') == [("events", 1, 0, 20)]


def test_assigned_partition_that_does_not_exist_is_left_out_and_told(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    assert planned(broker, assign='{"events": [1, 2]}') == [("events", 1, 0, 20)]
    assert "option assign names partitions that do not exist; each is read once it does: events-2" in caplog.text
    with pytest.raises(UnknownTopicOrPartitionError, match="or correct option assign"):
        planned(broker, assign='{"nope": [0]}')


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("topic = 'evnts'", "option where names topics that are not read: 'evnts'. Read now: events-0, events-1"),
        ("topic IN ('events', 'b', 'a')", "option where names topics that are not read: 'a', 'b'. Read now: events-0, events-1"),
        ("partition = 2", "option where names partitions that are not read: 2. Read now: events-0, events-1"),
        ("partition IN (9, 0, 7)", "option where names partitions that are not read: 7, 9. Read now: events-0, events-1"),
        ("partition BETWEEN 2 AND 4", "option where leaves out all that is read now: events-0, events-1"),
        ("partition = 0 AND partition = 1", "option where leaves out all that is read now: events-0, events-1"),
    ],
)
def test_what_where_names_and_nobody_reads_is_told(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, where: str, sentence: str
) -> None:
    planned(broker, where=where)
    assert [record.getMessage() for record in caplog.records if "where" in record.getMessage()] == [sentence]


@pytest.mark.parametrize("where", ["topic = 'events'", "partition >= 1", "partition BETWEEN 0 AND 9", "offset = 1000"])
def test_a_condition_that_something_may_meet_is_not_told(broker: FakeBroker, caplog: pytest.LogCaptureFixture, where: str) -> None:
    planned(broker, where=where)
    assert "where" not in caplog.text


def test_a_warning_has_an_end(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    planned(broker, where=f"partition IN ({', '.join(map(str, range(1000)))})")
    (sentence,) = [record.getMessage() for record in caplog.records if "where" in record.getMessage()]
    assert sentence.startswith("option where names partitions that are not read: 2, 3, 4,")
    assert ", 21 and 978 more. Read now: events-0, events-1" in sentence


def test_pattern_is_searched_in_names_and_anchors_hold_it_to_whole_ones(broker: FakeBroker) -> None:
    fill(broker.create("events-eu")[0], [1])
    fill(broker.create("more-events")[0], [1])

    def topics(pattern: str) -> list[str]:
        return sorted({topic for topic, *_ in planned(broker, subscribePattern=pattern)})

    assert topics("events") == ["events", "events-eu", "more-events"]
    assert topics("^events(-.*)?$") == ["events", "events-eu"]
    assert topics(r"\Qevents\E-\p{Lower}++") == ["events-eu"]


def test_offsets_of_whole_topics(broker: FakeBroker) -> None:
    fill(broker.create("more")[0], [5])
    options = {"subscribe": "events,more", "endingOffsets": '{"events": "latest", "more": {"0": 3}}'}
    assert planned(broker, startingOffsets='{"events": {"0": 4}, "more": "earliest"}', assign='{"events": [0], "more": [0]}') == [
        ("events", 0, 4, 10),
        ("more", 0, 0, 5),
    ]
    assert planned(broker, **options) == [("events", 0, 0, 10), ("events", 1, 0, 20), ("more", 0, 0, 3)]
    with pytest.raises(ConfigError, match="startingOffsets names topics that are not read: others"):
        planned(broker, startingOffsets='{"events": "earliest", "others": "earliest"}')


def test_a_plan_is_made_for_every_action_only_where_spark_pushes_filters_down(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BrokerdDataSource({"bootstrap.servers": f"127.0.0.1:{broker.port}", "subscribe": "events"})
    columns = from_arrow_schema(ALL_COLUMNS)
    assert type(source.reader(columns)) is BrokerdBatchReader
    monkeypatch.setattr("sys.argv", ["pyspark/daemon.py", "pyspark.sql.worker.data_source_pushdown_filters"])
    reader = source.reader(columns)
    assert isinstance(reader, PushdownReader)
    filters: list[Filter] = [EqualTo(("partition",), 1)]
    assert list(reader.pushFilters(filters)) == filters
    assert len(reader.partitions()) == 1


def test_ranges_are_split_for_more_tasks(broker: FakeBroker) -> None:
    assert len(planned(broker, maxRecordsPerPartition=4)) == 8
    assert len(planned(broker, minPartitions=6)) == 6


def test_nothing_to_read_is_no_partition(broker: FakeBroker) -> None:
    broker.create("empty")
    assert planned(broker, subscribe="empty") == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": '{"events": {"0": 1}}'}, r"startingOffsets must name every partition.*missing: events-1"),
        ({"startingOffsets": '{"events": {"0": 1, "1": 1, "2": 1}}'}, r"names partitions that are not read: events-2"),
        ({"startingOffsets": '{"events": {"0": 11, "1": 0}}'}, r"startingOffsets is 11 for events-0, but it can be read up to 10"),
        ({"endingOffsets": '{"events": {"0": 11, "1": 0}}'}, r"endingOffsets is 11 for events-0, but it can be read up to 10"),
        (
            {"startingOffsets": '{"events": {"0": 5, "1": 0}}', "endingOffsets": '{"events": {"0": 4, "1": 0}}'},
            r"the read of events-0 would end at offset 4, before it starts at 5",
        ),
    ],
)
def test_bounds_that_cannot_be_are_refused(broker: FakeBroker, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        planned(broker, **options)


def test_a_read_may_start_behind_what_is_committed_but_not_end_there(broker: FakeBroker) -> None:
    broker.topics["events"][0].last_stable_offset = 4
    start = '{"events": {"0": 6, "1": 18}}'
    assert planned(broker, startingOffsets=start) == [("events", 1, 18, 20)]
    with pytest.raises(ConfigError, match="endingOffsets is 7 for events-0, but it can be read up to 4"):
        planned(broker, startingOffsets=start, endingOffsets='{"events": {"0": 7, "1": 20}}')
    with pytest.raises(ConfigError, match="would end at offset 3, before it starts at 6"):
        planned(broker, startingOffsets=start, endingOffsets='{"events": {"0": 3, "1": 20}}')


def test_offsets_below_the_log_are_data_loss(broker: FakeBroker) -> None:
    broker.topics["events"][0].log_start_offset = 4
    asked = '{"events": {"0": 1, "1": 0}}'
    with pytest.raises(DataLossError, match="3 records of events-0 are gone, offsets 1 to 3"):
        planned(broker, startingOffsets=asked)
    assert planned(broker, startingOffsets=asked, failOnDataLoss="false")[0] == ("events", 0, 4, 10)
    assert planned(broker, startingOffsets=asked, where="partition = 1") == [("events", 1, 0, 20)], "nobody wants them"


def test_unknown_topic_says_how_to_create_it(broker: FakeBroker) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'nope' does not exist: create it \(brokerd topics create nope"):
        planned(broker, subscribe="nope")


def test_topic_deleted_between_two_calls_is_asked_again(broker: FakeBroker) -> None:
    from brokerd.errors import UnknownTopicIdError

    broker.errors["ListOffsets"] = [UnknownTopicIdError("just deleted")]
    assert planned(broker) == [("events", 0, 0, 10), ("events", 1, 0, 20)]


def test_unreachable_broker_says_address_and_time(broker: FakeBroker) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # a reserved port without a listener
        port = silent.getsockname()[1]
        with pytest.raises(BrokerUnreachableError, match=rf"127\.0\.0\.1:{port}"):
            planned(broker, **{"bootstrap.servers": f"127.0.0.1:{port}", "default.api.timeout.ms": 50})


def test_what_a_group_has_read_of_another_history_is_a_loss(broker: FakeBroker) -> None:
    first, _ = broker.topics["events"]
    first.epoch_ids = {0: 7, 4: 9}
    broker.groups["g"], broker.group_epoch_ids = {first.tp: (6, "")}, {("g", first.tp): 8}
    committed = {"startingOffsets": "committed", "group.id": "g"}
    with pytest.raises(DataLossError, match="offset 6 is of another history"):
        planned(broker, **committed)
    assert planned(broker, failOnDataLoss="false", **committed) == [("events", 0, 4, 10), ("events", 1, 0, 20)]
