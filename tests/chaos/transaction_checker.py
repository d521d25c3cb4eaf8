"""Checks the transactions of a history. Each `_find_*` searches for one anomaly. It is pure, and tested with a planted case
(tests/unit/chaos/test_transaction_checker.py).

A row is visible if the final read with read_committed returns it. Of each version, at most one execution is visible: either all
rows that its listed members wrote, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from brokerd.ids import TopicPartition
from tests.chaos.history import Attempt, History, Outcome, Poll, Snapshot, Value

Place = tuple[TopicPartition, int]


class Index:
    """The history, indexed once for all searches."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.attempt_of = {member: attempt for attempt in history.attempts for member in attempt.members}
        self.at: dict[Place, Value] = {(tp, offset): value for tp, records in history.final.items() for offset, value in records}
        self.visible: dict[Value, Place] = {
            value: (tp, offset) for tp, records in history.committed.items() for offset, value in records
        }
        self.rows: dict[int, list[Value]] = defaultdict(list)  # acknowledged rows, by member
        for send in history.sends:
            if send.outcome is Outcome.OK and send.value.producer in self.attempt_of:
                self.rows[send.value.producer].append(send.value)
        self.versions: dict[tuple[str, int], list[Attempt]] = defaultdict(list)
        for attempt in history.attempts:
            self.versions[attempt.transactional_id, attempt.version].append(attempt)

    def committed_rows(self, attempt: Attempt) -> list[Value]:
        """The rows that the attempt's commit makes visible."""
        zombies = self.history.zombies
        return [value for member in sorted(attempt.listed) for value in self.rows[member] if value not in zombies]

    def is_visible(self, attempt: Attempt) -> bool:
        """True if any row of the attempt is visible."""
        return any(value in self.visible for value in self.committed_rows(attempt))

    def committed_polls(self) -> Iterator[Poll]:
        """All polls with read_committed."""
        for read in self.history.reads:
            if isinstance(read, Poll) and read.consumer in self.history.committed_readers:
                yield read


def _find_aborted_reads(index: Index) -> Iterator[str]:
    """An uncommitted row was read with read_committed: in the final read, or in a poll and not in the final read."""
    for value, (tp, offset) in index.visible.items():
        attempt = index.attempt_of.get(value.producer)
        if attempt is None or value in index.history.zombies:
            continue
        if attempt.outcome in (None, Outcome.FAILED) or value.producer not in attempt.listed:
            yield f"{value} at {tp}@{offset}: {attempt}, COMMIT {attempt.outcome}, is visible in the end"
    for poll in index.committed_polls():
        for offset, value in poll.records:
            if value not in index.visible:
                yield f"{value} at {poll.tp}@{offset} was read by consumer {poll.consumer}, and is not visible in the end"


def _find_torn(index: Index) -> Iterator[str]:
    """Only a part of a transaction is visible: in the final read, or, on one node, in a snapshot of last stable offsets."""
    for attempt in index.history.attempts:
        rows = index.committed_rows(attempt)
        count = sum(value in index.visible for value in rows)
        if 0 < count < len(rows):
            missing = next(value for value in rows if value not in index.visible)
            yield f"{attempt}: {count} of {len(rows)} rows are visible, {missing} is not"
        elif count and index.history.node_count == 1:
            yield from _torn_in_snapshots(index, attempt, rows)


def _torn_in_snapshots(index: Index, attempt: Attempt, rows: list[Value]) -> Iterator[str]:
    """Once a row is visible or the commit is acknowledged, only another open transaction may hide the remaining rows."""
    lowest: dict[TopicPartition, int] = {}
    highest: dict[TopicPartition, int] = {}
    for tp, offset in (index.visible[value] for value in rows):
        lowest[tp] = min(offset, lowest.get(tp, offset))
        highest[tp] = max(offset, highest.get(tp, offset))
    snapshots = index.history.snapshots
    begins = min(_first_beyond(snapshots, tp, offset) for tp, offset in lowest.items())
    if attempt.decided_ms >= 0:
        begins = min(begins, bisect_right(snapshots, attempt.decided_ms, key=lambda snapshot: snapshot.invoked_ms))
    ends = max(_first_beyond(snapshots, tp, offset) for tp, offset in highest.items())
    for snapshot in snapshots[begins:ends]:
        for tp, offset in highest.items():
            if snapshot.stable[tp] <= offset and not _holds_back(index, snapshot, tp, attempt):
                yield f"{attempt}: {tp}@{offset} was not visible at {snapshot.invoked_ms} ms, when the rest was or should have been"


def _first_beyond(snapshots: list[Snapshot], tp: TopicPartition, offset: int) -> int:
    return bisect_right(snapshots, offset, key=lambda snapshot: snapshot.stable[tp])


def _holds_back(index: Index, snapshot: Snapshot, tp: TopicPartition, attempt: Attempt) -> bool:
    """True if the last stable offset is held at another execution's data, and no commit of it was known by then."""
    value = index.at.get((tp, snapshot.stable[tp]))
    other = index.attempt_of.get(value.producer) if value is not None else None
    return other is not None and other is not attempt and not 0 <= other.decided_ms < snapshot.invoked_ms


def _find_precommitted(index: Index) -> Iterator[str]:
    """A row was read with read_committed before its commit was requested."""
    for poll in index.committed_polls():
        for offset, value in poll.records:
            attempt = index.attempt_of.get(value.producer)
            if attempt is not None and attempt.invoked_ms > poll.completed_ms:
                early_ms = attempt.invoked_ms - poll.completed_ms
                yield f"{value} at {poll.tp}@{offset} was read {early_ms} ms before the COMMIT of {attempt}"


def _find_zombie_writes(index: Index) -> Iterator[str]:
    """The log holds a row that a member sent after its end was acknowledged. With several nodes, the row must also be visible: a
    leader that was cut off when the member ended may accept such rows, which no reader sees."""
    for (tp, offset), value in index.at.items():
        if value in index.history.zombies and (index.history.node_count == 1 or value in index.visible):
            yield f"{value} at {tp}@{offset}, {'visible' if value in index.visible else 'not visible'}"


def _find_double_commits(index: Index) -> Iterator[str]:
    """Two executions of one version are visible."""
    for attempts in index.versions.values():
        visible = [attempt for attempt in attempts if index.is_visible(attempt)]
        if len(visible) > 1:
            yield f"{visible[0]} and {visible[1]}"


def _find_lost_commits(index: Index) -> Iterator[str]:
    """An acknowledged commit has no visible row, nor has an execution with the same rows."""
    for attempt in index.history.attempts:
        if attempt.outcome is Outcome.OK and index.committed_rows(attempt) and not index.is_visible(attempt):
            same = [one for one in index.versions[attempt.transactional_id, attempt.version] if one.totals == attempt.totals]
            if not any(index.is_visible(one) for one in same):
                yield f"{attempt} is acknowledged, none of its {len(index.committed_rows(attempt))} rows is visible"


def _find_forgotten_commits(index: Index) -> Iterator[str]:
    """An acknowledged commit was refused when it was repeated."""
    yield from index.history.forgotten


def _find_stable_offsets_going_back(index: Index) -> Iterator[str]:
    """A last stable offset decreased."""
    for before, snapshot in pairwise(index.history.snapshots):
        for tp, offset in snapshot.stable.items():
            if offset < before.stable[tp]:
                yield f"{tp} from {before.stable[tp]} to {offset}, between {before.completed_ms} and {snapshot.completed_ms} ms"


def _find_hanging(index: Index) -> Iterator[str]:
    """After all faults, clients and time-outs have ended, records are still held back."""
    for tp, (stable, high_watermark) in index.history.hanging.items():
        yield f"{tp} is readable up to {stable} of {high_watermark}"


SEARCHES: dict[str, Callable[[Index], Iterator[str]]] = {
    "aborted-read": _find_aborted_reads,
    "torn-transaction": _find_torn,
    "precommitted-read": _find_precommitted,
    "zombie-write": _find_zombie_writes,
    "committed-twice": _find_double_commits,
    "lost-commit": _find_lost_commits,
    "forgotten-commit": _find_forgotten_commits,
    "stable-offset-back": _find_stable_offsets_going_back,
    "hanging": _find_hanging,
}
