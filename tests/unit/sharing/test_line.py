"""An entry that leaves the line costs no look at those that stay."""

from __future__ import annotations

from brokerd.sharing import RoundRobin


class Entry:
    """Counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Entry.comparisons += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_a_thousand_that_leave_from_behind_are_not_compared_with_those_before_them() -> None:
    line: RoundRobin[Entry] = RoundRobin()
    entries = [Entry() for _ in range(1_000)]
    for entry in entries:
        line.join("owner", "peer", entry)
    Entry.comparisons = 0
    for entry in reversed(entries[1:]):
        assert line.leave("owner", "peer", entry)
        assert not line.leave("owner", "peer", entry)
    assert (len(line), line.first("owner")) == (1, entries[0])
    assert Entry.comparisons < 2 * len(entries)


def test_what_leaves_from_the_middle_changes_no_turn() -> None:
    line: RoundRobin[int] = RoundRobin()
    for number in range(6):
        line.join("ab"[number % 2], "peer", number)
    assert line.leave("a", "peer", 2)
    assert line.leave("b", "peer", 1)
    assert [line.pop_next() for _ in range(len(line))] == [0, 3, 4, 5]
    assert list(line) == []
