"""Output of `brokerd config`: the settings, and a unit that runs the program that printed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.cli.config import systemd_unit
from brokerd.config.sample import sample_toml

UNIT = Path(__file__).parents[3] / "conf" / "brokerd.service"


def test_the_sample_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--sample"]) == 0
    assert capsys.readouterr().out == sample_toml()


def test_the_unit_runs_the_command_that_printed_it(tmp_path: Path) -> None:
    command = tmp_path / "brokerd"
    command.touch()
    assert f"ExecStart={command} start --config /etc/brokerd/brokerd.toml" in systemd_unit(command)


@pytest.mark.parametrize("program", ["pytest", "gone/brokerd"])
def test_without_an_installed_command_the_unit_is_as_shipped(tmp_path: Path, program: str) -> None:
    assert systemd_unit(tmp_path / program) == UNIT.read_text()
