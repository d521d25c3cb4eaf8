"""Goal: the checker finds each transaction anomaly it claims to find, and no other. Method: plant a defect in a clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.ids import TopicPartition
from tests.chaos.checker import check
from tests.chaos.history import Attempt, History, Outcome, Poll, Seek, Send, Snapshot, Value
from tests.chaos.transaction_checker import SEARCHES

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
READER = 0


def clean_history() -> History:
    """Version 0 has two executions; the first is committed, without its member 3. Version 1 has two executions with the same rows.
    A commit moves all last stable offsets in one step, except in partition B, where version 1 begins before version 0 has ended.
    """
    history = History(marked_topics={"t"}, committed_readers={READER})
    history.attempts = [
        Attempt("x", 0, "e0", 70, {1, 2, 3}, {1, 2}, invoked_ms=100, decided_ms=120, outcome=Outcome.OK),
        Attempt("x", 0, "e1", 71, {4}, {4}, invoked_ms=130, outcome=Outcome.FAILED),
        Attempt("x", 1, "e2", 72, {5}, {5}, invoked_ms=200, decided_ms=220, outcome=Outcome.OK),
        Attempt("x", 1, "e3", 72, {6}, {6}, invoked_ms=230, decided_ms=240, outcome=Outcome.OK),
        Attempt("x", 2, "e4", 73, {7}),
    ]
    members = {A: (1, 3, 4, -1, 9, 5, 6), B: (5, 1, 2, -1, 4)}
    numbers: dict[int, int] = {}
    for tp, writers in members.items():
        for offset, member in enumerate(writers):
            if member >= 0:
                value = Value(member, numbers.setdefault(member, 0))
                numbers[member] += 1
                history.sends.append(Send(value, tp, 10, 400, Outcome.OK, offset))
                history.final[tp].append((offset, value))
                if member in (1, 2, 5, 9):
                    history.committed[tp].append((offset, value))
    for tp in members:
        history.reads += [Seek(READER, tp, 0), Poll(READER, tp, tuple(history.committed[tp]), 300)]
    moves = [(50, 0, 0), (110, 5, 0), (125, 5, 0), (210, 7, 5), (250, 7, 5)]
    history.snapshots = [Snapshot(ms, ms + 1, {A: a, B: b}) for ms, a, b in moves]
    return history


def value_at(history: History, tp: TopicPartition, offset: int) -> Value:
    return next(value for at, value in history.final[tp] if at == offset)


def show_aborted(history: History) -> None:
    history.committed[A].insert(1, (1, value_at(history, A, 1)))
    history.reads = []


def show_aborted_once(history: History) -> None:
    history.reads += [Seek(READER, B, 4), Poll(READER, B, ((4, value_at(history, B, 4)),), 300)]


def tear_in_the_end(history: History) -> None:
    del history.committed[B][1]
    history.reads = []


def tear_for_a_while(history: History) -> None:
    history.snapshots[3].stable[B] = 1


def show_late(history: History) -> None:
    history.snapshots[2].stable.update({A: 0, B: 0})
    history.snapshots[1].stable.update({A: 0, B: 0})


def show_early(history: History) -> None:
    history.reads[1:2] = [Poll(READER, A, tuple(history.committed[A]), 90)]


def write_after_the_end(history: History) -> None:
    value = Value(3, 9)
    history.zombies.add(value)
    history.final[A].append((7, value))
    history.sends.append(Send(value, A, 400, 410, Outcome.UNKNOWN))


def commit_twice(history: History) -> None:
    history.committed[A].append((6, value_at(history, A, 6)))


def lose_commit(history: History) -> None:
    for tp in (A, B):
        history.committed[tp] = [(offset, value) for offset, value in history.committed[tp] if value.producer != 5]
    history.reads = []


def forget_commit(history: History) -> None:
    history.forgotten.append("e0")


def go_back(history: History) -> None:
    history.snapshots[-1].stable[B] = 4


def hang(history: History) -> None:
    history.hanging[B] = (4, 5)


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
    (show_aborted, {"aborted-read"}),
    (show_aborted_once, {"aborted-read"}),
    (tear_in_the_end, {"torn-transaction"}),
    (tear_for_a_while, {"torn-transaction"}),
    (show_late, {"torn-transaction"}),
    (show_early, {"precommitted-read"}),
    (write_after_the_end, {"zombie-write"}),
    (commit_twice, {"committed-twice"}),
    (lose_commit, {"lost-commit"}),
    (forget_commit, {"forgotten-commit"}),
    (go_back, {"stable-offset-back"}),
    (hang, {"hanging"}),
]


def test_a_clean_history_has_no_anomaly() -> None:
    assert check(clean_history()) == []


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_planted_anomaly_is_named(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = clean_history()
    plant(history)
    assert {anomaly.kind for anomaly in check(history)} == kinds


def test_every_search_has_a_planted_anomaly() -> None:
    assert set().union(*(kinds for _, kinds in PLANTED)) == set(SEARCHES)


def test_a_reader_of_uncommitted_records_may_see_what_is_aborted() -> None:
    history = clean_history()
    history.reads += [Seek(1, A, 0), Poll(1, A, tuple(history.final[A]), 20)]
    assert check(history) == []
