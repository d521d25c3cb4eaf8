"""Faults that meet a request: which one, before or after it is done, and what then. The broker's process counts requests with a
FaultPlan; the test holds a Fault. Decides, and does nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

KILL = "kill"
LOSE = "lose"
BEFORE = "before"
AFTER = "after"


class Fault:
    """A fault that was ordered. `has_happened` says whether its request has come."""

    def __init__(self, number: int, text: str, left_by_number: Callable[[], dict[int, int]]) -> None:
        self.number = number
        self._text = text
        self._left_by_number = left_by_number

    @property
    def has_happened(self) -> bool:
        """True once the fault has met its request."""
        return not self._left_by_number().get(self.number, 0)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Fault: {self._text}>"


@dataclass(slots=True)
class Armed:
    """A fault as the broker's process has it: `kind` at the `left`-th request of this name from now on; 0 = it has happened."""

    number: int
    kind: str
    request: str
    moment: str
    left: int

    def text(self) -> str:
        """In words, for errors."""
        what = "the broker is killed" if self.kind == KILL else "the response is lost"
        which = f"the next {self.request}" if self.left == 1 else f"{self.request} number {self.left} from now"
        return f"{what} {self.moment} {which}"


class FaultPlan:
    """The faults that wait for their requests."""

    def __init__(self, armed: Iterable[Armed] = ()) -> None:
        self._armed = [one for one in armed if one.left]

    def arm(self, fault: Armed) -> None:
        """Adds a fault."""
        self._armed.append(fault)

    def watches(self, request: str, moment: str) -> bool:
        """True if a fault counts these requests."""
        return any(one.request == request and one.moment == moment for one in self._armed)

    def meet(self, request: str, moment: str) -> list[Armed]:
        """Counts a request; the faults that counted it. Those with `left` 0 happen now, and are forgotten."""
        met = [one for one in self._armed if one.request == request and one.moment == moment]
        for one in met:
            one.left -= 1
        self._armed = [one for one in self._armed if one.left]
        return met


def check_request(name: str, known: Iterable[str]) -> str:
    """`name`, if it is a request of the broker. Raises ConfigError with the nearest one."""
    known = sorted(known)
    if name in known:
        return name
    raise ConfigError(f"unknown request '{name}': {did_you_mean(name, known)}")
