"""Decides which principal a producer id belongs to, so that no principal writes as another's producer: a raised epoch would fence
that producer, and sequences ahead of its own would make its batches pass for repetitions. (Kafka checks neither for idempotent
producers.)

The id itself names its owner, so nothing has to be remembered, and a restart forgets nothing:

    bit 63: 0 | bits 40 to 62: tag of its owner | bit 39: of a member of a transaction | bits 0 to 38: a number, never given twice

A tag is a hash of the principal's name; the auth file is refused if two names have the same. The tag 0 belongs to no principal: the
ids of a broker without authentication have it. So a producer whose principal is renamed, or whose broker gets an auth file, holds
an id that is no longer its own: it gets UNKNOWN_PRODUCER_ID and requests another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from brokerd.ids import PRODUCER_TAG_SHIFT, producer_number

_TAGS = 1 << 63 - PRODUCER_TAG_SHIFT
_BELOW_TAG = (1 << PRODUCER_TAG_SHIFT) - 1
NOBODY = 0


def owner_tag(principal: str) -> int:
    """The tag of all ids that a principal is given; the same for ever."""
    digest = hashlib.sha256(principal.encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % (_TAGS - 1)


class ProducerOwners:
    """The ids of all principals. `free_number` returns the lowest number that has not been given; `is_open`: everybody may use
    every id, as on a broker without authentication.
    """

    def __init__(self, free_number: Callable[[], int], *, is_open: bool = False) -> None:
        self._free_number = free_number
        self._given_below = 0  # all numbers below it were given: they only rise
        self._is_open = is_open

    def owns(self, tag: int, producer_id: int) -> bool:
        """True if the id was given to the principal with this tag. False also for a number that has not been given, as when a
        producer outlives a broker whose count of them was lost.
        """
        if not self._is_open and producer_id >> PRODUCER_TAG_SHIFT != tag:
            return False
        number = producer_number(producer_id)
        if number >= self._given_below:
            self._given_below = self._free_number()
        return number < self._given_below

    def given_to(self, tag: int, producer_id: int) -> int:
        """The id with its owner's tag."""
        return producer_id if self._is_open else tag << PRODUCER_TAG_SHIFT | producer_id & _BELOW_TAG
