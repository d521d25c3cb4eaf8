"""Topics deleted and recreated under the same name, while stale nodes describe the old topic and its leaders still answer.
Acknowledged records are in the log of the topic that they were sent to, once and in order; no record is in both logs; nothing gets
stuck. Bugs planted one at a time, which the schedules must find."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.ids import TopicInfo, TopicPartition
from brokerd.producer.core.accumulator import PartitionQueue, ProducerBatch
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.topics import TopicRegistry
from tests.support.mutants import Mutants
from tests.support.planting import Put, plant
from tests.support.producer_schedules import report, run_seed_with_recreations, schedule_with_recreations
from tests.support.scale import TEST_SCALE

SCHEDULES = 500 * TEST_SCALE
PARTS = 2
SEARCHED = 1_000
MUTANTS = Mutants()
mutant, bug = MUTANTS.add, MUTANTS.method


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_with_recreated_topics_keep_every_promise(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            run_seed_with_recreations(seed)
        except Exception as error:
            raise AssertionError(report(seed, schedule_with_recreations)) from error


def forget(identity: Identity, tp: TopicPartition) -> None:
    """The partition's next batch has sequence 0."""
    state = identity.sequences.pop(tp, None)
    for batch in state.sequenced if state is not None else ():
        batch.clear_sequence()


def ended_with_a_gap(self: Identity, batch: ProducerBatch) -> None:
    """The original, with `leave_gap` inlined: that method, shared with recreated topics, is replaced in these bugs."""
    self._drop(batch)
    self.sequences[batch.tp].has_gap = True
    self.renumber(batch.tp)


@mutant
def recreated_topic_begins_in_the_same_epoch(put: Put) -> None:
    plant(put, Identity, "on_ended", ended_with_a_gap)
    plant(put, Identity, "leave_gap", forget)


@MUTANTS.rare(394)
def recreated_topic_goes_on_with_the_sequences(put: Put) -> None:
    plant(put, Identity, "on_ended", ended_with_a_gap)
    plant(put, Identity, "leave_gap", lambda _self, _tp: None)


@bug(TopicRegistry, "on_result")
def node_that_is_behind_is_believed_to_tell_of_the_same_topic(
    on_result: Any, self: TopicRegistry, response: Any, now_ms: int
) -> Any:
    on_result(self, response, now_ms)
    return {}


@bug(TopicRegistry, "on_result")
def leader_epochs_of_two_topics_are_compared(on_result: Any, self: TopicRegistry, response: Any, now_ms: int) -> Any:
    seen = {topic: self._seen.get(topic, view) for topic, view in response.items() if isinstance(view, TopicInfo)}
    return on_result(self, response | {topic: response[topic].newer_than(seen[topic]) for topic in seen}, now_ms)


@bug(TopicRegistry, "_view_with", first=4850)
def refusal_of_the_old_topic_is_taken_for_the_new_one(view_with: Any, self: TopicRegistry, tp: TopicPartition) -> Any:
    replaced, self.replaced = self.replaced, {}
    view = view_with(self, tp)
    self.replaced = replaced
    return view


MUTANTS.instead(
    "partition_that_the_new_topic_lacks_is_looked_up",
    TopicRegistry,
    "_view_with",
    lambda self, tp: self._views.get(tp.topic) if tp not in self.replaced else None,
)


@bug(ProducerCore, "_reset_replaced")
def what_may_be_in_the_old_topic_goes_to_the_new_one(reset: Any, self: ProducerCore, tp: TopicPartition, now_ms: int) -> None:
    if tp in self.topics.replaced:
        for batch in self.accumulator.queued(tp):
            batch.is_fate_unknown = False
    reset(self, tp, now_ms)


@bug(ProducerCore, "_reset_replaced")
def new_topic_is_written_while_the_old_one_answers(reset: Any, self: ProducerCore, tp: TopicPartition, now_ms: int) -> None:
    queue = self.accumulator._queues.get(tp, PartitionQueue())
    count, queue.in_flight_count = queue.in_flight_count, 0
    reset(self, tp, now_ms)
    queue.in_flight_count = count


@bug(Identity, "forget_unwritten")
def member_forgets_what_it_has_written(forget_unwritten: Any, self: Identity, tp: TopicPartition, former_id: bytes) -> None:
    self.delivered.pop(tp, None)
    forget_unwritten(self, tp, former_id)


@bug(ProducerCore, "_reset_replaced", first=59)
def member_goes_on_in_the_new_topic(reset: Any, self: ProducerCore, tp: TopicPartition, now_ms: int) -> None:
    member = self.identity
    if member.membership is not None and tp in self.topics.replaced and not self.accumulator.in_flight_count(tp):
        for batch in self.accumulator.queued(tp):
            batch.is_fate_unknown = False
        forget(member, tp)
    reset(self, tp, now_ms)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed_with_recreations, SEARCHED)
