"""Goal: scenarios of text fail when what happens is not what they say, and are rewritten only on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scenario_text import check, play

TEXT = """\
# Prose.

say a
say b x2
----
a
b
b

# More of it.
hush
----
nothing

say c
----
c
"""


def do(command: str) -> list[str]:
    return command.split()[1:]


def test_what_is_right_stays_as_it_is() -> None:
    assert play(TEXT, do) == TEXT


@pytest.mark.parametrize(("right", "wrong"), [("a\nb\nb\n", "a\nb\n"), ("nothing\n", "something\n"), ("----\nc\n", "----\n")])
def test_what_is_wrong_fails_and_is_put_right_on_demand(right: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text(TEXT.replace(right, wrong))
    with pytest.raises(AssertionError, match="another story"):
        check(path, do, is_rewriting=False)
    assert path.read_text() != TEXT
    check(path, do, is_rewriting=True)
    assert path.read_text() == TEXT


def test_commands_that_nobody_looks_at_are_refused() -> None:
    with pytest.raises(AssertionError, match="nobody looks"):
        play(TEXT + "\nsay d\n", do)
