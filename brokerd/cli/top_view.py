"""Draws a screen of `brokerd top` with the library rich; tables fit a terminal of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brokerd.cli.output import NONE, duration_text, size_text, time_text
from brokerd.cli.top_model import Screen

_LINES_OF_A_TABLE = 3  # title, headings, and an empty line after it
_GAP = 2
_TEXT_MAX_WIDTH = 24  # of a text column other than the first


class TableColumn(NamedTuple):
    """A column of a table and its minimum width; columns of the highest `rank` are dropped first if there is no room."""

    heading: str
    cell: Callable[[Any], str]
    min_width: int
    rank: int
    is_text: bool = False


_TOPICS: Sequence[TableColumn] = (
    TableColumn(
        "TOPIC", lambda row: row["topic"] + (f" ({row['unhealthy']} not healthy)" if row["unhealthy"] else ""), 12, 0, is_text=True
    ),
    TableColumn("PARTITIONS", lambda row: str(row["partitions"]), 10, 4),
    TableColumn("OFFSETS", lambda row: str(row["offsets"]), 10, 2),
    TableColumn("OFFSETS/S", lambda row: rate_text(row["offsets_per_s"]), 9, 1),
    TableColumn("BYTES/S", lambda row: NONE if row["bytes_per_s"] is None else size_text(round(row["bytes_per_s"])), 10, 6),
    TableColumn("SIZE", lambda row: size_text(row["size_bytes"]), 10, 3),
    TableColumn("HELD BACK", lambda row: str(row["held_back"]), 9, 5),
)
_GROUPS: Sequence[TableColumn] = (
    TableColumn("GROUP", lambda row: row["group_id"], 12, 0, is_text=True),
    TableColumn("PARTITIONS", lambda row: str(row["partitions"]), 10, 5),
    TableColumn("LAG", lambda row: _known(row["lag"], str), 10, 1),
    TableColumn("TO READ", lambda row: _known(row["lag_bytes"], size_text), 10, 4),
    TableColumn("BEHIND", lambda row: _known(row["lag_ms"], duration_text), 10, 2),
    TableColumn("OFFSETS/S", lambda row: rate_text(row["offsets_per_s"]), 9, 3),
)
_TRANSACTIONS: Sequence[TableColumn] = (
    TableColumn("TRANSACTION", lambda row: row["transactional_id"], 12, 0, is_text=True),
    TableColumn("STATE", lambda row: row["state"], 8, 2, is_text=True),
    TableColumn("MEMBERS", lambda row: str(row["open_members"]), 7, 3),
    TableColumn("AGE", lambda row: _known(row["age_ms"], duration_text), 10, 1),
    TableColumn("OWNER", lambda row: row["owner"], 8, 4, is_text=True),
)


def drawn(screen: Screen, address: str, *, width: int, height: int) -> RenderableType:
    """The screen for a terminal of `width` columns and `height` lines."""
    lines: list[RenderableType] = [_line(text, style) for text, style in _head(screen, address)]
    tables = screen.tables
    if not tables:
        return Group(*lines)
    topics, groups, transactions = tables["topics"], tables["groups"], tables["transactions"]
    parts = [("topics", _TOPICS, topics, len(topics)), ("groups", _GROUPS, groups, tables["group_count"])]
    if transactions:
        parts.append(("open transactions", _TRANSACTIONS, transactions, len(transactions)))
    room = height - len(lines) - _LINES_OF_A_TABLE * len(parts)
    for (title, columns, rows, count), shown in zip(parts, shares([len(part[2]) for part in parts], room), strict=True):
        cut = f", {shown} shown" if shown < count else ""
        lines.append(_line(f"{count} {title}{cut}", "bold"))
        if shown:
            lines.append(_table(fitting(columns, width), rows[:shown], width))
        lines.append(_line("", ""))
    return Group(*lines)


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Shares `room` lines among tables: equal parts, where a table's unused lines go to the others."""
    given = [0] * len(wanted)
    left = max(0, room)
    order = sorted(range(len(wanted)), key=lambda one: wanted[one])
    for position, one in enumerate(order):
        given[one] = min(wanted[one], left // (len(order) - position))
        left -= given[one]
    return given


def fitting(columns: Sequence[TableColumn], width: int) -> list[TableColumn]:
    """The columns that fit into `width`; always includes the first."""
    kept = list(columns)
    while len(kept) > 1 and sum(one.min_width + _GAP for one in kept) > width:
        kept.remove(max(kept, key=lambda one: one.rank))
    return kept


def rate_text(per_s: float | None) -> str:
    """A rate for people, with one decimal below ten; "-" if unknown."""
    if per_s is None:
        return NONE
    return f"{per_s:.1f}" if 0 < per_s < 10 else f"{per_s:.0f}"


def _head(screen: Screen, address: str) -> list[tuple[str, str]]:
    what = f"brokerd {screen.tables['version']} at {address}" if screen.tables else f"brokerd at {address}"
    lines = [(f"{what}, {time_text(screen.now_wall_ms)} (Ctrl-C ends)", "")]
    if screen.unreachable_since_ms is not None:
        since = time_text(screen.unreachable_since_ms)
        lines.append((f"unreachable since {since}: {screen.problem}", "bold red"))
    return [*lines, ("", "")]


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(columns: Sequence[TableColumn], rows: Sequence[Any], width: int) -> Table:
    """A table whose first column gets the remaining width: text is cut, numbers are not."""
    cells = [[Text(one.cell(row)) for row in rows] for one in columns]
    widths = [max(map(cell_len, (one.heading, *map(str, texts)))) for one, texts in zip(columns, cells, strict=True)]
    widths = [min(found, _TEXT_MAX_WIDTH) if one.is_text else found for one, found in zip(columns, widths, strict=True)]
    first = max(1, width - sum(one + _GAP for one in widths[1:]) - _GAP)
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
    for number, one in enumerate(columns):
        alignment: Literal["left", "right"] = "left" if one.is_text else "right"
        most = first if number == 0 else widths[number]
        table.add_column(one.heading, justify=alignment, no_wrap=True, overflow="ellipsis", max_width=most)
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _known(value: int | None, text: Callable[[int], str]) -> str:
    return NONE if value is None else text(value)
