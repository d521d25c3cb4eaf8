"""A coordination store in a dictionary, for simulations: keys with revisions, and the history of their changes."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.cluster.changes import ABSENT, OPERATIONS_MAX, Transaction
from brokerd.cluster.image import ClusterImage


class Event(NamedTuple):
    """One change of a key; `value` None: deleted."""

    key: str
    value: bytes | None
    create_revision: int
    mod_revision: int


class Store:
    """The coordination store."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.present: dict[str, Event] = {}
        self.revision = 0

    def write(self, key: str, value: bytes | None) -> None:
        """Puts or deletes a key."""
        self.transact(Transaction({}, {} if value is None else {key: value}, (key,) if value is None else ()))

    def transact(self, transaction: Transaction) -> bool:
        """Runs a transaction; False if a comparison fails."""
        assert len(transaction.compares) <= OPERATIONS_MAX, "too many comparisons"
        assert len(transaction.puts) + len(transaction.deletes) <= OPERATIONS_MAX, "too many operations"
        assert not transaction.puts.keys() & set(transaction.deletes), "a key twice"
        for key, revision in transaction.compares.items():
            if (self.present[key].mod_revision if key in self.present else ABSENT) != revision:
                return False
        self.revision += 1
        for key in transaction.deletes:
            if self.present.pop(key, None) is not None:
                self.events.append(Event(key, None, 0, self.revision))
        for key, value in transaction.puts.items():
            created = self.present[key].create_revision if key in self.present else self.revision
            self.present[key] = Event(key, value, created, self.revision)
            self.events.append(self.present[key])
        return True

    def earlier(self, revision: int, bump: int = 0) -> Store:
        """The store as it was at a revision, as after lost changes or a restored snapshot. Keys keep their revisions of then, and
        later revision numbers are assigned again, higher by `bump` (etcd's --bump-revision)."""
        other = Store()
        other.events = [event for event in self.events if event.mod_revision <= revision]
        for event in other.events:
            if event.value is None:
                other.present.pop(event.key, None)
            else:
                other.present[event.key] = event
        other.revision = revision + bump
        return other


def see(image: ClusterImage, event: Event) -> None:
    """Applies an event to an image."""
    if event.value is None:
        image.delete(event.key)
    else:
        image.put(event.key, event.value, event.create_revision, event.mod_revision)
    assert not image.problems, image.problems
