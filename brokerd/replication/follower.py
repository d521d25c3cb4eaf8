"""What a follower reports to its leader, and the leader's verdict: whether their logs agree, and where the follower has to cut.

Both logs agree up to the follower's end if that end lies in the same epoch of the leader's log: one leader wrote an epoch, each
offset once. Otherwise the follower cuts everything above the newest epoch that both have, and asks again (KIP-101, KIP-279). A
follower whose log ends below the leader's first batch starts over there, with a snapshot of the producer state it cannot derive.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.partition import Partition


class Position(NamedTuple):
    """A follower's progress in a partition."""

    leader_epoch: int  # in which it follows
    log_end_offset: int
    durable_end: int
    log_start_offset: int  # durable
    last_epoch: int  # of its last batch; -1 = the log is empty
    last_epoch_id: int = 0


class Common(NamedTuple):
    """The newest epoch of the leader's log that is not above the follower's last (-1: none), and its end in the leader's log."""

    epoch: int
    end_offset: int


def position_of(partition: Partition, durable_log_start: int) -> Position:
    """The position of a partition that this node follows."""
    ends = partition.ends
    epochs = partition.epochs
    return Position(
        partition.leader_epoch, ends.log_end_offset, ends.durable_end, durable_log_start, epochs.latest, epochs.latest_id
    )


def divergence(epochs: LeaderEpochs, log_start_offset: int, log_end_offset: int, position: Position) -> Common | None:
    """The newest epoch in common if the logs diverge; None if the leader's log contains the follower's. `epochs` and both offsets
    are the leader's. After a recovery without a snapshot the leader's earlier epochs may be unknown. A follower without data above
    the leader's log start then counts as agreeing: its records are never read, and it could not cut below its high watermark."""
    last_epoch = position.last_epoch
    if not epochs.may_have(last_epoch, position.last_epoch_id):
        last_epoch -= 1  # etcd was rolled back, and has given out this epoch twice
    common = Common(*epochs.end_of(last_epoch, log_end_offset))
    agrees_until = common.end_offset if common.epoch == position.last_epoch else -1
    if common.epoch < 0:
        agrees_until = max(agrees_until, min(common.end_offset, log_start_offset))
    return None if position.log_end_offset <= agrees_until else common


def is_of_other_history(epochs: LeaderEpochs, leader_epoch: int, position: Position) -> bool:
    """True if etcd was rolled back and has given out an epoch twice: the epoch of the follower's last batch has another id in the
    leader's log, or is missing there and not below the leader's own epoch. `epochs`, `leader_epoch`: the leader's."""
    last = position.last_epoch
    return not epochs.may_have(last, position.last_epoch_id) or (last >= leader_epoch and last > epochs.latest)


def cut_offset(epochs: LeaderEpochs, log_end_offset: int, common: Common) -> int:
    """The offset at which a follower cuts its log. `epochs`, `log_end_offset`: the follower's."""
    _, own_end = epochs.end_of(common.epoch, log_end_offset)
    return min(common.end_offset, own_end)
