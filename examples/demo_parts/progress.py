"""A progress bar: redrawn in place on a terminal, as wide as the terminal; otherwise a line at each quarter."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_BAR_MAX, _BAR_MIN = 32, 4
_BLOCKS, _PLAIN = ("█", "░"), ("#", ".")
_COLUMNS = 80  # if the terminal does not report its width


class ProgressBar:
    """Progress towards a known number of rows. Call `update` as often as you like, `finish` once."""

    def __init__(self, label: str, total_rows: int, out: TextIO = sys.stdout) -> None:
        self._label = label
        self._total_rows = max(1, total_rows)
        self._out = out
        self._is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._quarters = 0

    def update(self, rows: int, seconds: float) -> None:
        """Shows `rows` done after `seconds`."""
        rate = f" {rows / seconds:>11,.0f} rows/s" if seconds > 0 and rows else ""
        share = min(1.0, rows / self._total_rows)
        if self._is_terminal:
            text = drawn(self._label, rows, self._total_rows, rate, columns=_columns(self._out), marks=_marks(self._out))
            self._out.write(f"\r\x1b[2K{text}")
        elif int(share * 4) > self._quarters:
            self._quarters = int(share * 4)
            self._out.write(f"  {self._label}  {share:>4.0%}  {rows:>11,} of {self._total_rows:,} rows{rate}\n")
        self._out.flush()

    def finish(self) -> None:
        """Ends the line."""
        if self._is_terminal:
            self._out.write("\n")
            self._out.flush()


def drawn(label: str, rows: int, total_rows: int, rate: str, *, columns: int, marks: tuple[str, str] = _BLOCKS) -> str:
    """A line that leaves the last of `columns` free, where a terminal would wrap. If space is short, the bar shrinks first; then
    the rate is dropped, then the end of the text."""
    share = min(1.0, rows / total_rows)
    for text in (f" {rows:>11,} of {total_rows:,} rows{rate}", f" {rows:,} of {total_rows:,} rows"):
        width = min(_BAR_MAX, columns - 1 - len(f"  {label}  ") - len(text))
        if width >= _BAR_MIN:
            full = round(share * width)
            return f"  {label}  {marks[0] * full}{marks[1] * (width - full)}{text}"
    return f"  {label} {share:>4.0%} {rows:,} rows"[: max(0, columns - 1)]


def _columns(out: TextIO) -> int:
    """The terminal's width; queried each time because windows are resized."""
    try:
        return os.get_terminal_size(out.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def _marks(out: TextIO) -> tuple[str, str]:
    try:
        "".join(_BLOCKS).encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return _PLAIN
    return _BLOCKS
