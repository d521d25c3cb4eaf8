"""A Spark query under rights: without those to its group it reads on and says so; where it is to begin at a group's offsets, it
fails and says why."""

from __future__ import annotations

import json
import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd.clock import SystemClock
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from tests.integration.security.conftest import ClientAs
from tests.integration.security.test_groups import commit, listed
from tests.support.daemon import RunningDaemon
from tests.support.identities import TOKENS
from tests.support.raw_client import values_batch
from tests.unit.datasource.reading import ALL_COLUMNS


def reader_as(who: str, daemon: RunningDaemon, topic: str, **options: str) -> BrokerdStreamReader:
    given = {"bootstrap.servers": daemon.address, "auth.token": TOKENS[who], "subscribe": topic, "startingOffsets": "earliest"}
    return BrokerdStreamReader(parse_source_options({**given, **options}, is_streaming=True), ALL_COLUMNS, SystemClock())


def rows_read(reader: BrokerdStreamReader) -> list[int]:
    """Offsets of a run to what is there now, as Spark drives it."""
    reader.prepareForTriggerAvailableNow()
    start, offsets = INITIAL.to_json(), []
    while (end := json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))) != start:
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                offsets += batch.column("offset").to_pylist()
        start = end
    return offsets


def test_a_query_reads_on_without_the_right_to_its_group(
    guarded: RunningDaemon, client_as: ClientAs, caplog: pytest.LogCaptureFixture
) -> None:
    boss = client_as(TOKENS["boss"])
    (events,) = boss.create_topic("events-of-a-query")
    boss.producer().produce(events, values_batch(events, 5))
    commit(boss, "the-bosss", [events])
    with caplog.at_level(logging.WARNING):
        assert rows_read(reader_as("reader", guarded, "events-of-a-query", **{"group.id": "the-bosss"})) == [0, 1, 2, 3, 4]
    assert "the positions of this query are not recorded as group 'the-bosss', reading goes on" in caplog.text
    assert rows_read(reader_as("reader", guarded, "events-of-a-query", **{"group.id": "its-own"})) == [0, 1, 2, 3, 4]
    assert listed(boss, "its-own") == [("its-own", "reader")]


def test_a_query_that_is_to_begin_at_offsets_of_others_fails_and_says_why(guarded: RunningDaemon, client_as: ClientAs) -> None:
    boss = client_as(TOKENS["boss"])
    (events,) = boss.create_topic("events-of-others")
    commit(boss, "of-others", [events])
    reader = reader_as("reader", guarded, "events-of-others", startingOffsets="committed", **{"group.id": "of-others"})
    with pytest.raises(GroupAuthorizationFailedError, match="of-others"):
        rows_read(reader)


def test_a_topic_that_may_not_be_read_is_an_error_that_names_it(guarded: RunningDaemon, client_as: ClientAs) -> None:
    client_as(TOKENS["boss"]).create_topic("forbidden")
    with pytest.raises(TopicAuthorizationFailedError, match="forbidden"):
        rows_read(reader_as("reader", guarded, "forbidden"))
