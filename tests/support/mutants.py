"""Lists of bugs that random schedules must find one by one: how each is planted (planting.py), and where the search for it begins.
What the schedules do not find, they do not prove.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.planting import Put, plant

Plant = Callable[[Put], None]
Method = Callable[..., Any]
Run = Callable[[int], object]  # the schedule of a seed; raises what it finds
# A planted bug shows as a broken promise, or a failed assertion of the code. These errors mean that the bug does not fit the code.
UNFIT = (TypeError, AttributeError, NameError)


class Mutants(dict[str, tuple[Plant, int]]):
    """Bugs by their names. `first` is the seed at which the search for a bug begins that few schedules find: it saves time and pins
    nothing."""

    def add(self, plant_it: Plant) -> Plant:
        """Adds the function that plants a bug, by its name."""
        return self.rare(0)(plant_it)

    def rare(self, first: int) -> Callable[[Plant], Plant]:
        """Adds a function that plants a rare bug."""

        def add(plant_it: Plant) -> Plant:
            self[plant_it.__name__] = (plant_it, first)
            return plant_it

        return add

    def instead(self, name: str, owner: type, method: str, bug: Method, *, first: int = 0) -> None:
        """Adds a bug that stands in for a method."""
        self[name] = (lambda put: plant(put, owner, method, bug), first)

    def method(self, owner: type, method: str, *, first: int = 0) -> Callable[[Method], Method]:
        """Adds a bug by its function's name: it stands in for a method, which it is given before the method's own arguments."""

        def add(bug: Method) -> Method:
            def plant_it(put: Put) -> None:
                plant(put, owner, method, bug, wraps=True)

            self[bug.__name__] = (plant_it, first)
            return bug

        return add

    def assert_found(self, name: str, put: Put, run: Run, count: int) -> None:
        """Plants a bug. Raises AssertionError if none of `count` schedules finds it. Raises what says that the bug was written for
        other code."""
        plant_it, first = self[name]
        plant_it(put)
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
