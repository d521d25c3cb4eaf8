"""`brokerd config` prints the sample settings and a systemd unit that runs this installation; `hash-token` writes a token."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli import main
from brokerd.cli.install import hidden_from_unit, print_token_hash, systemd_unit
from brokerd.config.sample import sample_toml
from brokerd.errors import ConfigError

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


def test_an_installation_that_the_unit_hides_from_its_service_is_named() -> None:
    unit = UNIT.read_text()
    assert "ProtectHome=yes" in unit
    assert "PrivateTmp=yes" in unit
    visible, in_a_home, in_tmp = (Path("/", *parts, "bin", "python") for parts in (["opt", "env"], ["home", "me"], ["tmp", "env"]))
    assert hidden_from_unit([visible, Path("/homes/brokerd")]) is None
    assert hidden_from_unit([visible, in_a_home]) == in_a_home
    assert hidden_from_unit([in_tmp, in_a_home]) == in_tmp


def test_files_can_be_given_to_the_user_of_the_unit() -> None:
    unit = UNIT.read_text()
    assert "User=brokerd\nGroup=brokerd\n" in unit
    assert "DynamicUser" not in unit


def test_a_token_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    real_open = open

    def full(descriptor: int, *args: Any, **named: Any) -> Any:
        os.close(descriptor)
        return real_open("/dev/full", *args, **named)

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(ConfigError, match=f"cannot write the new file {path}: No space left on device"):
        print_token_hash(argparse.Namespace(generate=str(path)))
    assert not path.exists()
