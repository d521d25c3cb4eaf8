"""Scenarios as text: groups of commands, each followed by its results. Readable without Python, rewritten by pytest's `--rewrite`.

    # A line of prose.
    append t-0 2
    wait 5
    ----
    send 1 to node 0: t-0 0-1, sequence 0, epoch 0

A blank line ends a group's results; "nothing" means that there are none. `wait 5 x3` repeats a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

RULE = "----"
NOTHING = "nothing"
_REPEATED = re.compile(r"^(?P<command>.*\S)\s+x(?P<times>\d+)$")

Do = Callable[[str], Iterable[str]]  # executes a command; returns its result lines


def play(text: str, do: Do) -> str:
    """The scenario with its current results; equal to `text` if nothing has changed."""
    lines = iter(text.splitlines())
    played: list[str] = []
    led_to: list[str] = []
    for line in lines:
        played.append(line)
        if line == RULE:
            played += led_to or [NOTHING]
            led_to = []
            if any(_expected(lines)):
                played.append("")
        elif line and not line.startswith("#"):
            led_to += [result for command in _commands(line) for result in do(command)]
    assert not led_to, f"behind the last '{RULE}' come commands, and nobody looks at what they lead to: {led_to}"
    return "\n".join(played) + "\n"


def _expected(lines: Iterator[str]) -> Iterator[bool]:
    """Skips a group's expected results; True for the blank line after them."""
    for line in lines:
        if not line:
            yield True
            return
        yield False


def _commands(line: str) -> list[str]:
    repeated = _REPEATED.match(line)
    return [repeated["command"]] * int(repeated["times"]) if repeated else [line]


def check(path: Path, do: Do, *, is_rewriting: bool) -> None:
    """Fails unless the file has the current results; with `is_rewriting`, writes them instead."""
    text = path.read_text()
    now = play(text, do)
    if is_rewriting:
        path.write_text(now)
    assert now == text or is_rewriting, f"{path.name} tells another story: see what differs, then --rewrite it if that is right"
