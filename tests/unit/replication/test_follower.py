"""Goal: leader and follower find the last record that both logs have, whatever epochs each log contains."""

from __future__ import annotations

import pytest

from brokerd.partition.leader_epochs import EpochEntry, LeaderEpochs
from brokerd.replication.follower import Common, Position, cut_offset, divergence, is_of_other_history

LEADER = (LeaderEpochs([EpochEntry(1, 0), EpochEntry(3, 10), EpochEntry(6, 20)]), 0, 30)


def position(last_epoch: int, end: int) -> Position:
    return Position(7, end, end, 0, last_epoch)


@pytest.mark.parametrize(
    ("last_epoch", "end", "common"),
    [
        (-1, 0, None),  # an empty log
        (1, 5, None),
        (1, 10, None),
        (1, 11, Common(1, 10)),
        (3, 20, None),
        (3, 21, Common(3, 20)),
        (6, 30, None),
        (6, 31, Common(6, 30)),
        (2, 10, Common(1, 10)),  # the leader has no batch of this epoch
        (5, 25, Common(3, 20)),
        (9, 30, Common(6, 30)),
        (0, 3, Common(-1, 0)),  # nothing in common
    ],
)
def test_a_follower_agrees_up_to_its_end_or_hears_what_is_common(last_epoch: int, end: int, common: Common | None) -> None:
    assert divergence(*LEADER, position(last_epoch, end)) == common


@pytest.mark.parametrize(
    ("epoch", "epoch_id", "common"),
    [(6, 66, None), (6, 67, Common(3, 20)), (6, 0, None), (3, 33, None), (3, 34, Common(1, 10)), (1, 9, Common(-1, 0))],
)
def test_an_epoch_that_two_leaders_have_written_is_not_common(epoch: int, epoch_id: int, common: Common | None) -> None:
    """Happens after etcd was restored from a backup."""
    leader = LeaderEpochs([EpochEntry(1, 0, 11), EpochEntry(3, 10, 33), EpochEntry(6, 20, 66)])
    end = {6: 30, 3: 20, 1: 10}[epoch]
    follows = position(epoch, end)._replace(last_epoch_id=epoch_id)
    assert divergence(leader, 0, 30, follows) == common


@pytest.mark.parametrize(
    ("log_start", "end", "agrees"), [(12, 10, True), (12, 11, False), (10, 10, True), (5, 10, False), (5, 5, True)]
)
def test_where_the_leaders_earlier_epochs_are_unknown_what_nobody_reads_agrees(log_start: int, end: int, agrees: bool) -> None:
    common = divergence(LeaderEpochs([EpochEntry(3, 10)]), log_start, 30, position(1, end))
    assert common == (None if agrees else Common(-1, 10))


@pytest.mark.parametrize(
    ("entries", "end", "common", "cut"),
    [
        ([(1, 0)], 12, Common(1, 10), 10),
        ([(1, 0), (2, 8)], 12, Common(1, 10), 8),  # the follower's epoch 1 ends before the leader's
        ([(1, 0), (4, 10), (5, 14)], 20, Common(3, 20), 10),  # the follower has no batch of epoch 3
        ([(2, 0)], 5, Common(-1, 0), 0),
    ],
)
def test_a_follower_cuts_at_the_lower_end_of_what_is_common(
    entries: list[tuple[int, int]], end: int, common: Common, cut: int
) -> None:
    assert cut_offset(LeaderEpochs([EpochEntry(*entry) for entry in entries]), end, common) == cut


@pytest.mark.parametrize(
    ("epoch", "epoch_id", "is_disputed"),
    [
        (6, 66, False),
        (6, 67, True),  # two leaders have written this epoch
        (6, 0, False),  # the id is unknown
        (5, 55, False),  # a deposed leader's epoch, missing in this log
        (7, 77, False),  # the same
        (8, 88, True),  # this leader's own epoch, without a batch yet
        (9, 99, True),
    ],
)
def test_an_epoch_that_was_given_out_twice_shows_that_the_store_went_back(epoch: int, epoch_id: int, is_disputed: bool) -> None:
    leader = LeaderEpochs([EpochEntry(1, 0, 11), EpochEntry(6, 20, 66)])
    assert is_of_other_history(leader, 8, position(epoch, 30)._replace(last_epoch_id=epoch_id)) == is_disputed
