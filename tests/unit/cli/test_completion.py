"""Goal: a shell completes commands, options, choices and file names. Method: bash runs its script; that of zsh is read as text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.cli.commands import COMMANDS
from tests.support.wait import DEADLINE_S


@pytest.fixture
def bash_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    file = tmp_path / "brokerd.bash"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["brokerd", ""], {*COMMANDS}),
        (["brokerd", "top"], {name for name in COMMANDS if name.startswith("top")}),
        (["brokerd", "topics", ""], {"create", "list", "describe", "alter", "trim", "delete"}),
        (["brokerd", "topics", "trim", "--b"], {"--before", "--bootstrap-server"}),
        (["brokerd", "produce", "t", "--acks", ""], {"all", "1", "0"}),
        (["brokerd", "start", "--config", "a-f"], {"a-file.toml"}),
        (["brokerd", "completion", ""], {"bash", "zsh"}),
    ],
)
def test_bash_completes(bash_script: Path, tmp_path: Path, line: list[str], expected: set[str]) -> None:
    (tmp_path / "a-file.toml").touch()
    words = " ".join(f"'{word}'" for word in line)
    asked = f'COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}'
    call = f"{asked}; _shtab_brokerd '' '{line[-1]}' '{line[-2]}'"
    done = subprocess.run(
        ["bash", "-c", f"source {bash_script}; {call}; printf '%s\\n' \"${{COMPREPLY[@]}}\""],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert (expected <= {word.strip() for word in done.stdout.splitlines()}, done.stderr) == (True, ""), done.stdout


def test_zsh_has_all_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef brokerd\n")
    for name in COMMANDS:
        assert re.search(rf"^    \"?{name}:", script, re.MULTILINE), "quotes differ by the library's version"
    assert "--keep-partitions" in script
    assert re.search(r"trim:'?Delete the oldest", script)


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr() == ("", "brokerd: shell completion needs shtab: pip install shtab\n")


def test_the_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zhs"]) == 2
    assert "unknown SHELL 'zhs': did you mean 'zsh'?" in capsys.readouterr().err
