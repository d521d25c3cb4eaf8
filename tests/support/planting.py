"""Plants bugs, to test that tests find them. A bug replaces a whole method, never a line of source. If the method is gone or has
changed its arguments, nothing is planted and the test fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class PlantError(TypeError):
    """The method to replace is gone or takes other arguments: rewrite the bug."""


# Sets an attribute: `setattr`, or pytest's monkeypatch.setattr, which restores it.
Put = Callable[[Any, str, Any], None]


def plant(put: Put, owner: type, name: str, bug: Callable[..., Any], *, wraps: bool = False) -> None:
    """Replaces a method by `bug`. With `wraps`, `bug` receives the original method before the method's own arguments. Raises
    PlantError if there is no such method, or if it takes other arguments; a bug with *args fits all methods."""
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
