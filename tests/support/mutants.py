"""Lists of bugs that random schedules must find one by one: how each is planted (planting.py), and the first seed that finds it.
What the schedules do not find, they do not prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

P = TypeVar("P")
Run = Callable[[int], object]  # the schedule of a seed; raises what it finds
# A planted bug shows as a broken promise, or a failed assertion of the code. These errors mean that the bug does not fit the code.
UNFIT = (TypeError, AttributeError, NameError)


class Mutants(dict[str, tuple[Callable[[P], None], int]], Generic[P]):
    """Bugs by their names; `P` is what they are planted with."""

    def found_by(self, seed: int) -> Callable[[Callable[[P], None]], Callable[[P], None]]:
        """Adds the function that plants a bug, by its name, and the first seed that finds it."""

        def add(plant_it: Callable[[P], None]) -> Callable[[P], None]:
            self[plant_it.__name__] = (plant_it, seed)
            return plant_it

        return add

    def plant(self, name: str, patch: P) -> int:
        """Plants a bug; the seed that finds it."""
        plant_it, seed = self[name]
        plant_it(patch)
        return seed

    def assert_found(self, name: str, patch: P, run: Run, seeds: Iterable[int]) -> None:
        """Plants a bug. Raises AssertionError if its seed does not find it: schedules change, and the error names another of
        `seeds` that does. Raises what says that the bug was written for other code."""
        seed = self.plant(name, patch)
        if finds(run, seed):
            return
        other = next((other for other in seeds if finds(run, other)), None)
        assert other is not None, f"no schedule finds {name}"
        raise AssertionError(f"seed {seed} does not find {name} any more, {other} does: write it down")

    def assert_found_from(self, name: str, patch: P, run: Run, count: int) -> None:
        """Plants a bug. Raises AssertionError if none of `count` seeds finds it, its own and those that follow it."""
        seed = self.plant(name, patch)
        assert any(finds(run, other) for other in range(seed, seed + count)), (
            f"none of {count} schedules from {seed} on finds {name}"
        )


def finds(run: Run, seed: int) -> bool:
    """True if the schedule of this seed fails with what is planted now."""
    try:
        run(seed)
    except UNFIT:
        raise
    except Exception:
        return True
    return False
