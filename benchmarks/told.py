"""Figures of the groups that measure more than works side by side: quantiles, and tables of text. Measures nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Row = Mapping[str, object]


def quantile_ms(seconds: Sequence[float], share: float) -> float:
    """The milliseconds that `share` of all stayed below; not a number if there are none."""
    if not seconds:
        return math.nan
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1_000


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Count, median and 99th percentile, for a row."""
    return {"count": len(seconds), "p50_ms": round(quantile_ms(seconds, 0.5), 3), "p99_ms": round(quantile_ms(seconds, 0.99), 3)}


def text_table(rows: Sequence[Row]) -> str:
    """A line a row under the names of all fields; the first field to the left, what a row does not have as "-"."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in [names, *cells]
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
