"""The producer's topic metadata (ids, partition counts, leaders), and when to request it. Pure.

producer_core.py issues the requests, and handles the batches of a recreated topic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

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
from brokerd.producer.core.accumulator import NEVER_MS

_ERRORS_MAX = 10_000  # of topics that do not exist


class TopicRegistry:
    """Views of the topics in use. A topic is in use from its first `want` until it has not been used for metadata.max.idle.ms, or a
    broker has answered that it does not exist; calls that wait for the topic then `want` it again. The last view of a topic is
    remembered forever: another id means that the topic was recreated, and leader epochs never decrease."""

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._views: dict[str, TopicInfo] = {}
        self._seen: dict[str, TopicInfo] = {}  # the last view of each topic, in use or not
        # Partitions of recreated topics, with the former topic, while batches to it are in flight.
        self.replaced: dict[TopicPartition, TopicInfo] = {}
        self._used_ms: dict[str, int] = {}  # time of the last use of each topic in use
        self._is_refresh_needed = False  # of all topics in use
        self._new: set[str] = set()  # topics to request before the next refresh of all
        self._found: dict[str, int] = {}  # number of the request that last found each topic in use
        self._errors: dict[str, tuple[int, WireError]] = {}  # by topic: the last answer without a view, by number, and its error
        self.request_count = 0
        self._asked: tuple[str, ...] = ()  # topics of the request in flight
        self._is_all_asked = False
        self.answer_count = 0  # results and failures
        self.is_unanswered = False  # no broker answered the last request
        self._fetched_ms = 0
        self._not_before_ms = 0
        self._failures = 0

    def want(self, topic: str, now_ms: int, *, newer: bool = False) -> None:
        """Marks the topic as in use. An unknown topic is requested as soon as possible; with `newer`, a known topic too. Raises
        TypeError and ValueError for an invalid topic name."""
        if topic not in self._views:
            if not isinstance(topic, str):
                raise TypeError(f"topic must be text, not {type(topic).__name__}")
            problem = topic_name_problem(topic, internal=True)
            if problem is not None:
                raise ValueError(f"topic {topic[:TOPIC_NAME_MAX_LENGTH]!r} cannot be a topic's name: {problem}")
        self._used_ms[topic] = now_ms
        if newer or topic not in self._views:
            self._new.add(topic)

    def is_newer(self, topic: str, request_count: int) -> bool:
        """True if the topic's view comes from a request later than number `request_count`."""
        return self._found.get(topic, 0) > request_count

    def error_of(self, topic: str, answer_count: int) -> WireError | None:
        """The error in the last answer about the topic, if that answer is later than number `answer_count` and has no view."""
        number, error = self._errors.get(topic, (0, None))
        return error if number > answer_count else None

    def use(self, topic: str, now_ms: int) -> TopicInfo | None:
        """Marks the topic as used, and returns its last view; None if there is none, or if it was idle for too long."""
        if topic not in self._used_ms:
            return None
        if self._is_idle(topic, now_ms):
            self._drop(topic)
            return None
        self._used_ms[topic] = now_ms
        return self._views.get(topic)

    def _is_idle(self, topic: str, now_ms: int) -> bool:
        return now_ms - self._used_ms.get(topic, 0) >= self._config.metadata_max_idle_ms

    def _drop(self, topic: str) -> None:
        self._used_ms.pop(topic, None)
        self._views.pop(topic, None)
        self._found.pop(topic, None)
        self._new.discard(topic)

    def view(self, topic: str) -> TopicInfo | None:
        """The last view of the topic, without marking it as used."""
        return self._views.get(topic)

    def leader_of(self, tp: TopicPartition) -> int:
        """The partition's leader, or NO_LEADER."""
        view = self._view_with(tp)
        return view.leaders[tp.partition] if view is not None else NO_LEADER

    def _view_with(self, tp: TopicPartition) -> TopicInfo | None:
        """The last view of the topic, if it has the partition. Also None while the partition is in `replaced`: batches in flight
        are for the old topic, so responses say nothing about the new one."""
        view = self._views.get(tp.topic)
        return view if view is not None and tp.partition < len(view.leaders) and tp not in self.replaced else None

    def leader_epoch_of(self, tp: TopicPartition) -> int:
        """The highest leader epoch seen for the partition; -1 = unknown."""
        return self._views[tp.topic].leader_epoch(tp.partition)

    def note_leader(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Notes the leader that a refusal names (NO_LEADER: it names only an epoch), unless a higher epoch was seen."""
        view = self._view_with(tp)
        if view is not None and epoch > view.leader_epoch(tp.partition):
            self._see(tp.topic, view.led_by(tp.partition, leader, epoch))

    def forget_leader(self, tp: TopicPartition) -> None:
        """Forgets the partition's leader and epoch. For all of delivery.timeout.ms no node knew the epoch, or a leader in it or a
        higher one, so the data, or etcd, may be a restored copy."""
        view = self._view_with(tp)
        if view is not None:
            self._see(tp.topic, view.led_by(tp.partition, NO_LEADER, NO_EPOCH))

    def _see(self, topic: str, view: TopicInfo) -> None:
        self._views[topic] = self._seen[topic] = view

    def id_of(self, tp: TopicPartition) -> TopicIdPartition:
        """The partition, identified by the topic's id."""
        return TopicIdPartition(self._views[tp.topic].topic_id, tp.partition)

    def note_problem(self, tp: TopicPartition, why: str) -> None:
        """Notes that a partition refuses records: until the next metadata, keyless records avoid it."""
        view = self._view_with(tp)
        if view is not None:
            self._views[tp.topic] = view._replace(problems={**view.problems, tp.partition: why})
        self.request_refresh()

    def request_refresh(self) -> None:
        """Marks all topics as out of date."""
        self._is_refresh_needed = True

    def due_ms(self, now_ms: int, *, is_busy: bool) -> int:
        """The time of the next request (NEVER_MS: none). A new topic is requested at once, unless a back-off is running. An idle
        producer does not refresh its topics.
        """
        if self._asked or not self._used_ms:
            return NEVER_MS
        if self._new:
            return now_ms if self._failures == 0 else max(now_ms, self._not_before_ms)
        if self._is_refresh_needed:
            return max(now_ms, self._not_before_ms)
        return max(self._fetched_ms + self._config.metadata_max_age_ms, self._not_before_ms) if is_busy else NEVER_MS

    def begin(self, now_ms: int) -> tuple[str, ...]:
        """Begins a request and returns its topics: all, or only the new ones if no refresh is due. Drops idle topics first, so
        there may be none."""
        for topic in [topic for topic in self._used_ms if self._is_idle(topic, now_ms)]:
            self._drop(topic)
        is_refresh_due = self._is_refresh_needed and now_ms >= self._not_before_ms
        self._is_all_asked = is_refresh_due or not self._new
        self._asked = tuple(topic for topic in self._used_ms if self._is_all_asked or topic in self._new)
        self._is_refresh_needed = self._is_refresh_needed and not self._is_all_asked
        self._new.clear()
        self.request_count += 1
        return self._asked

    def on_result(self, response: Mapping[str, TopicInfo | WireError], now_ms: int) -> dict[str, TopicInfo]:
        """Takes a response. Returns the recreated topics, whose id has changed, as they were before."""
        self.answer_count += 1
        asked, self._asked = self._asked, ()
        self.is_unanswered = False
        if self._is_all_asked:
            self._fetched_ms = now_ms
        replaced = {}
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
                replaced[topic] = seen
            else:
                view = view.newer_than(seen)
            self._see(topic, view)
            self._found[topic] = self.request_count
            self._new.discard(topic)
            self._errors.pop(topic, None)
            is_complete = is_complete and NO_LEADER not in view.leaders
        self._wait(now_ms, 0 if is_complete else self._failures + 1)
        return replaced

    def _on_absent(self, topic: str, error: WireError | None) -> None:
        """Notes that a topic does not exist, or is missing from the response."""
        if error is not None:
            self._errors.pop(topic, None)
            self._errors[topic] = (self.answer_count, error)
            if len(self._errors) > _ERRORS_MAX:
                del self._errors[next(iter(self._errors))]
        if topic not in self._views and topic not in self._new:
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
