"""Lists of planted bugs (planting.py), each of which the random schedules must find. The schedules prove nothing about bugs that
they miss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.planting import Put, plant

Plant = Callable[[Put], None]
Method = Callable[..., Any]
Run = Callable[[int], object]  # runs a seed's schedule; raises what it finds
# A planted bug shows as a broken promise or a failed assertion of the code. These errors mean that the bug does not fit the code
# any more.
UNFIT = (TypeError, AttributeError, NameError)


class Mutants(dict[str, tuple[Plant, int]]):
    """Bugs by name, each with the seed `first` where the search for it begins. A rare bug has a high one to save time; the seed has
    no other meaning."""

    def add(self, plant_it: Plant) -> Plant:
        """Decorator: adds a function that plants a bug, under the function's name."""
        return self.rare(0)(plant_it)

    def rare(self, first: int) -> Callable[[Plant], Plant]:
        """Decorator: like `add`, for a bug that few schedules find."""

        def add(plant_it: Plant) -> Plant:
            self[plant_it.__name__] = (plant_it, first)
            return plant_it

        return add

    def instead(self, name: str, owner: type, method: str, bug: Method, *, first: int = 0) -> None:
        """Adds a function that replaces a method."""
        self[name] = (lambda put: plant(put, owner, method, bug), first)

    def method(self, owner: type, method: str, *, first: int = 0) -> Callable[[Method], Method]:
        """Decorator: adds a function that replaces a method, under the function's name. It receives the original method before the
        method's own arguments."""

        def add(bug: Method) -> Method:
            def plant_it(put: Put) -> None:
                plant(put, owner, method, bug, wraps=True)

            self[bug.__name__] = (plant_it, first)
            return bug

        return add

    def assert_found(self, name: str, put: Put, run: Run, count: int) -> None:
        """Plants a bug. Raises AssertionError if none of `count` schedules finds it, and an UNFIT error if it does not fit the
        code."""
        plant_it, first = self[name]
        plant_it(put)
        assert any(finds(run, seed) for seed in range(first, first + count)), (
            f"none of {count} schedules from {first} on finds {name}"
        )


def finds(run: Run, seed: int) -> bool:
    """True if the seed's schedule fails with the planted bug."""
    try:
        run(seed)
    except UNFIT:
        raise
    except Exception:
        return True
    return False
