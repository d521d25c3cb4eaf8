"""Checks a history in the manner of Jepsen's kafka workload (jepsen.tests.kafka): names each anomaly and gives examples.

Each `_find_*` searches for one anomaly. It is pure, and tested with a planted case (tests/unit/chaos/test_checker.py).
transaction_checker.py checks transactions; this module treats a transaction's member like any other producer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from brokerd.ids import TopicPartition
from tests.chaos import transaction_checker
from tests.chaos.history import History, Outcome, Poll, Seek, Send, Value

_EXAMPLES = 5


@dataclass(frozen=True)
class Anomaly:
    """A kind of anomaly, its count, and some examples."""

    kind: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.count}, such as {'; '.join(self.examples)}"


@dataclass(frozen=True)
class _Index:
    """The history, indexed once for all searches."""

    history: History
    places: dict[Value, list[tuple[TopicPartition, int]]]  # where the final read found each value
    sent: dict[Value, Send]


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history; empty if it is clean."""
    places: dict[Value, list[tuple[TopicPartition, int]]] = defaultdict(list)
    for tp, records in history.final.items():
        for offset, value in records:
            places[value].append((tp, offset))
    index = _Index(history, places, {send.value: send for send in history.sends})
    of_transactions = transaction_checker.Index(history)
    hits = {kind: list(search(index)) for kind, search in SEARCHES.items()}
    hits |= {kind: list(search(of_transactions)) for kind, search in transaction_checker.SEARCHES.items()}
    return [Anomaly(kind, len(found), tuple(found[:_EXAMPLES])) for kind, found in hits.items() if found]


def _find_lost_writes(index: _Index) -> Iterator[str]:
    """An acknowledged value is missing from the final read."""
    for send in index.history.sends:
        if send.outcome is Outcome.OK and send.value not in index.places:
            yield f"{send.value} acknowledged at {send.tp}@{send.offset} is gone"


def _find_duplicates(index: _Index) -> Iterator[str]:
    """The final read found one value at two offsets."""
    for value, places in index.places.items():
        if len(places) > 1:
            yield f"{value} at {', '.join(f'{tp}@{offset}' for tp, offset in places)}"


def _find_wrong_offsets(index: _Index) -> Iterator[str]:
    """A value was acknowledged at one offset and found at another."""
    for send in index.history.sends:
        places = index.places.get(send.value)
        if send.has_offset and places and (send.tp, send.offset) not in places:
            yield f"{send.value} acknowledged at {send.tp}@{send.offset}, found at {places[0]}"


def _find_phantoms(index: _Index) -> Iterator[str]:
    """A value was read that was never sent, or was sent to another partition."""
    for value, places in index.places.items():
        send = index.sent.get(value)
        if send is None:
            yield f"{value} was never sent"
        elif any(tp != send.tp for tp, _ in places):
            yield f"{value} was sent to {send.tp}, found at {places}"


def _find_aborted_reads(index: _Index) -> Iterator[str]:
    """G1a: a value was read although its send certainly failed."""
    for value in index.places:
        send = index.sent.get(value)
        if send is not None and send.outcome is Outcome.FAILED:
            yield f"{value} failed for certain, and was read"


def _find_inconsistent_offsets(index: _Index) -> Iterator[str]:
    """Two values were observed at one offset."""
    seen: dict[tuple[TopicPartition, int], Value] = {}
    observations = [(tp, offset, value) for tp, records in index.history.final.items() for offset, value in records]
    for read in index.history.reads:
        if isinstance(read, Poll):
            observations.extend((read.tp, offset, value) for offset, value in read.records)
    observations.extend((s.tp, s.offset, s.value) for s in index.history.sends if s.has_offset)
    for tp, offset, value in observations:
        first = seen.setdefault((tp, offset), value)
        if first != value:
            yield f"{tp}@{offset} held {first} and {value}"


def _find_vanished(index: _Index) -> Iterator[str]:
    """A consumer read a value that is missing from the final read."""
    for read in index.history.reads:
        if isinstance(read, Poll):
            for offset, value in read.records:
                if (read.tp, offset) not in index.places.get(value, ()):
                    yield f"{value} was read at {read.tp}@{offset} and is gone"


def _find_nonmonotonic_polls(index: _Index) -> Iterator[str]:
    """A consumer's offset did not increase, without a seek."""
    position: dict[tuple[int, TopicPartition], int] = {}
    for read in index.history.reads:
        key = (read.consumer, read.tp)
        if isinstance(read, Seek):
            position[key] = read.offset - 1
            continue
        for offset, _ in read.records:
            if offset <= position.get(key, -1):
                yield f"consumer {read.consumer} read {read.tp}@{offset} after {position[key]}"
            position[key] = offset


def _find_skipped_polls(index: _Index) -> Iterator[str]:
    """A consumer skipped a record that the final read returns."""
    history = index.history
    views = [{tp: [offset for offset, _ in records] for tp, records in view.items()} for view in (history.final, history.committed)]
    position: dict[tuple[int, TopicPartition], int] = {}
    for read in index.history.reads:
        key = (read.consumer, read.tp)
        if isinstance(read, Seek):
            position[key] = read.offset
            continue
        offsets = views[read.consumer in history.committed_readers].get(read.tp, [])
        for offset, _ in read.records:
            expected = position.get(key, 0)
            if offset > expected and _any_between(offsets, expected, offset):
                yield f"consumer {read.consumer} jumped on {read.tp} from {expected} to {offset}"
            position[key] = offset + 1


def _any_between(offsets: list[int], start: int, until: int) -> bool:
    return bisect_left(offsets, start) < bisect_left(offsets, until)


def _find_nonmonotonic_sends(index: _Index) -> Iterator[str]:
    """A producer's later record precedes an earlier one in the same partition."""
    for tp, records in index.history.final.items():
        last: dict[int, int] = {}
        for offset, value in records:
            if value.number <= last.get(value.producer, -1):
                yield f"{tp}@{offset} holds {value} after number {last[value.producer]}"
            last[value.producer] = max(value.number, last.get(value.producer, -1))


def _find_realtime_violations(index: _Index) -> Iterator[str]:
    """A send was acknowledged before another to the same partition began, but has the higher offset."""
    by_partition: dict[TopicPartition, list[Send]] = defaultdict(list)
    for send in index.history.sends:
        if send.has_offset:
            by_partition[send.tp].append(send)
    for tp, sends in by_partition.items():
        by_end = sorted(sends, key=lambda send: send.completed_ms)
        ended, highest = 0, -1
        for send in sorted(sends, key=lambda send: send.invoked_ms):
            while ended < len(by_end) and by_end[ended].completed_ms < send.invoked_ms:
                highest = max(highest, by_end[ended].offset)
                ended += 1
            if send.offset < highest:
                yield f"{tp}@{send.offset} began after @{highest} was acknowledged"


def _find_gaps(index: _Index) -> Iterator[str]:
    """A gap in the offsets of a log that has neither control batches nor compaction."""
    for tp, records in index.history.final.items():
        if tp.topic in index.history.marked_topics:
            continue
        for (before, _), (offset, _) in pairwise(records):
            if offset != before + 1:
                yield f"{tp} goes from {before} to {offset}"


SEARCHES: dict[str, Callable[[_Index], Iterator[str]]] = {
    "lost-write": _find_lost_writes,
    "duplicate": _find_duplicates,
    "wrong-offset": _find_wrong_offsets,
    "phantom": _find_phantoms,
    "G1a": _find_aborted_reads,
    "inconsistent-offsets": _find_inconsistent_offsets,
    "vanished-read": _find_vanished,
    "nonmonotonic-poll": _find_nonmonotonic_polls,
    "poll-skip": _find_skipped_polls,
    "nonmonotonic-send": _find_nonmonotonic_sends,
    "realtime-order": _find_realtime_violations,
    "gap": _find_gaps,
}
