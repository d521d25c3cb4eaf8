"""A stream with trigger(availableNow=True) ends at the offsets that were the end when it began, whatever happens meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from brokerd.datasource.offset_reader import OffsetReader
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.planning import TopicState
from brokerd.errors import DataLossError, UnknownTopicOrPartitionError
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker, fake_broker
from tests.unit.datasource.streaming import latest, ranges, reader_for, rows_of, user_offsets


def test_available_now_ends_at_what_was_there_when_it_began(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest", maxOffsetsPerTrigger=15)
    reader.prepareForTriggerAvailableNow()
    fill(broker.topics["events"][0], [100])
    first = latest(reader, reader.initialOffset(), ReadMaxRows(15))
    second = latest(reader, first, ReadMaxRows(15))
    assert user_offsets(second) == {"events": {"0": 10, "1": 10}}
    assert json.dumps(latest(reader, second, ReadMaxRows(15))) == json.dumps(second)


def test_available_now_ends_where_it_is_ahead_of_what_is_committed(broker: FakeBroker) -> None:
    before = reader_for(broker, startingOffsets="earliest")
    end = latest(before, INITIAL.to_json())
    assert rows_of(before, INITIAL.to_json(), end) == 20
    broker.topics["events"][0].last_stable_offset = 4
    reader = reader_for(broker)
    reader.prepareForTriggerAvailableNow()
    assert latest(reader, end) == end


def test_available_now_judges_a_deleted_topic_as_the_ordinary_trigger_does(broker: FakeBroker) -> None:
    fill(broker.create("more")[0], [2])
    first = latest(reader_for(broker, subscribe="events,more", startingOffsets="earliest"), INITIAL.to_json())
    del broker.topics["more"]
    fill(broker.topics["events"][0], [5])
    strict = reader_for(broker, subscribe="events,more")
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="gone or no longer subscribed to: more-0"):
        latest(strict, first)
    tolerant = reader_for(broker, subscribe="events,more", failOnDataLoss="false")
    tolerant.prepareForTriggerAvailableNow()
    second = latest(tolerant, first)
    assert user_offsets(second) == {"events": {"0": 15, "1": 10}}
    assert json.dumps(latest(tolerant, second)) == json.dumps(second)


def test_available_now_does_not_take_for_gone_what_a_node_has_not_heard_of(broker: FakeBroker) -> None:
    fill(broker.create("more")[0], [2])
    with fake_broker() as other:
        other.node_id, other.topics = 1, broker.topics
        broker.nodes = other.nodes = [broker, other]
        options = {"subscribePattern": "events|more", "startingOffsets": "earliest"}
        first = latest(reader_for(broker, **options), INITIAL.to_json())
        broker.told = {"events": broker.topics["events"]}
        fill(broker.topics["more"][0], [3])
        reader = reader_for(broker, **options)
        reader.prepareForTriggerAvailableNow()
        second = latest(reader, first)
        assert user_offsets(second) == {"events": {"0": 10, "1": 10}, "more": {"0": 5}}
        fill(broker.topics["more"][0], [4])
        assert latest(reader, second) == second


def test_available_now_does_not_take_a_recreated_topic_for_the_one_it_began_with(broker: FakeBroker) -> None:
    strict = reader_for(broker, startingOffsets="earliest")
    tolerant = reader_for(broker, startingOffsets="earliest", failOnDataLoss="false")
    for reader in (strict, tolerant):
        reader.prepareForTriggerAvailableNow()
    first = latest(strict, INITIAL.to_json(), ReadMaxRows(8))
    fill(broker.create("events")[0], [30])
    second = latest(strict, first, ReadMaxRows(8))
    assert user_offsets(second) == {"events": {"0": 8, "1": 8}}, "where it was to end anyway"
    with pytest.raises(DataLossError, match="was deleted, and perhaps recreated: offsets 4 to 7 of events-0 were not read"):
        rows_of(strict, first, second)
    assert rows_of(tolerant, first, second) == 0
    with pytest.raises(DataLossError, match="topic 'events' is not the one that this query has read"):
        latest(reader_for(broker), second)
    again = reader_for(broker, failOnDataLoss="false")
    assert ranges(again, second, latest(again, second)) == [(0, 0, 30)]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_available_now_judges_a_log_that_is_cut_while_a_batch_is_planned(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: bool
) -> None:
    partition = broker.topics["events"][0]
    partition.epoch_ids = {0: 7, 9: 8}  # the look-up of the end returns another epoch than that of the records read
    reader = reader_for(broker, startingOffsets="earliest", failOnDataLoss=str(fail_on_data_loss).lower())
    reader.prepareForTriggerAvailableNow()
    first = latest(reader, INITIAL.to_json(), ReadMaxRows(4))
    checked = OffsetReader.checked

    def cut_after(*given: Any) -> TopicState:
        snapshot = checked(*given)
        partition.epoch_ids = {0: 7, 1: 9}
        return snapshot

    monkeypatch.setattr(OffsetReader, "checked", cut_after)
    if fail_on_data_loss:
        with pytest.raises(DataLossError, match=r"offset 2 is of another history; .*; the next offset is 1"):
            latest(reader, first, ReadMaxRows(4))
    else:
        assert ranges(reader, first, latest(reader, first, ReadMaxRows(4))) == [(0, 1, 3), (1, 2, 3)]


def test_available_now_refuses_a_topic_that_never_was(broker: FakeBroker) -> None:
    reader = reader_for(broker, subscribe="events,nope")
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'nope' does not exist"):
        latest(reader, reader.initialOffset())


def test_available_now_reads_everything_however_little_it_is(broker: FakeBroker) -> None:
    reader = reader_for(broker, startingOffsets="earliest", minOffsetsPerTrigger=15, maxOffsetsPerTrigger=15)
    reader.prepareForTriggerAvailableNow()
    first = latest(reader, reader.initialOffset(), ReadMaxRows(15))
    assert user_offsets(latest(reader, first, ReadMaxRows(15))) == {"events": {"0": 10, "1": 10}}
