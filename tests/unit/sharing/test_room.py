"""FairQueue: an owner without units waits for at most one entry of each other owner, every entry is served, and the limit holds.

Random schedules on a virtual clock: owners request random units, hold them for random times, and sometimes leave the queue.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import random
from collections import Counter

import pytest

from brokerd.sharing import Caller, FairQueue, RoundRobin, Waiting

LIMIT = 1_000
HONEST = Caller("honest", "h1")
ATTACKER = [Caller("attacker", f"a{number}") for number in range(3)]


class Schedule:
    """Tickets (queue entries) that arrive, are held and end, in virtual time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.room: FairQueue[int] = FairQueue(LIMIT)
        self.now = 0
        self.events: list[tuple[int, int, str, Waiting[int]]] = []
        self.waiting: dict[int, Waiting[int]] = {}
        self.held: dict[int, Waiting[int]] = {}
        self.overtaken: dict[int, Counter[str]] = {}  # by ticket, if its owner had nothing: entries served to others since
        self.facts: Counter[str] = Counter()
        self._numbers = itertools.count()

    def ask(self, caller: Caller, units: int, *, after: int = 0) -> None:
        """Schedules a ticket that arrives `after` from now."""
        self._plan(after, "comes", Waiting(caller, units, next(self._numbers)))

    def run(self) -> None:
        """Runs until all tickets have ended or left."""
        while self.events:
            self.now, _, what, ticket = heapq.heappop(self.events)
            if what == "comes":
                self._come(ticket)
            elif what == "goes" and self.waiting.pop(ticket.waiter, None) is not None:
                assert self.room.leave(ticket)
                assert not self.room.leave(ticket)
                self.facts["left"] += 1
            elif what == "ends":
                del self.held[ticket.waiter]
                self.room.shares.add(ticket.caller.owner, -ticket.units)
            self._serve()
        assert (self.room.used, self.room.waiting, self.waiting, self.held) == (0, 0, {}, {})
        assert list(self.room._line) == []

    def _plan(self, after: int, what: str, ticket: Waiting[int]) -> None:
        heapq.heappush(self.events, (self.now + after, next(self._numbers), what, ticket))

    def _come(self, ticket: Waiting[int]) -> None:
        owner = ticket.caller.owner
        if not self._has(owner):
            self.overtaken[ticket.waiter] = Counter()
        self.waiting[ticket.waiter] = ticket
        self.room.join(ticket)
        if self.rng.random() < 0.1:
            self._plan(self.rng.randrange(50), "goes", ticket)

    def _has(self, owner: str) -> bool:
        return any(ticket.caller.owner == owner for ticket in (*self.waiting.values(), *self.held.values()))

    def _serve(self) -> None:
        while (ticket := self.room.pop()) is not None:
            assert self.waiting.pop(ticket.waiter) == ticket
            for other in self.waiting.values():
                if other.waiter in self.overtaken and other.caller.owner != ticket.caller.owner:
                    self.overtaken[other.waiter][ticket.caller.owner] += 1
            overtaken = self.overtaken.pop(ticket.waiter, Counter())
            assert max(overtaken.values(), default=0) <= 1, f"{ticket} waited for {overtaken}"
            self.facts["waited"] += bool(overtaken)
            self.held[ticket.waiter] = ticket
            assert self.room.used == sum(held.units for held in self.held.values())
            assert self.room.used <= LIMIT or len(self.held) == 1
            self.facts["alone"] += self.room.used > LIMIT
            self._plan(self.rng.randrange(1, 40), "ends", ticket)


@pytest.mark.parametrize("owners", [2, 3, 6])
def test_whoever_has_nothing_waits_for_one_of_each_other_owner_at_most_and_everybody_goes(owners: int) -> None:
    facts: Counter[str] = Counter()
    for seed in range(60):
        schedule = Schedule(seed)
        for _ in range(120):
            owner = schedule.rng.randrange(owners)
            units = schedule.rng.choice([1, 5, 150, 400, 900, 1_500])
            schedule.ask(Caller(f"o{owner}", f"c{schedule.rng.randrange(2)}"), units, after=schedule.rng.randrange(300))
        schedule.run()
        facts += schedule.facts
    assert min(facts[name] for name in ("left", "waited", "alone")) > 5, facts


def test_a_small_request_finds_room_at_once_beside_one_who_takes_all_it_can() -> None:
    room: FairQueue[int] = FairQueue(LIMIT)
    for number in range(1_000):
        room.join(Waiting(ATTACKER[number % 3], 15, number))
    while room.pop() is not None:
        pass
    assert room.used == 795
    room.join(Waiting(HONEST, 5, -1))
    ticket = room.pop()
    assert ticket is not None
    assert ticket.waiter == -1
    assert room.pop() is None
    room.shares.add("attacker", -15)
    ticket = room.pop()
    assert ticket is not None
    assert ticket.caller.owner == "attacker"


def test_what_is_larger_than_all_goes_alone_and_what_becomes_free_is_kept_for_it() -> None:
    room: FairQueue[str] = FairQueue(LIMIT)
    for caller, units, name in [(HONEST, 10, "first"), (ATTACKER[0], 2_000, "large"), (Caller("third", "t"), 1, "behind")]:
        room.join(Waiting(caller, units, name))
    first = room.pop()
    assert first is not None
    assert room.pop() is None, "neither the large one nor the one behind it"
    room.join(Waiting(HONEST, 10, "second"))
    assert room.pop() is None
    room.shares.add("honest", -10)
    large = room.pop()
    assert large is not None
    assert (large.waiter, room.pop()) == ("large", None)
    room.shares.add("attacker", -2_000)
    behind = room.pop()
    assert behind is not None
    assert behind.waiter == "behind"


def test_a_room_without_a_free_unit_is_not_offered_to_everybody_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    room: FairQueue[str] = FairQueue(100)
    for number in range(100):
        room.shares.add(str(number), 1)
        room.join(Waiting(Caller(str(number), ""), 1, str(number)))
    asked: list[str] = []

    def fits(owner: str, count: int) -> bool:
        asked.append(owner)
        return False

    monkeypatch.setattr(room, "fits", fits)
    assert room.pop() is None
    assert not asked


def test_while_less_is_free_than_anybody_asks_for_nobody_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    room: FairQueue[int] = FairQueue(LIMIT)
    for number in range(90):
        room.shares.add(f"o{number}", 11)
    for number in range(90):
        room.join(Waiting(Caller(f"o{number}", "p"), 20, number))
    assert room.pop() is None
    looks: Counter[str] = Counter()
    fits = FairQueue.fits
    monkeypatch.setattr(FairQueue, "fits", lambda self, owner, count: looks.update([owner]) or fits(self, owner, count))
    for number in range(9):
        room.shares.add(f"o{number}", -1)
        assert room.pop() is None
    assert not looks
    room.shares.add("o9", -11)
    room.shares.add("o8", -10)
    assert room.pop() == Waiting(Caller("o0", "p"), 20, 0)
    assert looks


@pytest.mark.parametrize("seed", range(30))
def test_the_next_is_the_one_that_a_look_at_all_finds(seed: int) -> None:
    rng = random.Random(seed)
    room: FairQueue[int] = FairQueue(100)
    waiting: list[Waiting[int]] = []
    for number in range(400):
        action = rng.random()
        if action < 0.45:
            ticket = Waiting(Caller(f"o{rng.randrange(6)}", f"p{rng.randrange(2)}"), rng.choice([0, 1, 5, 30, 120]), number)
            room.join(ticket)
            waiting.append(ticket)
        elif action < 0.55 and waiting:
            assert room.leave(waiting.pop(rng.randrange(len(waiting))))
        elif room.used:
            owner = rng.choice(sorted(owner for owner in (f"o{n}" for n in range(6)) if room.shares.count(owner)))
            room.shares.add(owner, -rng.randint(1, room.shares.count(owner)))
        twin = copy.deepcopy(room)
        twin._least = 0
        found = room.pop()
        assert found == twin.pop()
        if found is not None:
            waiting.remove(found)


# RoundRobin alone


class Entry:
    """Counts comparisons of entries."""

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


def test_a_line_takes_owners_in_turn_and_connections_in_turn() -> None:
    line: RoundRobin[str] = RoundRobin()
    for owner, peer, entry in [
        ("a", "1", "a1"),
        ("a", "1", "leaves"),
        ("a", "1", "a1 again"),
        ("a", "2", "a2"),
        ("b", "1", "b1"),
        ("b", "1", "b1 again"),
    ]:
        line.join(owner, peer, entry)
    assert line.leave("a", "1", "leaves")
    assert line.leave("b", "1", "b1 again")
    assert not line.leave("b", "1", "b1 again")
    assert not line.leave("c", "1", "nobody")
    assert [line.pop_next() for _ in range(len(line))] == ["a1", "b1", "a2", "a1 again"]
    assert (len(line), list(line)) == (0, [])
