"""Lists of bugs that random schedules must find one by one: how each is planted (planting.py), and where the search for it begins.
What the schedules do not find, they do not prove.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")
Plant = Callable[[P], None]
Run = Callable[[int], object]  # the schedule of a seed; raises what it finds
# A planted bug shows as a broken promise, or a failed assertion of the code. These errors mean that the bug does not fit the code.
UNFIT = (TypeError, AttributeError, NameError)


class Mutants(dict[str, tuple[Callable[[P], None], int]], Generic[P]):
    """Bugs by their names; `P` is what they are planted with."""

    def add(self, plant_it: Plant[P]) -> Plant[P]:
        """Adds the function that plants a bug, by its name."""
        return self.rare(0)(plant_it)

    def rare(self, first: int) -> Callable[[Plant[P]], Plant[P]]:
        """Adds a bug that few schedules find: the search begins at the seed `first`, which saves time and pins nothing."""

        def add(plant_it: Plant[P]) -> Plant[P]:
            self[plant_it.__name__] = (plant_it, first)
            return plant_it

        return add

    def assert_found(self, name: str, patch: P, run: Run, count: int) -> None:
        """Plants a bug. Raises AssertionError if none of `count` schedules finds it. Raises what says that the bug was written for
        other code."""
        plant_it, first = self[name]
        plant_it(patch)
        assert any(finds(run, seed) for seed in range(first, first + count)), (
            f"none of {count} schedules from {first} on finds {name}"
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
