"""A Spark query and its rights. Without rights to its group it continues to read and logs that; if it starts at the group's
offsets, it fails with the reason. Topics that it temporarily may not see are not taken for deleted."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd.clock import SystemClock
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from tests.integration.security.conftest import ClientAs, with_token
from tests.integration.security.test_groups import commit, listed
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE, TOKENS
from tests.support.raw_client import values_batch
from tests.unit.datasource.reading import ALL_COLUMNS


def reader_as(who: str, daemon: RunningDaemon, topic: str = "", **options: str) -> BrokerdStreamReader:
    given = {"bootstrap.servers": daemon.address, "auth.token": TOKENS[who], "startingOffsets": "earliest"}
    if topic:
        given["subscribe"] = topic
    return BrokerdStreamReader(parse_source_options({**given, **options}, is_streaming=True), ALL_COLUMNS, SystemClock())


def rows_read(reader: BrokerdStreamReader) -> list[int]:
    """Offsets of a run up to the current end, driven as Spark does."""
    reader.prepareForTriggerAvailableNow()
    start: dict[str, Any] = INITIAL.to_json()
    offsets: list[int] = []
    while (end := latest(reader, start)) != start:
        offsets += offsets_of(reader, start, end)
        start = end
    return offsets


def latest(reader: BrokerdStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The end of the batch that begins at `start`, converted to and from JSON."""
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    return end


def offsets_of(reader: BrokerdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Offsets of the rows of one batch."""
    batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_query_reads_on_without_the_right_to_its_group(
    guarded: RunningDaemon, client_as: ClientAs, caplog: pytest.LogCaptureFixture
) -> None:
    boss = client_as(TOKENS["boss"])
    (events,) = boss.create_topic("events-of-a-query")
    boss.producer().produce(events, values_batch(events, 5))
    commit(boss, "the-bosss", [events])
    with caplog.at_level(logging.WARNING):
        assert rows_read(reader_as("reader", guarded, "events-of-a-query", **{"group.id": "the-bosss"})) == [0, 1, 2, 3, 4]
    assert "cannot record the positions of this query as group 'the-bosss'; reading continues" in caplog.text
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


def test_rights_that_are_taken_away_and_given_back_lose_no_row_and_repeat_none(tmp_path: Path, auth_file: Path) -> None:
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        with_token(running.address, TOKENS["boss"]) as boss,
    ):
        topics = {name: boss.create_topic(name)[0] for name in ("events-1", "events-2")}
        for tp in topics.values():
            boss.producer().produce(tp, values_batch(tp, 5))
        lenient = {"subscribePattern": "^events-", "failOnDataLoss": "false"}
        reader = reader_as("reader", running, **lenient)
        first = latest(reader, INITIAL.to_json())
        auth_file.write_text(AUTH_FILE.replace('read = ["events-*", "clicks"]', 'read = ["events-1"]'))
        running.run(running.daemon.reload())
        with pytest.raises(TopicAuthorizationFailedError, match="events-2"):
            latest(reader, first)
        with pytest.raises(TopicAuthorizationFailedError, match="events-2"):
            offsets_of(reader, INITIAL.to_json(), first)
        auth_file.write_text(AUTH_FILE)
        running.run(running.daemon.reload())
        assert sorted(offsets_of(reader, INITIAL.to_json(), first)) == sorted(2 * [0, 1, 2, 3, 4])
        boss.producer().produce(topics["events-2"], values_batch(topics["events-2"], 2))
        assert offsets_of(reader, first, latest(reader, first)) == [5, 6]
