"""Goal: numbers and rules of the options page that no other test checks. Method: parse options and compare the results."""

from __future__ import annotations

import pytest

from brokerd.client.offsets import OffsetSpec
from brokerd.datasource.bounds import AtTimestamp
from brokerd.datasource.options import SourceOptions, parse_source_options
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition
from brokerd.sink.options import parse_sink_options

BASE = {"bootstrap.servers": "127.0.0.1:9192", "subscribe": "events"}
MIB = 1 << 20


def batch(**options: str) -> SourceOptions:
    return parse_source_options({**BASE, **options}, is_streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse_source_options({**BASE, **options}, is_streaming=True)


def test_defaults_of_a_reader() -> None:
    reader = batch().consumer
    assert (reader.fetch_max_bytes, reader.max_partition_fetch_bytes) == (16 * MIB, 4 * MIB)
    assert reader.max_decompressed_bytes == 256 * MIB
    assert (reader.isolation_level, reader.check_crcs, reader.fetch_max_wait_ms) == ("read_committed", True, 500)
    assert not reader.skip_corrupt_batches


def test_defaults_of_a_writer() -> None:
    writer = parse_sink_options({"bootstrap.servers": "127.0.0.1:9192", "topic": "t"}).producer
    assert (writer.linger_ms, writer.batch_size, writer.max_request_size) == (100, MIB, 8 * MIB)
    assert (writer.acks, writer.enable_idempotence, writer.transaction_timeout_ms) == ("all", True, 900_000)


@pytest.mark.parametrize(("strategy", "is_latest"), [("error", False), ("latest", True)])
def test_the_strategy_holds_for_both_kinds_of_starting_times(strategy: str, is_latest: bool) -> None:
    own = {"startingOffsetsByTimestampStrategy": strategy}
    for start in ({"startingTimestamp": "1000"}, {"startingOffsetsByTimestamp": '{"events": {"0": 1000}}'}):
        starting = stream(**own, **start).starting
        assert isinstance(starting, AtTimestamp)
        assert (starting.latest_if_unmatched, starting.for_partition(TopicPartition("events", 0))) == (is_latest, 1000)


def test_an_end_by_time_goes_before_one_by_offset_and_belongs_to_batches() -> None:
    assert batch(endingOffsets='{"events": {"0": 5}}').ending is not OffsetSpec.LATEST
    for end in ({"endingTimestamp": "1000"}, {"endingOffsetsByTimestamp": '{"events": {"0": 1000}}'}):
        ending = batch(endingOffsets='{"events": {"0": 5}}', **end).ending
        assert isinstance(ending, AtTimestamp)
        assert ending.for_partition(TopicPartition("events", 0)) == 1000
        with pytest.raises(ConfigError, match=f"{next(iter(end))} is for batch reads"):
            stream(**end)
