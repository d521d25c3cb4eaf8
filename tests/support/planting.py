"""Bugs that tests plant to see whether they are found: in place of a method, never of a line of source. What the bug was written
for must still be there, or nothing is planted and the test says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class PlantError(TypeError):
    """The method that a bug stands in for is gone, or takes other arguments: the bug needs to be written again."""


# Sets an attribute of a class: `setattr`, or pytest's monkeypatch.setattr, which takes it back.
Put = Callable[[type, str, Any], None]


def plant(put: Put, owner: type, name: str, bug: Callable[..., Any]) -> None:
    """Puts `bug` in place of a method. Raises PlantError if there is none, or if it takes other arguments."""
    method = vars(owner).get(name)
    if not callable(method):
        raise PlantError(f"{owner.__name__} has no method {name} any more: find what does its work now, and plant the bug there")
    takes, given = (len(inspect.signature(function).parameters) for function in (method, bug))
    if takes != given:
        raise PlantError(f"{owner.__name__}.{name} takes {takes} arguments and the bug {given}: write it for the method as it is")
    put(owner, name, bug)
