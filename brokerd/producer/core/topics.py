"""The producer's topic metadata (ids, partition counts, leaders), and when to request it. Pure.

producer_core.py issues the requests, and handles the batches of a recreated topic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.errors import WireError
from brokerd.ids import (
    NO_EPOCH,
    NO_LEADER,
    TOPIC_NAME_MAX_LENGTH,
    TopicIdPartition,
    TopicInfo,
    TopicPartition,
    topic_name_problem,
)


class WaitingCall(Protocol):
    """An application's call that waits for memory or for a topic."""

    is_over: bool  # no longer waits


class TopicWaiter:
    """One call that waits for a topic. `view` comes from the last response to a request that was sent after the wait began; `error`
    is the last error since then.
    """

    __slots__ = ("call", "error", "request_count", "topic", "view")

    def __init__(self, topic: str, request_count: int, call: WaitingCall) -> None:
        self.call = call
        self.topic = topic
        self.request_count = request_count  # requests sent before the wait began
        self.error: WireError | None = None
        self.view: TopicInfo | None = None


class TopicRegistry:
    """Views of the topics in use. A topic is in use from its first `want` until it has no waiter and was not used for
    metadata.max.idle.ms. Its last view is remembered forever: another id means that the topic was recreated, and leader epochs
    never go back.
    """

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._views: dict[str, TopicInfo] = {}
        self._seen: dict[str, TopicInfo] = {}  # the last view of each topic, also of those not in use
        self.replaced: set[TopicPartition] = set()  # of recreated topics, while batches to the old partition are in flight
        self._waiters: dict[str, list[TopicWaiter]] = {}
        self._used_ms: dict[str, int] = {}  # time of the last use of each topic in use
        self._is_refresh_needed = False  # of all topics in use
        self._new: set[str] = set()  # in use, not found yet, and to be requested
        self._request_count = 0
        self._asked: tuple[str, ...] = ()  # topics of the request in flight
        self._is_all_asked = False
        self.answer_count = 0  # results and failures
        self.is_unanswered = False  # no broker answered the last request
        self._fetched_ms = 0
        self._not_before_ms = 0
        self._failures = 0

    def want(self, topic: str, now_ms: int) -> None:
        """Marks the topic as in use; an unknown one is requested as soon as possible."""
        self._used_ms[topic] = now_ms
        if topic not in self._views:
            self._new.add(topic)

    def wait_for(self, topic: str, call: WaitingCall, now_ms: int, *, newer: bool = False) -> TopicWaiter:
        """Like `want`, but repeats the request until the topic is found or the call is over. `newer`: waits for a view newer than
        the current one. Raises TypeError and ValueError for an invalid topic name, before any request.
        """
        _check_name(topic)
        self.want(topic, now_ms)
        if newer:
            self._new.add(topic)
        waiter = TopicWaiter(topic, self._request_count, call)
        self._waiters.setdefault(topic, []).append(waiter)
        return waiter

    def _forget_ended_waits(self) -> None:
        """Drops the waiters of calls that are over. A topic that does not exist is dropped with its last waiter; one without a
        response yet is still requested, so that the next call finds the response.
        """
        for topic, waiters in list(self._waiters.items()):
            live = [waiter for waiter in waiters if not waiter.call.is_over]
            if live:
                self._waiters[topic] = live
                continue
            del self._waiters[topic]
            if topic not in self._views and any(waiter.error is not None for waiter in waiters):
                self._drop(topic)

    def use(self, topic: str, now_ms: int) -> TopicInfo | None:
        """Marks the topic as used, and returns its last view; None if there is none, or if it was idle for too long."""
        if topic not in self._used_ms:
            return None
        if self._is_idle(topic, now_ms):
            self._drop(topic)
            return None
        self._used_ms[topic] = now_ms
        return self._views.get(topic)

    def peek(self, topic: str, now_ms: int) -> TopicInfo | None:
        """Like `use`, but changes nothing, so it needs no lock."""
        return None if self._is_idle(topic, now_ms) else self._views.get(topic)

    def _is_idle(self, topic: str, now_ms: int) -> bool:
        if any(not waiter.call.is_over for waiter in self._waiters.get(topic, ())):
            return False
        return now_ms - self._used_ms.get(topic, 0) >= self._config.metadata_max_idle_ms

    def _drop(self, topic: str) -> None:
        self._used_ms.pop(topic, None)
        self._views.pop(topic, None)
        self._new.discard(topic)

    def view(self, topic: str) -> TopicInfo | None:
        """The last view of the topic, without marking it as used."""
        return self._views.get(topic)

    def leader_of(self, tp: TopicPartition) -> int:
        """The partition's leader, or NO_LEADER, also while the partition is in `replaced`."""
        if tp in self.replaced:
            return NO_LEADER
        view = self._views.get(tp.topic)
        return view.leaders[tp.partition] if view is not None and tp.partition < len(view.leaders) else NO_LEADER

    def leader_epoch_of(self, tp: TopicPartition) -> int:
        """The highest leader epoch seen for the partition; -1 = unknown."""
        return self._views[tp.topic].leader_epoch(tp.partition)

    def note_leader(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Notes the leader that a refusal names (NO_LEADER: it knows only the epoch), unless a higher epoch was seen."""
        view = self._views.get(tp.topic)
        if view is not None and epoch > view.leader_epoch(tp.partition):
            self._see(tp.topic, view.led_by(tp.partition, leader, epoch))

    def forget_leader(self, tp: TopicPartition) -> None:
        """Forgets the partition's leader and epoch: no node has heard of this epoch for as long as a delivery may take, so the data
        may be a restored copy's."""
        view = self._views.get(tp.topic)
        if view is not None:
            self._see(tp.topic, view.led_by(tp.partition, NO_LEADER, NO_EPOCH))

    def _see(self, topic: str, view: TopicInfo) -> None:
        self._views[topic] = self._seen[topic] = view

    def id_of(self, tp: TopicPartition) -> TopicIdPartition:
        """The partition, identified by the topic's id."""
        return TopicIdPartition(self._views[tp.topic].topic_id, tp.partition)

    def note_unwritable(self, tp: TopicPartition) -> None:
        """Notes that a partition refuses records: until the next metadata, keyless records avoid it."""
        view = self._views.get(tp.topic)
        if view is not None:
            self._views[tp.topic] = view._replace(unwritable=view.unwritable | {tp.partition})
        self.request_refresh()

    def request_refresh(self) -> None:
        """Marks all topics as out of date."""
        self._is_refresh_needed = True

    def due_ms(self, now_ms: int, *, is_busy: bool) -> int | None:
        """The time of the next request, or None. A new topic is requested at once, unless a back-off is running. An idle producer
        does not refresh its topics.
        """
        self._forget_ended_waits()
        if self._asked or not self._used_ms:
            return None
        if self._new:
            return now_ms if self._failures == 0 else max(now_ms, self._not_before_ms)
        if self._is_refresh_needed:
            return max(now_ms, self._not_before_ms)
        return max(self._fetched_ms + self._config.metadata_max_age_ms, self._not_before_ms) if is_busy else None

    def begin(self, now_ms: int) -> tuple[str, ...]:
        """Begins a request and returns its topics: all, or only the new ones if no refresh is due. Drops idle topics, which may
        leave none.
        """
        for topic in [topic for topic in self._used_ms if self._is_idle(topic, now_ms)]:
            self._drop(topic)
        is_refresh_due = self._is_refresh_needed and now_ms >= self._not_before_ms
        self._is_all_asked = is_refresh_due or not self._new
        self._asked = tuple(topic for topic in self._used_ms if self._is_all_asked or topic in self._new)
        self._is_refresh_needed = self._is_refresh_needed and not self._is_all_asked
        self._new.clear()
        self._request_count += 1
        return self._asked

    def on_result(self, response: Mapping[str, TopicInfo | WireError], now_ms: int) -> list[str]:
        """Takes a response. Returns the recreated topics, whose id has changed."""
        self.answer_count += 1
        self._forget_ended_waits()
        asked, self._asked = self._asked, ()
        self.is_unanswered = False
        if self._is_all_asked:
            self._fetched_ms = now_ms
        replaced = []
        is_complete = True
        for topic in dict.fromkeys((*asked, *response)):
            view = response.get(topic)
            if topic not in self._used_ms:
                continue
            if not isinstance(view, TopicInfo):
                is_complete = False
                self._on_absent(topic, view)
                continue
            seen = self._seen.get(topic, view)
            if seen.topic_id != view.topic_id:
                replaced.append(topic)
            else:
                view = view.newer_than(seen)
            self._on_found(topic, view)
            self._see(topic, view)
            is_complete = is_complete and NO_LEADER not in view.leaders
        self._wait(now_ms, 0 if is_complete else self._failures + 1)
        return replaced

    def _on_found(self, topic: str, view: TopicInfo) -> None:
        self._new.discard(topic)
        for waiter in self._waiters.get(topic, ()):
            if waiter.request_count < self._request_count:
                waiter.view = view
            elif topic in self._views:  # this request was sent before the wait began, so the waiter needs another one
                self._new.add(topic)

    def _on_absent(self, topic: str, error: WireError | None) -> None:
        """Notes that a topic does not exist, or is missing from the response."""
        waiters = self._waiters.get(topic, ())
        for waiter in waiters:
            waiter.error = error or waiter.error
        if waiters and (error is None or error.retriable):
            self._is_refresh_needed = True
        elif topic not in self._views and not waiters and error is not None:
            self._drop(topic)

    def on_failure(self, now_ms: int) -> None:
        """Notes that no broker answered."""
        self.answer_count += 1
        self._asked = ()
        self.is_unanswered = True
        self._is_refresh_needed = True
        self._wait(now_ms, self._failures + 1)

    def _wait(self, now_ms: int, failures: int) -> None:
        """Sets the earliest time of the next request. Backs off after a success too: an immediate repeat would be just as stale."""
        self._failures = failures
        self._not_before_ms = now_ms + backoff_ms(
            max(1, failures),
            first_ms=self._config.retry_backoff_ms,
            max_ms=self._config.retry_backoff_max_ms,
            random=self._rng.random(),
        )


def _check_name(topic: object) -> None:
    """Raises TypeError or ValueError for an invalid topic name."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be text, not {type(topic).__name__}")
    problem = topic_name_problem(topic, internal=True)
    if problem is not None:
        raise ValueError(f"topic {topic[:TOPIC_NAME_MAX_LENGTH]!r} cannot be a topic's name: {problem}")
