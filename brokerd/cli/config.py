"""`brokerd config`: prints the starting files of an installation, the annotated settings and the systemd unit, for users who have
the package but not the repository. brokerd/config/sample.py makes the settings; the unit is a file next to it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from brokerd.cli.output import note
from brokerd.cli.parser import Subparsers
from brokerd.config.sample import sample_toml

_UNIT_PROGRAM = "/opt/brokerd/bin/brokerd"  # in the unit as shipped
_HIDDEN = [Path("/", *parts) for parts in (["home"], ["root"], ["run", "user"], ["tmp"], ["var", "tmp"])]  # ProtectHome, PrivateTmp
_EPILOG = """\
examples:
  brokerd config --sample > brokerd.toml
  brokerd config --systemd-unit > /etc/systemd/system/brokerd.service
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "config",
        help="print a sample configuration or a systemd unit",
        description="Prints the files that an installation starts from.",
        epilog=_EPILOG,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--sample", action="store_true", help="every setting of the broker with its meaning, range and default (TOML)"
    )
    what.add_argument("--systemd-unit", action="store_true", help="a hardened unit that runs this very installation")


def run(args: argparse.Namespace) -> int:
    """Prints the requested file."""
    if args.sample:
        print(sample_toml(), end="")
        return 0
    program = Path(sys.argv[0])
    print(systemd_unit(program), end="")
    hidden = hidden_from_unit([program.absolute(), Path(sys.executable), Path(sys.executable).resolve()])
    if hidden is not None:
        note(
            f"brokerd: the unit hides {hidden} from the service (ProtectHome=, PrivateTmp=), which needs it: install brokerd "
            f"elsewhere, such as into {Path(_UNIT_PROGRAM).parents[1]}, with the system's Python"
        )
    return 0


def hidden_from_unit(needed: Iterable[Path]) -> Path | None:
    """The first of these files that a service of the unit cannot see, or None."""
    return next((path for path in needed if any(path.is_relative_to(directory) for directory in _HIDDEN)), None)


def systemd_unit(program: Path) -> str:
    """The unit, running `program` if that is the installed command."""
    unit = files("brokerd.config").joinpath("brokerd.service").read_text(encoding="utf-8")
    is_command = program.name == "brokerd" and program.is_file()
    return unit.replace(f"ExecStart={_UNIT_PROGRAM} ", f"ExecStart={program.resolve()} ") if is_command else unit
