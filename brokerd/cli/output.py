"""Formats the output of commands: tables, sizes and times for people, JSON for programs."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from brokerd.errors import BrokerdError, counted
from brokerd.wire.v1.error_pb2 import Error
from brokerd.wire.v1.metadata_pb2 import GetServerInfoResponse, MetadataResponse, PartitionMetadata

NONE = "-"  # in a table: unknown or absent
_DURATIONS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_MS_PER_S = 1_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, indent: str = "") -> str:
    """A table with aligned columns: columns of integers to the right, others to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(heading), *(len(row[column]) for row in cells)]) for column, heading in enumerate(headings)]
    is_number = [bool(rows) and all(isinstance(row[column], int) for row in rows) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, is_number, strict=True)
        )
        return (indent + "  ".join(aligned)).rstrip()

    return "\n".join([line(headings), *(line(row) for row in cells)])


def size_text(size_bytes: int) -> str:
    """A size for people, such as "1.5 MiB"; "-" if unknown (-1)."""
    if size_bytes < 0:
        return NONE
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def duration_text(duration_ms: int) -> str:
    """A duration for people in its two largest units, such as "3 min 20 s", or in ms below a second; "-" if unknown (-1)."""
    if duration_ms < 0:
        return NONE
    parts: list[str] = []
    rest_ms = duration_ms
    for unit, unit_ms in _DURATIONS:
        count, rest_ms = divmod(rest_ms, unit_ms)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part) or f"{duration_ms} ms"


def time_text(timestamp_ms: int) -> str:
    """A UTC time for people, to the second, from ms since 1970; "-" if unknown (-1)."""
    return NONE if timestamp_ms < 0 else exact_time_text(timestamp_ms, "seconds")


def exact_time_text(timestamp_ms: int, to_the: str = "milliseconds") -> str:
    """A UTC time for people from ms since 1970. Accepts any number, since a file may hold any. `to_the`: datetime's timespec."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / _MS_PER_S, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # outside the calendar
    return moment.isoformat(sep=" ", timespec=to_the).replace("+00:00", "Z")


def known(value: int) -> int | None:
    """The number for a JSON document: None for -1, the wire's value for unknown."""
    return None if value < 0 else value


def fields(value: object, names: str) -> dict[str, Any]:
    """The named fields of a message for a JSON document: None for -1, bytes in hex, an error as its text."""
    return {name: _plain(getattr(value, name)) for name in names.split()}


def sum_of_known(values: Iterable[int]) -> int | None:
    """The sum of the values that are known (not -1); None if there are none."""
    found = [value for value in values if value >= 0]
    return sum(found) if found else None


def sum_text(values: Sequence[int], text: Callable[[int], str] | None = None) -> object:
    """The sum of values for a table, formatted by `text`; "-" if all are unknown."""
    total = sum_of_known(values)
    return NONE if total is None else at_least(total if text is None else text(total), is_partial=min(values) < 0)


def at_least(cell: object, *, is_partial: bool) -> object:
    """A number for a table, such as "12+" if it leaves out unknown parts."""
    return f"{cell}+" if is_partial else cell


def not_counted(values: Iterable[int]) -> str:
    """The end of a sentence about a sum over partitions: how many are unknown (-1) and not counted."""
    count = sum(value < 0 for value in values)
    return f", not counting {counted(count, 'unknown partition')}" if count else ""


def dashed(value: int) -> object:
    """The number for a table: "-" if unknown (-1)."""
    return NONE if value < 0 else value


def listed(node_ids: Iterable[int]) -> str:
    """Node ids for a table: "1,2,3"; "-" if there are none."""
    return ",".join(map(str, node_ids)) or NONE


def cluster_text(cluster: MetadataResponse | GetServerInfoResponse) -> str:
    """A cluster's name and id; only the id for a standalone node."""
    return f"{cluster.cluster_name} ({cluster.cluster_id})" if cluster.cluster_name else cluster.cluster_id


def placed(partition: PartitionMetadata) -> dict[str, Any]:
    """A partition's leader, replicas, in-sync replicas and move target, for a JSON document."""
    lists = {"replicas": list(partition.replicas), "isr": list(partition.isr), "target": list(partition.target)}
    return {"leader": known(partition.leader), **lists}


def topic_text(name: str, topic_id: bytes) -> str:
    """A topic's name, or its id if the name is unknown."""
    return name or f"(id {topic_id.hex()})"


def show(args: argparse.Namespace, document: Any, lines: Iterable[str]) -> None:
    """Prints the result of a command: `document` with --json, otherwise `lines`."""
    if args.json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for line in lines:
        print(line)


def note(text: str) -> None:
    """Prints a line for people on standard error."""
    print(text, file=sys.stderr, flush=True)


def raise_all(errors: Sequence[BrokerdError]) -> None:
    """Reports the errors of one command, each on a line of its own: raises the last, if any, after printing the others."""
    for error in errors[:-1]:
        note(f"brokerd: {error}")
    for error in errors[-1:]:
        raise error


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Error):
        return value.message or None
    return None if value == -1 else value
