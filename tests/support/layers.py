"""The table of layers: which part of the project may import which, and how to find imports in a syntax tree.

The parts `sink` and `datasource` are found through relative symbolic links in brokerd/, so editors and type checkers follow every
import before anything is installed. Packages that re-export would give each module two names, and type checkers do not follow a
computed `__path__`. Wheels are built from the real folders."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_BASE = {"ids", "errors", "clock", "config", "record"}
# Part -> parts that it may import besides itself. A part is a module or package directly below brokerd.
LAYERS: dict[str, set[str]] = {
    "allocator": set(),
    "arguments": {"ids", "config"},
    "ids": set(),
    "errors": set(),
    "clock": set(),
    "process": set(),
    "sharing": {"clock", "errors"},
    "waiter": set(),
    "event_loop": set(),
    "steps": set(),
    "backoff": set(),
    "config": {"errors", "ids"},
    "record": {"ids", "errors", "wire.v1"},
    "wire": {"ids", "errors", "config", "wire.v1"},
    "storage": _BASE,
    "partition": _BASE | {"purgatory", "sharing", "steps", "storage"},
    "datadir": _BASE | {"sharing", "steps", "storage", "partition"},
    "offline": _BASE | {"sharing", "storage", "partition", "datadir", "coordinator", "wire.v1"},
    "purgatory": _BASE,
    "coordinator": _BASE | {"sharing", "wire.v1"},
    "cluster": _BASE,
    "replication": _BASE | {"cluster", "partition"},
    "coordination": {"clock", "errors", "event_loop", "wire"},
    "internode": {"wire.v1"},
    "server": _BASE
    | {"allocator", "cluster", "coordination", "coordinator", "datadir", "event_loop", "internode", "partition", "purgatory"}
    | {"replication", "sharing", "steps", "storage", "wire", "wire.v1"},
    "producer": _BASE | {"arguments", "backoff", "event_loop", "process", "steps", "waiter"},
    "client": _BASE | {"arguments", "backoff", "event_loop", "process", "steps", "waiter", "wire", "wire.v1", "producer"},
    "consumer": _BASE | {"arguments", "client", "process", "steps"},
    "aio": _BASE | {"arguments", "client", "consumer", "producer", "steps", "waiter"},
    "sink": _BASE | {"allocator", "client", "process", "producer"},
    "datasource": _BASE | {"arguments", "allocator", "client", "producer"},
    "cli": _BASE
    | {"arguments", "allocator", "client", "producer", "offline", "datadir", "partition", "sharing", "storage", "wire.v1"},
    "testing": _BASE | {"allocator", "client", "coordination", "process", "producer", "server", "storage", "wire"},
    "pyspark_brokerd": {"datasource"},
    "spark": {"sink"},
    "": {"producer", "consumer", "errors", "ids", "cli"},  # brokerd/__init__.py and __main__.py: the public API, imported lazily
}
# Files that wire parts together.
_EXTRA: dict[str, set[str]] = {
    "datasource/source.py": {"sink"},
    "brokerd/cli/start.py": {"server"},
    "brokerd/cli/install.py": {"server"},  # only security/tokens.py
    "brokerd/producer/producer.py": {"client"},  # the default transport
}

_VERSION = ("brokerd", "brokerd.__version__")  # any part may import it


def importer_of(file: str) -> str:
    """The part that a file belongs to."""
    parts = file.removesuffix(".py").split("/")
    if parts[0] in ("sink", "datasource", "pyspark_brokerd"):
        return parts[0]
    return "" if parts[1] in ("__init__", "__main__") else parts[1]


def allowed_imports(file: str) -> set[str]:
    """Parts that a file may import."""
    part = importer_of(file)
    return LAYERS[part] | {part} | _EXTRA.get(file, set())


def project_imports(file: str, tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, part and full name of every import of the project's own modules, anywhere in the file."""
    package = _package(file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name not in _VERSION and name.split(".")[0] in ("brokerd", "pyspark_brokerd"):
                yield node.lineno, _part(name), name


def _package(file: str) -> list[str]:
    parts = file.split("/")[:-1]
    return parts if parts[0] == "brokerd" else ["brokerd", *parts]


def _part(module: str) -> str:
    names = module.split(".")
    if names[0] == "pyspark_brokerd":
        return names[0]
    if names[1:3] == ["wire", "v1"]:
        return "wire.v1"
    return names[1] if len(names) > 1 and names[1] in LAYERS else ""
