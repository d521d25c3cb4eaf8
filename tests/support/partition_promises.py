"""Checks a partition's promises, on any number of replicas, against the history that each replica must hold.

    log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset

Offsets are assigned once, without gaps. The high watermark never decreases between two crashes. Nothing below it is lost by a crash
or a truncation, and replicas are equal below it. Producer state and leader epochs are those derived from all batches. The last
stable offset is the start of the first transaction without a marker below the high watermark."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from brokerd.partition.core import PartitionCore, Role
from brokerd.partition.producer_state import AbortedTransaction
from brokerd.record.header import BatchHeader
from tests.support.partition_replica import Replica


class Promises:
    """What all replicas together have promised."""

    def __init__(self) -> None:
        self._committed: dict[int, BatchHeader] = {}  # batches once below a high watermark, by base offset
        self.end = 0  # end of all promised batches
        self.end_before: dict[int, int] = {}  # the value of `end` when an epoch began

    def check_ends(self, replica: Replica, *, is_alone: bool) -> None:
        """Checks the ends. After a start, a replica that is not alone may not know which transactions are decided, and its last
        stable offset may be lower."""
        core = replica.log.core
        start, stable, high = core.ends.log_start_offset, core.ends.last_stable_offset, core.ends.high_watermark
        durable, end = core.ends.durable_end, core.ends.log_end_offset
        assert start <= stable <= high <= durable <= end, f"out of order: {start} {stable} {high} {durable} {end}"
        assert high >= replica.high_watermark, f"the high watermark went back from {replica.high_watermark} to {high}"
        assert end == replica.end, f"the log ends at {end}, not {replica.end}"
        self._commit(replica, high)
        undecided = replica.first_undecided(high)
        expected = max(start, high if undecided is None else min(high, undecided))
        is_known = is_alone or high >= replica.found_end
        assert core.ends.announced_stable_offset >= stable or core.role is not Role.LEADER, "a leader shows what it does not note"
        assert stable == expected or (not is_known and stable < expected), f"the last stable offset is {stable}, not {expected}"

    def _commit(self, replica: Replica, high_watermark: int) -> None:
        """Commits everything below the high watermark, for all replicas and across restarts."""
        for header, *_ in reversed(replica.history):
            if header.base_offset < replica.high_watermark:
                break
            if header.next_offset <= high_watermark:
                self._commit_batch(header)
        replica.high_watermark = high_watermark

    def acknowledge(self, header: BatchHeader) -> None:
        """A producer was told that this batch is durable, or a consumer has read it."""
        self._commit_batch(header)

    def _commit_batch(self, header: BatchHeader) -> None:
        assert self._committed.setdefault(header.base_offset, header) == header, "an offset is given twice"
        self.end = max(self.end, header.next_offset)

    def begin_epoch(self, epoch: int) -> None:
        """A leader is elected."""
        self.end_before[epoch] = self.end

    def check_nothing_is_lost(self, leader: Replica) -> None:
        """Checks that the leader has every batch that any replica has promised."""
        there = {stored.header.base_offset: stored.header for stored in leader.history}
        for offset, header in self._committed.items():
            assert there.get(offset) == header, f"what was below the high watermark at offset {offset} is lost"


def check_state(replica: Replica) -> None:
    """Checks that producer state, epochs and aborted transactions are those derived from all batches."""
    core = replica.log.core
    known, aborted = core.producers.aborted.entries, replica.aborted()
    assert set(known) <= set(aborted), f"{known} says more of aborted transactions than {aborted}"
    begin = core.ends.log_start_offset
    left = [entry for entry in known if entry.marker_offset >= begin]
    assert left == [entry for entry in aborted if entry.marker_offset >= begin], f"{known} is not the fold of all batches {aborted}"
    check_look_ups(core, aborted)
    assert dict(core.producers.entries) == replica.producers(), "the state of producers is not the fold of all batches"
    assert core.epochs.entries == replica.epochs(), f"{core.epochs.entries} is not the fold of all batches {replica.epochs()}"
    assert core.segments == replica.log.segments


def check_look_ups(core: PartitionCore, aborted: Sequence[AbortedTransaction]) -> None:
    """Checks the look-up of aborted transactions that overlap a range, for all relevant ranges."""
    ends = sorted(
        {core.ends.log_start_offset, core.ends.last_stable_offset, *(offset for entry in aborted for offset in entry[1:])}
    )
    ends = [offset for offset in ends if core.ends.log_start_offset <= offset <= core.ends.last_stable_offset]
    for first, until in itertools.combinations(ends, 2):
        found = core.aborted_transactions(first, until)
        expected = [entry for entry in aborted if entry.first_offset < until and entry.marker_offset >= first]
        assert found == expected, f"{found} are said to overlap {first} to {until}, not {expected}"


def end_of_epoch(core: PartitionCore, epoch: int) -> tuple[int, int]:
    """The last epoch of this log up to `epoch`, and its end offset."""
    entries = core.epochs.entries
    at = sum(entry.epoch <= epoch for entry in entries)
    end = entries[at].start_offset if at < len(entries) else core.ends.log_end_offset
    return (entries[at - 1].epoch if at else -1), end


def reported_end(core: PartitionCore) -> int:
    """The end that a follower reports to its leader."""
    return core.ends.durable_end


def cut_offset(end: int, own_end: int) -> int:
    """The offset where a follower truncates: its last epoch ends at `own_end` in its log and at `end` in its leader's."""
    return min(end, own_end)
