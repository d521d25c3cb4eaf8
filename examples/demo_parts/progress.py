"""A progress bar: redrawn in place on a terminal, a line at each quarter elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_WIDTH = 32
_FULL, _EMPTY = "█", "░"


class ProgressBar:
    """Rows done of a known number. `update` as often as you like, `finish` once."""

    def __init__(self, label: str, total_rows: int, out: TextIO = sys.stdout) -> None:
        self._label = label
        self._total_rows = max(1, total_rows)
        self._out = out
        self._is_terminal = out.isatty()
        self._quarters = 0

    def update(self, rows: int, seconds: float) -> None:
        """Shows `rows` done after `seconds`."""
        rate = f"{rows / seconds:>11,.0f} rows/s" if seconds > 0 and rows else ""
        text = f"{rows:>11,} of {self._total_rows:,} rows {rate}"
        share = min(1.0, rows / self._total_rows)
        if self._is_terminal:
            full = round(share * _WIDTH)
            self._out.write(f"\r\x1b[2K  {self._label}  {_FULL * full}{_EMPTY * (_WIDTH - full)} {text}")
        elif int(share * 4) > self._quarters:
            self._quarters = int(share * 4)
            self._out.write(f"  {self._label}  {share:>4.0%}  {text}\n")
        self._out.flush()

    def finish(self) -> None:
        """Ends the line."""
        if self._is_terminal:
            self._out.write("\n")
            self._out.flush()
