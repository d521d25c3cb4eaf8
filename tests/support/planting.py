"""Bugs that tests plant to see whether they are found: in place of a method, never of a line of source. What the bug was written
for must still be there, or nothing is planted and the test says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class PlantError(TypeError):
    """The method that a bug stands in for is gone, or takes other arguments: the bug needs to be written again."""


# Sets an attribute: `setattr`, or pytest's monkeypatch.setattr, which takes it back.
Put = Callable[[Any, str, Any], None]


def plant(put: Put, owner: type, name: str, bug: Callable[..., Any], *, wraps: bool = False) -> None:
    """Puts `bug` in place of a method; with `wraps`, it is given the method before the method's own arguments. Raises PlantError if
    there is no such method, or if it takes other arguments. A bug that takes any arguments fits all methods."""
    method = vars(owner).get(name)
    if not callable(method):
        raise PlantError(f"{owner.__name__} has no method {name} any more: find what does its work now, and plant the bug there")
    parameters = inspect.signature(bug).parameters.values()
    takes, given = len(inspect.signature(method).parameters), len(parameters) - wraps
    if takes != given and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        raise PlantError(f"{owner.__name__}.{name} takes {takes} arguments and the bug {given}: write it for the method as it is")

    def planted(*args: Any, **keywords: Any) -> Any:
        return bug(method, *args, **keywords)

    put(owner, name, planted if wraps else bug)
