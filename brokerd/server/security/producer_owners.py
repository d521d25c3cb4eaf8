"""Which principal a producer id belongs to, so that nobody writes in another's name: whoever raises the epoch of an id fences its
producer, and whoever writes ahead of it has its batches taken for repetitions. (Kafka checks neither for idempotent producers.)

An id belongs to the principal that was given it. Owners are in memory alone: after a restart an id belongs to the first that
writes with it, and one that was never given to nobody. Of each principal the ids that it used last are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

IDS_PER_PRINCIPAL_MAX = 100_000


class ProducerOwners:
    """Owners of the producer ids in use."""

    def __init__(self, free_producer_id: Callable[[], int]) -> None:
        """`free_producer_id` tells the lowest id that nobody has been given."""
        self._free_producer_id = free_producer_id
        self._owners: dict[int, str] = {}
        self._ids: dict[str, OrderedDict[int, None]] = {}  # of each principal, the one used last at the end

    def __len__(self) -> int:
        """How many ids have an owner."""
        return len(self._owners)

    def was_given(self, producer_id: int) -> bool:
        """False for an id that nobody has yet, or again: the broker lost count of them, and a producer outlived that."""
        return producer_id < self._free_producer_id()

    def claim(self, producer_id: int, principal: str) -> bool:
        """True if the id is the principal's, or its owner is not known: it is the principal's then."""
        owner = self._owners.get(producer_id)
        if owner is None:
            if not self.was_given(producer_id):
                return False
            self._give(producer_id, principal)
        elif owner != principal:
            return False
        else:
            self._ids[principal].move_to_end(producer_id)
        return True

    def _give(self, producer_id: int, principal: str) -> None:
        ids = self._ids.setdefault(principal, OrderedDict())
        if len(ids) >= IDS_PER_PRINCIPAL_MAX:
            del self._owners[ids.popitem(last=False)[0]]
        ids[producer_id] = None
        self._owners[producer_id] = principal
