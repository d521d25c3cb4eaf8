"""A query's positions, committed as a group's offsets: what is sent and when, and that no failure reaches the query."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import CancelledError
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.client.leases import lease_client
from brokerd.datasource.offsets import INITIAL, SourceOffset, parse_source_offset
from brokerd.datasource.stream_reader import REFRESH_MS, RETRY_MS, BrokerdStreamReader, GroupProgress
from brokerd.errors import GroupAuthorizationFailedError
from brokerd.ids import TopicPartition
from tests.support.clock import ManualClock
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker
from tests.support.wait import DEADLINE_S
from tests.unit.datasource.reading import ALL_COLUMNS, options_for


class Query:
    """One query's positions; `record` waits for its request."""

    def __init__(self, broker: FakeBroker) -> None:
        self.clock = ManualClock()
        self.progress = GroupProgress(self.clock)
        self._options = options_for(broker, is_streaming=True)
        self._topic_id = broker.topics["events"][0].tp.topic_id

    def record(self, *offsets: int) -> None:
        numbered = {TopicPartition("events", number): offset for number, offset in enumerate(offsets)}
        with lease_client(self._options.consumer) as client:
            self.progress.record(client, "g", SourceOffset(numbered, {"events": self._topic_id}))
            self.progress.finish(client, "g", timeout_ms=int(DEADLINE_S * 1000))


def test_only_what_has_changed_is_sent(broker: FakeBroker) -> None:
    query = Query(broker)
    query.record(3, 4)
    query.record(3, 4)
    query.record(3, 7)
    assert broker.commits == [{0: 3, 1: 4}, {1: 7}]


def test_a_query_that_reads_nothing_for_long_is_not_forgotten(broker: FakeBroker) -> None:
    query = Query(broker)
    query.record(3, 4)
    query.clock.advance(REFRESH_MS)
    query.record(3, 4)
    assert broker.commits == [{0: 3, 1: 4}] * 2


def test_a_refusal_is_told_once_and_tried_again_after_a_while(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(broker)
    broker.errors["CommitGroupOffsets"] = [GroupAuthorizationFailedError("no right to group 'g'")] * 2
    query.record(3, 4)
    query.record(5, 4)
    query.clock.advance(RETRY_MS)
    query.record(5, 4)
    assert broker.commits == []
    query.clock.advance(RETRY_MS)
    query.record(5, 4)
    assert broker.commits == [{0: 5, 1: 4}]
    assert (
        caplog.text.count("cannot record the positions of this query as group 'g'; reading continues: no right to group 'g'") == 1
    )


def test_a_position_that_is_refused_is_told_and_not_sent_again(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(broker)
    query.record(11, 4)
    query.record(11, 4)
    assert broker.commits == [{0: 11, 1: 4}]
    assert "offset 11 is beyond 10" in caplog.text


class HeldClient:
    """A client whose commits end when the test ends them. It is its own loop_thread and broker_client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop_thread = self.broker_client = self
        self.commits: list[list[int]] = []
        self.under_way: list[HeldCall] = []
        monkeypatch.setattr("brokerd.datasource.stream_reader.commit_group_offsets", self._commit)

    def _commit(self, _client: object, _group_id: str, offsets: dict[Any, OffsetAndMetadata]) -> None:
        self.commits.append([committed.offset for committed in offsets.values()])

    def submit(self, _: None) -> HeldCall:
        self.under_way.append(HeldCall())
        return self.under_way[-1]

    def run(self, _: None) -> None:
        """Returns at once."""


class HeldCall:
    """A call on the loop thread that ends when the test ends it."""

    def __init__(self) -> None:
        self.has_ended = False
        self.is_cancelled = False

    def end(self, *, is_cancelled: bool = False) -> None:
        self.has_ended, self.is_cancelled = True, is_cancelled

    def outcome(self) -> dict[Any, Any]:
        if self.is_cancelled:
            raise CancelledError
        return {}

    def ended(self, _timeout_ms: int) -> None:
        """Returns at once."""


def test_a_request_under_way_is_not_joined_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    held, progress = HeldClient(monkeypatch), GroupProgress(ManualClock())
    client = cast("BlockingClient", held)
    for offset in (3, 4, 5):
        progress.record(client, "g", SourceOffset({TopicPartition("t", 0): offset}, {"t": bytes(16)}))
    progress.finish(client, "g", timeout_ms=0)
    assert held.commits == [[3]]
    held.under_way[0].end()
    progress.record(client, "g", SourceOffset({TopicPartition("t", 0): 5}, {"t": bytes(16)}))
    assert held.commits == [[3], [5]]


def test_a_request_that_a_closing_client_took_back_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held, progress = HeldClient(monkeypatch), GroupProgress(ManualClock())
    position = SourceOffset({TopicPartition("t", 0): 3}, {"t": bytes(16)})
    progress.record(cast("BlockingClient", held), "g", position)
    held.under_way[0].end(is_cancelled=True)
    progress.record(cast("BlockingClient", held), "g", position)
    assert held.commits == [[3], [3]]


def test_a_stream_records_where_its_next_batch_starts_and_at_its_end_where_it_ended(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.datasource.stream_reader._FINISH_MS", int(DEADLINE_S * 1000))
    reader = BrokerdStreamReader(options_for(broker, is_streaming=True, startingOffsets="earliest"), ALL_COLUMNS, ManualClock())
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(INITIAL.to_json(), ReadAllAvailable())
    assert broker.groups == {}
    assert reader.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable()) == end
    source_id = parse_source_offset(end).source_id
    (committed,) = (offsets for group, offsets in broker.groups.items() if group == f"spark-brokerd-{source_id}")
    assert sorted(offset for offset, _ in committed.values()) == [10, 10]
    pickle.loads(pickle.dumps(reader))


def test_the_id_in_a_checkpoint_stays(broker: FakeBroker) -> None:
    options = options_for(broker, is_streaming=True, startingOffsets="earliest")
    first = BrokerdStreamReader(options, ALL_COLUMNS, ManualClock()).latestOffset(INITIAL.to_json(), ReadAllAvailable())
    fill(broker.topics["events"][0], [1])
    second = BrokerdStreamReader(options, ALL_COLUMNS, ManualClock()).latestOffset(first, ReadAllAvailable())
    assert first["@brokerd"]["sourceId"] == second["@brokerd"]["sourceId"] != ""
