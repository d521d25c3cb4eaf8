"""Which principal a producer id belongs to, so that nobody writes in another's name: whoever raises the epoch of an id fences its
producer, and whoever writes ahead of it has its batches taken for repetitions. (Kafka checks neither for idempotent producers.)

The id itself says whose it is, so nothing has to be remembered, and a restart forgets nothing:

    bit 63: 0 | bits 40 to 62: tag of its owner | bits 0 to 39: a number that is never given twice

A tag is a hash of the principal's name; the auth file is refused if two names have the same. The tag 0 is nobody's: ids of a
broker without authentication have it. So a producer that outlives a change of its name, or the day on which authentication is
switched on, holds an id that is not its own any more: UNKNOWN_PRODUCER_ID, and it asks for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from brokerd.ids import PRODUCER_NUMBER_BITS, producer_number

_TAGS = 1 << 63 - PRODUCER_NUMBER_BITS
NOBODY = 0


def owner_tag(principal: str) -> int:
    """The tag of all ids that a principal is given; the same for ever."""
    digest = hashlib.sha256(principal.encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % (_TAGS - 1)


class ProducerOwners:
    """The ids of all principals. `free_number` tells the lowest number that nobody has been given; `is_open`: everybody may use all
    ids there are, as where nobody has to show who it is.
    """

    def __init__(self, free_number: Callable[[], int], *, is_open: bool = False) -> None:
        self._free_number = free_number
        self._is_open = is_open

    def owns(self, tag: int, producer_id: int) -> bool:
        """True if the id was given to who has this tag. False too for a number that nobody has yet, or again: the broker lost count
        of them, and a producer outlived that.
        """
        is_own = self._is_open or producer_id >> PRODUCER_NUMBER_BITS == tag
        return is_own and producer_number(producer_id) < self._free_number()

    def given_to(self, tag: int, producer_id: int) -> int:
        """The id with its owner in it."""
        return producer_id if self._is_open else tag << PRODUCER_NUMBER_BITS | producer_number(producer_id)
