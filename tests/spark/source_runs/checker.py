"""Compares what a query read with what was written. Pure: no files, no broker, no Spark.

What was written is the writer's own record, with acknowledged offsets; no reader is compared with another.

    doubled     an offset was read twice
    disorder    an offset was read after a higher one of its partition
    aborted     a row of an aborted transaction was read
    missing     a committed row that the filter accepts was not read
    unexpected  a row that was not written there, or that the filter rejects, was read
    lost-batch  the numbers of the micro-batches have a gap
    other-rows  a micro-batch was replayed with other rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_EXAMPLES = 5


class Row(NamedTuple):
    """A row, with the place where it was written or read."""

    partition: int
    offset: int
    value: str


Batches = Mapping[int, Sequence[Row]]  # rows in order of arrival, by number of the micro-batch


@dataclass
class Written:
    """The rows of one topic: those that readers must see, and the values of those that no reader may see."""

    committed: set[Row] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)


class Violation(NamedTuple):
    """A violation, with some of the rows or numbers that show it."""

    kind: str
    size: int
    examples: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.size} {self.kind}: {', '.join(map(str, self.examples))}"


class ViolationsError(AssertionError):
    """A run has read forbidden rows, or not all rows that it must read."""

    def __init__(self, topic: str, found: Sequence[Violation]) -> None:
        super().__init__(f"{topic}: " + "; ".join(map(str, found)))
        self.kinds = {one.kind for one in found}


def violations_so_far(batches: Batches, aborted: Container[str], other_rows: Collection[int] = ()) -> list[Violation]:
    """Violations that show before the writer is done. `other_rows`: micro-batches that were replayed with other rows."""
    rows = [row for number in sorted(batches) for row in batches[number]]
    counts = Counter((row.partition, row.offset) for row in rows)
    lost = sorted(set(range(max(batches, default=0))) - set(batches))
    found: dict[str, Sequence[object]] = {
        "doubled": sorted(place for place, count in counts.items() if count > 1),
        "disorder": list(_late(rows)),
        "aborted": [_short(row) for row in rows if row.value in aborted],
        "lost-batch": lost,
        "other-rows": sorted(other_rows),
    }
    return _named(found)


def violations(
    batches: Batches, written: Written, is_wanted: Callable[[int, int], bool], other_rows: Collection[int] = ()
) -> list[Violation]:
    """All violations, once the writer is done and everything is read. `is_wanted` takes a partition and an offset."""
    read = {row for rows in batches.values() for row in rows}
    wanted = {row for row in written.committed if is_wanted(row.partition, row.offset)}
    found = {
        "missing": [_short(row) for row in sorted(wanted - read)],
        "unexpected": [_short(row) for row in sorted(read - wanted) if row.value not in written.aborted],
    }
    return [*violations_so_far(batches, written.aborted, other_rows), *_named(found)]


def _late(rows: Iterable[Row]) -> Iterable[str]:
    """Rows that follow a higher offset of their partition."""
    highest: dict[int, int] = {}
    for row in rows:
        if row.offset < highest.get(row.partition, -1):
            yield _short(row)
        highest[row.partition] = max(row.offset, highest.get(row.partition, -1))


def _short(row: Row) -> str:
    return f"{row.partition}/{row.offset} {row.value[:12]!r}"


def _named(found: Mapping[str, Sequence[object]]) -> list[Violation]:
    return [Violation(kind, len(each), tuple(each[:_EXAMPLES])) for kind, each in found.items() if each]
