"""The table of groups against a naive model: random commits, deletions, topics deleted, expiry, and compaction in pieces between
them, with the log cut off anywhere.

The model keeps the history in order and derives the state after any prefix of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from brokerd.coordinator import group_table
from brokerd.coordinator.group_table import GroupTable
from brokerd.coordinator.records import decode, group_deleted, offsets_committed
from brokerd.errors import PolicyViolationError, UnknownGroupError
from brokerd.ids import TopicIdPartition
from brokerd.sharing import Shares
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset, CoordinatorRecord
from tests.support.group_offsets import committed
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_seeds

RUNS = 60 * TEST_SCALE
STEPS = 120
GROUPS_MAX, SLOTS_MAX = 12, 300
PRINCIPALS = ("ann", "bob", "boss")

Held = Mapping[str, tuple[str, Mapping[TopicIdPartition, CommittedOffset]]]


class TopicGone(NamedTuple):
    """A topic was deleted: durable at once, without an entry in the log."""

    topic_id: bytes


def holds(done: Sequence[CoordinatorRecord | TopicGone], gone: set[bytes]) -> Held:
    """The groups after these entries, by the specification. `gone` are the topics deleted by then."""
    groups: dict[str, tuple[str, dict[TopicIdPartition, CommittedOffset]]] = {}
    for one in done:
        if isinstance(one, TopicGone):
            for _, offsets in groups.values():
                for tp in [tp for tp in offsets if tp.topic_id == one.topic_id]:
                    del offsets[tp]
        elif one.HasField("offsets_committed"):
            offsets = {group_table.partition_of(offset): offset for offset in one.offsets_committed.offsets}
            groups.setdefault(one.group_id, (one.principal, {}))[1].update(offsets)
        elif one.HasField("group_deleted"):
            groups.pop(one.group_id, None)
        else:
            for gone_tp in one.offsets_deleted.partitions:
                groups[one.group_id][1].pop(TopicIdPartition(gone_tp.topic_id, gone_tp.partition), None)
        groups = {name: (owner, offsets) for name, (owner, offsets) in groups.items() if offsets}
    left = {
        name: (owner, {tp: one for tp, one in offsets.items() if tp.topic_id not in gone})
        for name, (owner, offsets) in groups.items()
    }
    return {name: held for name, held in left.items() if held[1]}


def new_table() -> GroupTable:
    return GroupTable(Shares(GROUPS_MAX), Shares(SLOTS_MAX))


def held_by(table: GroupTable) -> Held:
    return {
        name: (group.principal, {tp: one for tp in group.partitions() if (one := group.offset(tp)) is not None})
        for name, group in table.groups.items()
    }


def last_commits(table: GroupTable) -> dict[str, int]:
    return {name: group.last_commit_ms for name, group in table.groups.items()}


class Run:
    """One history: a table, its log, and the entries and topic deletions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = new_table()
        self.log: list[bytes] = []
        self.log_start = 0
        self.durable = 0  # a crash keeps the log up to here
        self.done: list[tuple[int, CoordinatorRecord | TopicGone]] = []  # with the log's length before it
        self.topics = [bytes([number]) * 16 for number in range(4)]
        self.gone: set[bytes] = set()
        self.now_ms = 1_000
        self.pieces: Iterator[Sequence[CoordinatorRecord]] | None = None
        self.begin = 0
        self.facts: Counter[str] = Counter()

    def record(self, entry: CoordinatorRecord) -> None:
        self.done.append((len(self.log), entry))
        self.log.append(entry.SerializeToString())
        self.table.apply(entry)

    def group_id(self) -> str:
        return f"group-{self.rng.randrange(8)}"

    def tps(self) -> list[TopicIdPartition]:
        count = self.rng.choice((1, 1, 3, 60))
        return list({TopicIdPartition(self.rng.choice(self.topics), self.rng.randrange(30)): None for _ in range(count)})

    def commit(self) -> None:
        metadata = self.rng.choice(("", "", "m", "x" * 700))
        offsets = [committed(tp, self.rng.randrange(1_000), -1, metadata, self.now_ms) for tp in self.tps()]
        group_id, principal = self.group_id(), self.rng.choice(PRINCIPALS)
        owner = held_by(self.table).get(group_id, (principal, {}))[0]
        try:
            entry = self.table.commit(group_id, principal, offsets)
        except PolicyViolationError:
            self.facts["full"] += 1
        else:
            assert entry.principal == owner
            self.facts["shared"] += owner != principal
            self.record(entry)

    def delete(self) -> None:
        group_id = self.group_id()
        try:
            if self.rng.random() < 0.5:
                self.record(self.table.delete(group_id))
            else:
                self.record(self.table.delete_offsets(group_id, self.tps()))
            self.facts["deleted"] += 1
        except UnknownGroupError:
            assert group_id not in self.table.groups

    def delete_topic(self) -> None:
        topic_id = self.rng.choice(self.topics)
        self.topics.remove(topic_id)
        self.topics.append(self.rng.randbytes(16))  # recreated under the same name
        self.gone.add(topic_id)
        self.done.append((len(self.log), TopicGone(topic_id)))
        self.table.forget_topic(topic_id)

    def expire(self) -> None:
        before_ms = self.now_ms - 60
        last = {name: max(one.timestamp for one in offsets.values()) for name, (_, offsets) in held_by(self.table).items()}
        entries = list(self.table.expired(before_ms))
        assert {entry.group_id for entry in entries} >= {name for name, ms in last.items() if ms < before_ms and self._never(name)}
        for entry in entries:
            self.record(entry)
            self.facts["expired"] += 1

    def _never(self, name: str) -> bool:
        """True if no offset of the group was deleted, so that its last commit still holds."""
        return not any(
            isinstance(one, TopicGone) or (one.group_id == name and not one.HasField("offsets_committed")) for _, one in self.done
        )

    def compact(self) -> None:
        """One step of a compaction."""
        if self.pieces is None:
            self.pieces, self.begin = self.table.pieces(), len(self.log)
        piece = next(self.pieces, None)
        if piece is None:
            self.log_start, self.durable, self.pieces = self.begin, len(self.log), None
            self.facts["compacted"] += 1
            return
        self.facts["piece"] += 1
        self.log.extend(entry.SerializeToString() for entry in piece)

    def crash(self) -> None:
        """Cuts the log anywhere. The broker restarts with the rest, or continues unchanged."""
        end = self.rng.randint(max(self.durable, len(self.log) - 5), len(self.log))
        again = new_table()
        for data in self.log[self.log_start : end]:
            again.apply(decode(data))
        again.keep_topics(lambda topic_id: topic_id not in self.gone)
        done = [one for at, one in self.done if at < end or (isinstance(one, TopicGone) and at <= end)]
        assert held_by(again) == holds(done, self.gone)
        check_counts(again)
        if end == len(self.log):
            assert last_commits(again) == last_commits(self.table), "a group expires when it would have"
            self.facts["whole"] += 1
        if self.rng.random() < 0.3:
            self.facts["crashed"] += 1
            self.table, self.log, self.pieces = again, self.log[:end], None
            late = [one for at, one in self.done if at >= end and isinstance(one, TopicGone)]
            self.done = [(at, one) for at, one in self.done if at < end] + [(end, one) for one in late]

    def check(self) -> None:
        assert held_by(self.table) == holds([one for _, one in self.done], self.gone)
        check_counts(self.table)


def check_counts(table: GroupTable) -> None:
    """The table's counts are right, and the limits hold."""
    held = held_by(table)
    groups, slots = table._groups_max, table._slots_max
    assert table.offset_count == sum(len(offsets) for _, offsets in held.values())
    assert groups.total == len(held) <= GROUPS_MAX
    for principal in PRINCIPALS:
        own = [offsets for owner, offsets in held.values() if owner == principal]
        assert groups.count(principal) == len(own)
        assert slots.count(principal) == sum(1 + len(one.metadata) // 256 for offsets in own for one in offsets.values())
    assert slots.total <= SLOTS_MAX


def run(seed: int) -> Counter[str]:
    history = Run(seed)
    steps = {
        history.commit: 10,
        history.delete: 2,
        history.delete_topic: 0.3,
        history.expire: 0.5,
        history.compact: 4,
        history.crash: 1,
    }
    for number in range(STEPS):
        history.now_ms += history.rng.randrange(5)
        (step,) = history.rng.choices(list(steps), list(steps.values()))
        step()
        if number % 4 == 0:
            history.check()
    return history.facts


def test_any_history_reads_from_its_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_table, "PIECE_SLOTS", 20)
    monkeypatch.setattr(group_table, "_CHUNK", 7)
    facts = run_seeds(run, 0, RUNS)
    assert (
        min(facts[fact] for fact in ("shared", "full", "deleted", "expired", "compacted", "piece", "crashed", "whole")) > RUNS // 20
    ), facts


@pytest.mark.parametrize("ahead_ms", [365 * 86_400_000, -9 * 86_400_000])
def test_a_group_that_was_committed_by_a_wrong_clock_expires_as_others_do(ahead_ms: int) -> None:
    table, tp = new_table(), TopicIdPartition(b"t" * 16, 0)
    offset = committed(tp, timestamp=1_000 + ahead_ms, ahead_ms=ahead_ms)
    table.apply(decode(offsets_committed("a", "ann", [offset]).SerializeToString()))
    assert not list(table.expired(1_000))
    assert [entry.group_id for entry in table.expired(1_001)] == ["a"]


def test_a_group_whose_newest_offset_is_gone_expires_as_if_it_were_there() -> None:
    table, tps = new_table(), [TopicIdPartition(bytes([number]) * 16, 0) for number in range(3)]
    for number, tp in enumerate(tps):
        table.apply(offsets_committed("a", "ann", [committed(tp, timestamp=1_000 * (number + 1))]))
    table.apply(table.delete_offsets("a", [tps[2]]))
    table.forget_topic(tps[1].topic_id)
    again = new_table()
    for entry in [entry for piece in table.pieces() for entry in piece]:
        again.apply(entry)
    for one in (table, again):
        assert not list(one.expired(3_000))
        assert [entry.group_id for entry in one.expired(3_001)] == ["a"]
    assert held_by(again) == held_by(table), "no partition's own time changes"


def test_a_large_group_is_written_in_pieces_of_bounded_size() -> None:
    table = GroupTable(Shares(10), Shares(1_000_000))
    offsets = [committed(TopicIdPartition(b"t" * 16, number), number, -1, "x" * 4_096) for number in range(500)]
    table.apply(offsets_committed("large", "ann", offsets))
    pieces = list(table.pieces())
    assert len(pieces) > 5
    assert max(sum(len(entry.SerializeToString()) for entry in piece) for piece in pieces) < 524_288
    again = GroupTable(Shares(10), Shares(1_000_000))
    for piece in pieces:
        for entry in piece:
            again.apply(entry)
    assert held_by(again) == held_by(table)


def test_a_group_that_goes_or_is_committed_while_others_expire_is_left_out() -> None:
    table, tp = new_table(), TopicIdPartition(b"t" * 16, 0)

    def commit(name: str, timestamp: int) -> None:
        table.apply(offsets_committed(name, "ann", [committed(tp, timestamp=timestamp)]))

    for name in ("first", "committed", "deleted", "made again", "last"):
        commit(name, 5)
    expired = table.expired(10)
    assert next(expired).group_id == "first"
    commit("committed", 10)
    for name in ("deleted", "made again"):
        table.apply(group_deleted(name, "ann"))
    commit("made again", 10)
    assert [entry.group_id for entry in expired] == ["last"]
