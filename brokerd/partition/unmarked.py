"""The data of members that has no marker in a partition, and where damage behind it may have taken the marker. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from brokerd.partition.producer_state import ProducerStates
from brokerd.storage.damage import DamagedRange


class UnmarkedData(NamedTuple):
    """One member's data in one partition, from `first_offset` up to, not including, `end_offset`."""

    producer_id: int
    first_offset: int
    end_offset: int
    is_readable: bool  # it is not all below the log start
    lost: tuple[int, int] | None  # offsets from, until: the first range that is lost where its marker may have stood


def unmarked_data(producers: ProducerStates, damaged: Iterable[DamagedRange], log_start_offset: int) -> list[UnmarkedData]:
    """All that is open in a partition, in the order of the first offsets.

    A marker stands behind all data of its member. A batch that an operator has taken out is whole, so a marker in it has counted.
    """
    lost = sorted((one.first_offset, one.until_offset) for one in damaged if not one.is_taken_out)
    found = []
    for producer_id, first_offset in producers.open_transactions.items():
        end_offset = producers.entries[producer_id].batches[-1].last_offset + 1
        behind = [(max(first, end_offset), until) for first, until in lost if until > max(end_offset, log_start_offset)]
        is_readable = end_offset > log_start_offset
        found.append(UnmarkedData(producer_id, first_offset, end_offset, is_readable, behind[0] if behind else None))
    return found


def with_lost_markers(found: Iterable[UnmarkedData]) -> set[int]:
    """Producer ids of the members whose marker may have stood in what is lost. `found`: of all partitions.

    A commit is complete only once all partitions with data of its members have their marker durably. So where one has lost nothing
    and has no marker, there was no commit. Data below the log start proves nothing and harms nobody.
    """
    lost: set[int] = set()
    whole: set[int] = set()
    for one in found:
        if one.is_readable:
            (whole if one.lost is None else lost).add(one.producer_id)
    return lost - whole


def undecided_text(partition: str, data: UnmarkedData) -> str:
    """Says that nobody knows whether these records are committed, and what to do."""
    first, until = data.lost or (data.end_offset, data.end_offset)
    return (
        f"{partition}: producer {data.producer_id} wrote records from offset {data.first_offset} to {data.end_offset - 1} in a "
        f"transaction, and nothing tells whether it was committed: its marker may have stood in what is lost, offsets {first} to "
        f"{until - 1}. Readers of committed records wait at offset {data.first_offset}. Restore the directory from a copy; or "
        "compare the records with their source, stop the broker, and decide: `brokerd doctor DIR --decide commit` or "
        "`--decide abort`"
    )
