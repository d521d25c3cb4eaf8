"""The source's options: what to read, where to start and end, and a one-sentence error for each wrong option."""

from __future__ import annotations

import pickle

import pytest

from brokerd.client.bounds import TimeAgo
from brokerd.client.offsets import LastRecords, OffsetSpec
from brokerd.datasource.bounds import AtTimestamp, Bound, Committed, SpecificOffsets
from brokerd.datasource.options import (
    AssignedPartitions,
    SourceOptions,
    TopicList,
    TopicPattern,
    check_at_load,
    parse_source_options,
)
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

SERVERS = {"bootstrap.servers": "127.0.0.1:9192"}
BASE = {**SERVERS, "subscribe": "events"}


def stream(**options: str) -> SourceOptions:
    return parse_source_options({**BASE, **options}, is_streaming=True)


def batch(**options: str) -> SourceOptions:
    return parse_source_options({**BASE, **options}, is_streaming=False)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    assert stream().starting is OffsetSpec.LATEST
    assert batch().starting is OffsetSpec.EARLIEST
    assert batch().ending is OffsetSpec.LATEST
    assert stream().fail_on_data_loss
    assert not stream().include_headers
    assert stream().max_offsets_per_trigger is None
    assert stream().consumer.isolation_level == "read_committed"


def test_subscriptions() -> None:
    assert parse_source_options({**SERVERS, "subscribe": " a, b ,a"}, is_streaming=True).subscription == TopicList(("a", "b"))
    assert parse_source_options({**SERVERS, "subscribepattern": "a.*"}, is_streaming=True).subscription == TopicPattern("a.*")
    assert parse_source_options({**SERVERS, "assign": '{"a": [1, 0]}'}, is_streaming=True).subscription == AssignedPartitions(
        (TopicPartition("a", 0), TopicPartition("a", 1))
    )


def test_offsets_in_json_use_minus_two_and_minus_one_for_the_ends() -> None:
    assert stream(startingoffsets='{"events": {"0": 23, "1": -2, "2": -1}}').starting == SpecificOffsets(
        "startingOffsets",
        {TopicPartition("events", 0): 23, TopicPartition("events", 1): -2, TopicPartition("events", 2): -1},
    )


@pytest.mark.parametrize("word", ["earliest", "EARLIEST", "eArLiEst"])
def test_words_for_the_ends_are_read_without_case_alone_and_for_a_topic(word: str) -> None:
    assert batch(startingoffsets=word).starting == OffsetSpec.EARLIEST
    starting = stream(startingoffsets=f'{{"events": "{word}", "More": "LaTest", "others": {{"0": 23}}}}').starting
    assert starting == SpecificOffsets("startingOffsets", {TopicPartition("others", 0): 23}, {"events": -2, "More": -1})


def test_offsets_copied_from_a_checkpoint_are_taken() -> None:
    starting = stream(startingoffsets='{"events": {"0": 23}, "@brokerd": {"version": 1}}').starting
    assert isinstance(starting, SpecificOffsets)
    assert starting.offsets == {TopicPartition("events", 0): 23}


def test_timestamps_go_before_offsets() -> None:
    options = stream(startingoffsets="earliest", startingtimestamp="1000", startingoffsetsbytimestampstrategy="latest")
    assert options.starting == AtTimestamp("startingTimestamp", 1000, latest_if_unmatched=True)
    by_partition = batch(endingoffsetsbytimestamp='{"events": {"0": 5}}').ending
    assert isinstance(by_partition, AtTimestamp)
    assert by_partition.for_partition(TopicPartition("events", 0)) == 5
    assert by_partition.for_partition(TopicPartition("events", 1)) is None


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("kafka.auto.offset.reset", "latest", r"is not accepted.*a query starts at startingOffsets"),
        ("enable.auto.commit", "true", r"offsets are kept in Spark's checkpoint"),
        ("maxbytespertrigger", "5m", "maxBytesPerTrigger must be a whole number between 1 and 9223372036854775807, not '5m'"),
        ("maxbytespertrigger", "0", "maxBytesPerTrigger must be a whole number between 1"),
        ("maxtriggerdelay", "soon", r"maxTriggerDelay must be a duration such as 15m, 30s or 500ms .*, not 'soon'"),
        ("maxtriggerdelay", "5y", r"maxTriggerDelay must be a duration such as 15m"),
        ("startingoffsets", '{"events": {"0": 1}, "events": {"0": 2}}', r"startingOffsets must be .*: 'events' is given twice"),
        ("startingoffsets", '{"events": {"0": 1, "0": 2}}', r"startingOffsets must be .*: '0' is given twice: keep one"),
        ("startingoffsets", '{"events": {"0": 1, "00": 2}}', r"partition events-0 is given twice, once as '00'"),
        ("startingoffsets", '{"events": "first"}', r"'events' is \"first\""),
        ("startingoffsetsbytimestamp", '{"events": {"0": 1, "0": 2}}', r"startingOffsetsByTimestamp must be .*'0' is given twice"),
        ("startingoffsetsbytimestamp", '{"events": "latest"}', r"'events' is \"latest\""),
        ("startingoffsets", "first", r"startingOffsets must be earliest, latest or JSON such as .*, not 'first'"),
        ("startingoffsets", '{"events": {"0": -3}}', r"'events' partition '0' is -3"),
        ("startingoffsets", '{"events": {"x": 1}}', r"'events' partition 'x' is 1"),
        ("startingoffsets", '{"events": [0]}', r"'events' is \[0\]"),
        ("startingtimestamp", "yesterday", r"startingTimestamp takes ms since 1970, a time ago such as -10m, or ISO 8601"),
        (
            "startingtimestamp",
            "9" * 19,
            r"startingTimestamp must be at most 9223372036854775807 ms .*not 9999999999999999999",
        ),
        ("startingoffsetsbytimestamp", f'{{"events": {{"0": {2**63}}}}}', r"partition '0' is 9223372036854775808"),
        ("startingtimestamp", "9" * 5_000, r"startingTimestamp must be at most"),
        ("startingoffsets", f'{{"events": {{"0": {"9" * 5_000}}}}}', r"startingOffsets must be earliest, latest or JSON"),
        ("startingoffsets", "[" * 100_000, r"startingOffsets must be earliest, latest or JSON"),
        ("startingoffsets", f'{{"events": {{"{2**31}": 1}}}}', r"partition '2147483648' is 1"),
        ("endingoffsets", "latest", r"endingOffsets is for batch reads"),
        ("maxoffsetspertrigger", "0", r"maxOffsetsPerTrigger must be a whole number between 1 and 9223372036854775807, not '0'"),
        ("minpartitions", "many", r"minPartitions must be a whole number between 1 and 9223372036854775807, not 'many'"),
        ("failondataloss", "maybe", r"failOnDataLoss must be true or false"),
        ("isolation.level", "dirty", r"isolation\.level must be one of"),
        ("subscribe", "a b", r"subscribe names 'a b', which is not a topic's name"),
        ("subscribe", " , ", r"subscribe is empty"),
        ("assign", '{"a": [0]}', r"exactly one of subscribe, subscribePattern and assign.*subscribe and assign are given"),
        ("startingoffsetsbytimestampstrategy", "x", r"must be error or latest, not 'x'"),
    ],
)
def test_wrong_option_is_refused_in_one_sentence(option: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_source_options({**BASE, option: value}, is_streaming=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("startingoffsets", "latest", r"startingOffsets must be earliest or JSON"),
        (
            "startingoffsets",
            '{"events": {"0": -1}}',
            r"startingOffsets is -1 \(latest\) for events-0, which leaves nothing to read",
        ),
        ("startingoffsets", '{"events": "latest"}', r"startingOffsets is -1 \(latest\) for events, which leaves nothing to read"),
        ("endingoffsets", "earliest", r"endingOffsets must be latest or JSON"),
        ("endingoffsets", '{"events": {"0": -2}}', r"endingOffsets is -2 \(earliest\) for events-0"),
    ],
)
def test_batch_bounds_that_leave_nothing_to_read_are_refused(option: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_source_options({**BASE, option: value}, is_streaming=False)


@pytest.mark.parametrize(
    "text", ["[0]", '{"a": []}', '{"a": [-1]}', '{"a": ["0"]}', "a", "{}", '{"a": [2147483648]}', "9" * 5_000, "[" * 100_000]
)
def test_malformed_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="assign must be JSON such as"):
        parse_source_options({**SERVERS, "assign": text}, is_streaming=True)


def test_an_assignment_names_a_topic_once() -> None:
    with pytest.raises(ConfigError, match=r"assign must be JSON such as .*: 'a' is given twice: keep one"):
        parse_source_options({**SERVERS, "assign": '{"a": [0], "a": [1]}'}, is_streaming=True)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_pattern_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="subscribePattern is empty"):
        parse_source_options({**SERVERS, "subscribePattern": text}, is_streaming=True)


def test_the_sinks_topic_does_not_say_what_to_read() -> None:
    with pytest.raises(ConfigError, match=r"but none is given \('topic' is the sink's\)"):
        parse_source_options({**SERVERS, "topic": "events"}, is_streaming=True)


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("2 min", 120_000), ("30S", 30_000), ("7", 7), ("500ms", 500), ("1h", 3_600_000)]
)
def test_trigger_delays_are_written_as_in_spark(text: str, ms: int) -> None:
    assert stream(minoffsetspertrigger="5", maxtriggerdelay=text).max_trigger_delay_ms == ms


def test_min_offsets_per_trigger() -> None:
    assert (stream().min_offsets_per_trigger, stream().max_trigger_delay_ms) == (None, 900_000)
    assert stream(minoffsetspertrigger="5", maxoffsetspertrigger="5").min_offsets_per_trigger == 5
    with pytest.raises(ConfigError, match=r"minOffsetsPerTrigger \(6\) must not exceed maxOffsetsPerTrigger \(5\)"):
        stream(minoffsetspertrigger="6", maxoffsetspertrigger="5")
    # A batch read ignores them, as in Spark-Kafka.
    assert batch(minoffsetspertrigger="5", maxtriggerdelay="1s").starting is OffsetSpec.EARLIEST


@pytest.mark.parametrize(
    ("text", "starting"),
    [
        ("-10m", AtTimestamp("startingOffsets", TimeAgo(600_000), latest_if_unmatched=True)),
        ("2026-01-31T12:00:00Z", AtTimestamp("startingOffsets", 1_769_860_800_000, latest_if_unmatched=True)),
        ("@1005", AtTimestamp("startingOffsets", 1_005, latest_if_unmatched=True)),
        ("-1000", LastRecords(1_000)),
        ("-3", LastRecords(3)),
    ],
)
def test_a_start_is_written_as_on_the_command_line(text: str, starting: Bound) -> None:
    assert stream(startingoffsets=text).starting == batch(startingoffsets=text).starting == starting


def test_an_end_is_written_as_on_the_command_line() -> None:
    assert batch(endingoffsets="-1000").ending == LastRecords(1_000)
    assert batch(endingtimestamp="-10m").ending == AtTimestamp("endingTimestamp", TimeAgo(600_000), latest_if_unmatched=True)


@pytest.mark.parametrize(("text", "time"), [("1005", 1_005), ("2026-01-31T12:00:00Z", 1_769_860_800_000), ("-1s", TimeAgo(1_000))])
def test_a_time_is_written_as_on_the_command_line(text: str, time: object) -> None:
    assert stream(startingtimestamp=text).starting == AtTimestamp("startingTimestamp", time, latest_if_unmatched=False)  # type: ignore[arg-type]


def test_a_start_may_be_what_a_group_has_read() -> None:
    assert stream(startingoffsets="committed", **{"group.id": "g"}).starting == Committed()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-1", "startingOffsets must not be -1, which in JSON is no count but an end of the log"),
        ("-2", "startingOffsets must not be -2"),
        ("-10 weeks", r"startingOffsets must be .*, or for all partitions -N \(the newest N records\), .*, not '-10 weeks'"),
        ("1200", r"startingOffsets must be .*JSON such as .*, not '1200'"),
        ("-", "startingOffsets must be .* -10m"),
        ("--5", "startingOffsets must be .* -10m"),
        ("-" + "9" * 5_000, "startingOffsets must be .* -10m"),
        ("committed", "startingOffsets is committed, which needs option group.id"),
    ],
)
def test_a_start_of_the_wrong_form_is_refused_with_the_right_ones(text: str, problem: str) -> None:
    for parse in (stream, batch):
        with pytest.raises(ConfigError, match=problem):
            parse(startingoffsets=text)


@pytest.mark.parametrize(
    ("given", "group_id"),
    [
        ({}, "spark-brokerd-7"),
        ({"groupIdPrefix": "billing"}, "billing-7"),
        ({"group.id": "g"}, "g"),
        ({"kafka.group.id": "g", "groupIdPrefix": "billing"}, "g"),
    ],
)
def test_the_group_of_a_stream_has_the_name_that_was_chosen(given: dict[str, str], group_id: str) -> None:
    assert stream(**given).group_id_of("7") == group_id


def test_without_an_id_in_the_checkpoint_only_a_chosen_name_is_known() -> None:
    assert stream().group_id_of("") is None
    assert stream(**{"group.id": "g"}).group_id_of("") == "g"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"group.id": ""}, r"group\.id must have 1 to 249 characters that can be printed, not ''"),
        ({"group.id": "a\nb"}, r"group\.id must have 1 to 249"),
        ({"groupIdPrefix": "x" * 213}, "groupIdPrefix must have 1 to 212 characters"),
        ({"group.id": "a", "kafka.group.id": "b"}, r"'group\.id' and 'kafka\.group\.id' are both given"),
    ],
)
def test_a_group_that_can_have_no_such_name_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        stream(**given)


def test_assignment_of_what_can_be_no_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="assign names 'a b', which is not a topic's name: only letters"):
        parse_source_options({**SERVERS, "assign": '{"a b": [0]}'}, is_streaming=True)


def test_something_must_be_read() -> None:
    with pytest.raises(ConfigError, match="but none is given"):
        parse_source_options(SERVERS, is_streaming=True)
    with pytest.raises(ConfigError, match="is not a regular expression"):
        parse_source_options({**SERVERS, "subscribePattern": "a("}, is_streaming=True)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"include.headers": "true"}, "unknown option"),
        ({}, "exactly one of subscribe.* none is given"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "exactly one of subscribe"),
        ({"subscribe": " "}, "subscribe is empty"),
        ({"subscribe": "a", "minPartitions": ""}, "minPartitions must be"),
        ({"subscribe": "a", "endingOffsets": "nowhere"}, "endingOffsets"),
    ],
)
def test_load_refuses_what_no_read_can_have(options: dict[str, str], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        check_at_load({**SERVERS, **options})


def test_load_takes_what_a_batch_read_a_stream_or_a_table_can_have() -> None:
    assert check_at_load({**SERVERS, "subscribe": "a", "includeheaders": "true"})
    assert not check_at_load({**SERVERS, "subscribe": "a", "startingOffsets": "latest"})
    assert not check_at_load({**SERVERS, "subscribe": "a", "endingOffsets": "latest"})
    assert not check_at_load({"provider": "brokerd"})


def test_options_pickle_because_readers_travel_to_executors() -> None:
    options = stream(startingoffsets='{"events": {"0": 23}}')
    assert pickle.loads(pickle.dumps(options)) == options
