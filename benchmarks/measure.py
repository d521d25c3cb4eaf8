"""Measures works side by side: one unmeasured round, then rounds in which every work runs once, so that a slow minute of the
machine affects all of them equally. Figures are medians."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Row = Mapping[str, object]
OURS = "brokerd"
CEILING = "ceiling"
_PROBE_BYTES = 1_073_741_824


@dataclass(frozen=True)
class Work:
    """A work to measure: `run(round)` returns the seconds of its measured part (a list: one per operation)."""

    name: str
    peer: str  # the system that runs it: brokerd, ceiling, kafka
    run: Callable[[int], float | list[float]]
    rows: int
    size_bytes: int  # of keys and values
    goal: float | None = None  # target, as a share of the ceiling


@dataclass
class Figures:
    """The measurements of one work, per round."""

    work: Work
    seconds: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # seconds per operation, for works that measure single operations

    @property
    def median_s(self) -> float:
        """Median time of a round."""
        return statistics.median(self.seconds)

    @property
    def rows_per_s(self) -> float:
        """Rows per second, by the median."""
        return self.work.rows / self.median_s

    def latency_ms(self, share: float) -> float:
        """The latency that `share` of all operations stayed below."""
        return quantile_ms(self.latencies, share)

    def as_json(self) -> dict[str, object]:
        """All measurements, for the results file."""
        told: dict[str, object] = {
            "work": self.work.name,
            "peer": self.work.peer,
            "rows": self.work.rows,
            "bytes": self.work.size_bytes,
            "seconds": [round(s, 4) for s in self.seconds],
            "median_s": round(self.median_s, 4),
            "goal": self.work.goal,
        }
        if self.latencies:
            return {**told, "p50_ms": round(self.latency_ms(0.5), 3), "p99_ms": round(self.latency_ms(0.99), 3)}
        return {**told, "rows_per_s": round(self.rows_per_s), "mb_per_s": round(self.work.size_bytes / 1e6 / self.median_s, 1)}


def measure(works: Sequence[Work], repeats: int, say: Callable[[str], None]) -> list[Figures]:
    """Runs all works `repeats` times, after an uncounted round."""
    figures = [Figures(work) for work in works]
    for number in range(repeats + 1):
        for figure in figures:
            taken = figure.work.run(number)
            seconds = sum(taken) if isinstance(taken, list) else taken
            say(f"  round {number}: {figure.work.name} {figure.work.peer} {seconds:.2f} s")
            if number == 0:
                continue
            figure.seconds.append(seconds)
            if isinstance(taken, list):
                figure.latencies.extend(taken)
    return figures


def table(all_figures: Iterable[Figures]) -> str:
    """One line per work: each peer's figure, and brokerd's share of the ceiling beside the goal."""
    by_work: dict[str, dict[str, Figures]] = {}
    for figures in all_figures:
        by_work.setdefault(figures.work.name, {})[figures.work.peer] = figures
    peers = sorted({peer for one in by_work.values() for peer in one}, key=lambda peer: (peer != OURS, peer != CEILING, peer))
    lines = [f"{'work':<24}" + "".join(f"{peer:>28}" for peer in peers) + f"{'of ceiling':>12}{'goal':>8}"]
    for name, one in by_work.items():
        cells = [_cell(one[peer]) if peer in one else "-" for peer in peers]
        ours, ceiling = one.get(OURS), one.get(CEILING)
        share = _share(ours, ceiling) if ours and ceiling else None
        goal = ours.work.goal if ours else None
        lines.append(
            f"{name:<24}"
            + "".join(f"{cell:>28}" for cell in cells)
            + f"{'-' if share is None else format(share, '.0%'):>12}{'-' if goal is None else format(goal, '.0%'):>8}"
        )
    return "\n".join(lines)


def _cell(figures: Figures) -> str:
    if figures.latencies:
        return f"p50 {figures.latency_ms(0.5):.2f} p99 {figures.latency_ms(0.99):.2f} ms"
    return f"{figures.rows_per_s:,.0f} rows/s {figures.work.size_bytes / 1e6 / figures.median_s:,.0f} MB/s"


def _share(ours: Figures, ceiling: Figures) -> float:
    if ours.latencies:
        return ceiling.latency_ms(0.5) / ours.latency_ms(0.5)
    return (ours.work.size_bytes / ours.median_s) / (ceiling.work.size_bytes / ceiling.median_s)


def page_cache_ms_per_mb(directory: str | None) -> float:
    """The cost of a write before it reaches a disk: milliseconds per MB written into new pages. About 0.3 if the kernel has free
    pages; ten times that on a virtual machine that must first reclaim them from its host, which slows a writing broker as much.
    """
    piece = bytes(_PROBE_BYTES // 256)
    with tempfile.TemporaryFile(dir=directory) as file:
        start_s = time.perf_counter()
        for _ in range(256):
            os.write(file.fileno(), piece)
        return (time.perf_counter() - start_s) * 1e3 / (_PROBE_BYTES / 1e6)


def write_results(
    path: Path, settings: dict[str, object], figures: Iterable[Figures], extra: dict[str, object], *, page_cache: float
) -> None:
    """Writes the results file: settings, machine, figures. `page_cache` is page_cache_ms_per_mb at the beginning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        # Shows other work on the machine, which makes figures unreliable.
        "load_average": os.getloadavg(),
        "page_cache_ms_per_mb": page_cache,
    }
    told = {"settings": settings, "machine": machine, "figures": [one.as_json() for one in figures], **extra}
    path.write_text(json.dumps(told, indent=1) + "\n")


def quantile_ms(seconds: Sequence[float], share: float) -> float:
    """The quantile `share` in milliseconds; NaN if there are no values."""
    if not seconds:
        return math.nan
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1_000


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Count, median and 99th percentile, as fields of a row."""
    return {"count": len(seconds), "p50_ms": round(quantile_ms(seconds, 0.5), 3), "p99_ms": round(quantile_ms(seconds, 0.99), 3)}


def text_table(rows: Sequence[Row]) -> str:
    """A table with one line per row. The first column is aligned to the left; fields that a row lacks are "-"."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_text_of(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in [names, *cells]
    )


def _text_of(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
