"""Steps of administrative work, run at once."""

from __future__ import annotations

from typing import TypeVar

from brokerd.steps import Steps, drive

T = TypeVar("T")


def run_here(steps: Steps[T]) -> T:
    """Runs all steps and their jobs in this thread. Raises their errors."""
    return drive(steps, lambda job: job())
