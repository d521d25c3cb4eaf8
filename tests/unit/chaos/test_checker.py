"""Goal: the checker finds each anomaly it claims to find, and no other. Method: plant a defect in a clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.ids import TopicPartition
from tests.chaos.checker import SEARCHES, check
from tests.chaos.history import History, Outcome, Poll, Seek, Send, Value

TP = TopicPartition("events", 0)
OTHER = TopicPartition("events", 1)


def clean_history() -> History:
    """Two producers send ten records each, in turn; one consumer reads all of them in polls of four."""
    history = History()
    values = [Value(producer=i % 2, number=i // 2) for i in range(20)]
    for offset, value in enumerate(values):
        history.sends.append(Send(value, TP, 10 * offset, 10 * offset + 5, Outcome.OK, offset))
    history.sends.append(Send(Value(0, 10), TP, 300, 310, Outcome.FAILED))
    history.sends.append(Send(Value(0, 11), TP, 320, 330, Outcome.UNKNOWN))
    history.final[TP] = list(enumerate(values))
    history.reads.append(Seek(0, TP, 0))
    for start in range(0, 20, 4):
        history.reads.append(Poll(0, TP, tuple((offset, values[offset]) for offset in range(start, start + 4))))
    return history


def lose_write(history: History) -> None:
    del history.final[TP][-1]
    history.reads = []


def lose_write_without_offset(history: History) -> None:
    history.sends[-1] = history.sends[-1]._replace(outcome=Outcome.OK)


def duplicate(history: History) -> None:
    history.final[TP].append((20, Value(1, 9)))


def ack_wrong_offset(history: History) -> None:
    history.sends[-3] = history.sends[-3]._replace(offset=23)


def invent(history: History) -> None:
    history.final[TP].append((20, Value(7, 0)))


def move_to_other_partition(history: History) -> None:
    history.final[OTHER] = [(0, Value(0, 11))]


def read_failed(history: History) -> None:
    history.final[TP].append((20, Value(0, 10)))


def reuse_offset(history: History) -> None:
    history.reads.append(Poll(1, OTHER, ((0, Value(0, 3)),)))
    history.reads.append(Poll(2, OTHER, ((0, Value(0, 4)),)))


def let_vanish(history: History) -> None:
    history.reads += [Seek(1, TP, 20), Poll(1, TP, ((20, Value(0, 11)),))]


def go_back(history: History) -> None:
    history.reads.append(Poll(0, TP, ((3, Value(1, 1)),)))


def jump(history: History) -> None:
    del history.reads[2]


def swap_sends(history: History) -> None:
    final = history.final[TP]
    final[4], final[6] = (4, final[6][1]), (6, final[4][1])


def break_realtime(history: History) -> None:
    history.sends[3] = history.sends[3]._replace(invoked_ms=400, completed_ms=401)


def tear_gap(history: History) -> None:
    history.final[TP].append((25, Value(0, 11)))


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
    (lose_write, {"lost-write"}),
    (lose_write_without_offset, {"lost-write"}),
    (duplicate, {"duplicate", "nonmonotonic-send"}),
    (ack_wrong_offset, {"wrong-offset"}),
    (invent, {"phantom"}),
    (move_to_other_partition, {"phantom"}),
    (read_failed, {"G1a"}),
    (reuse_offset, {"inconsistent-offsets", "vanished-read"}),
    (let_vanish, {"vanished-read"}),
    (go_back, {"nonmonotonic-poll"}),
    (jump, {"poll-skip"}),
    (swap_sends, {"nonmonotonic-send", "wrong-offset", "inconsistent-offsets", "vanished-read"}),
    (break_realtime, {"realtime-order"}),
    (tear_gap, {"gap"}),
]


def test_clean_history_has_no_anomaly() -> None:
    assert check(clean_history()) == []


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_planted_anomaly_is_named(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = clean_history()
    plant(history)
    assert {anomaly.kind for anomaly in check(history)} == kinds


def test_every_search_has_a_planted_anomaly() -> None:
    assert set().union(*(kinds for _, kinds in PLANTED)) == set(SEARCHES)


def test_acknowledged_without_an_offset_may_be_anywhere() -> None:
    history = clean_history()
    history.sends[3] = history.sends[3]._replace(offset=-1)
    assert check(history) == []


def test_seek_allows_to_read_again() -> None:
    history = clean_history()
    history.reads.append(Seek(0, TP, 2))
    history.reads.append(Poll(0, TP, ((2, Value(0, 1)),)))
    assert check(history) == []
