"""Goal: copies become equal whatever happens to roles meanwhile. Method: real directories, leaders and copiers, in one process."""

from __future__ import annotations

from tests.support.build import append, payloads
from tests.support.copies import copies, until


async def test_a_follower_copies_what_its_leader_has() -> None:
    async with copies() as all_of_them:
        one, two = all_of_them
        entry = all_of_them.entry(1, 1)
        await one.hears(entry, 2)
        await two.hears(entry, 2)
        append(one.log(), b"from one")
        await until(lambda: one.log().ends.high_watermark == 1)
        await until(lambda: payloads(two.log()) == [b"from one"])


async def test_a_follower_is_cut_in_several_steps() -> None:
    """Their logs part where each has led in turn: it asks again after each cut, and has written nothing in between."""
    async with copies() as all_of_them:
        one, two = all_of_them
        # Both have epoch 1; node 2 also 3 and 5, and node 1 epoch 4, each unread by the other.
        await one.takes_role(all_of_them.entry(1, 1))
        await two.takes_role(all_of_them.entry(2, 1))
        await two.takes_role(all_of_them.entry(2, 3))
        append(two.log(), b"two at 3")
        await two.takes_role(all_of_them.entry(2, 5))
        append(two.log(), b"two at 5")
        await one.takes_role(all_of_them.entry(1, 2))
        append(one.log(), b"one at 2")
        await one.takes_role(all_of_them.entry(1, 4))
        append(one.log(), b"one at 4")
        last = all_of_them.entry(1, 6)
        await one.hears(last, 2)
        await two.hears(last, 2)
        await until(lambda: payloads(two.log()) == [b"one at 2", b"one at 4"], "equal copies")
