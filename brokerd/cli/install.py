"""Commands for a new installation: `brokerd config`, `brokerd hash-token` and `brokerd completion`."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from pathlib import Path

from brokerd.cli.output import note
from brokerd.cli.parser import command_parser
from brokerd.config.sample import sample_toml
from brokerd.errors import ConfigError
from brokerd.server.security.tokens import check_token, generate_token, hash_token

_UNIT_PROGRAM = "/opt/brokerd/bin/brokerd"  # in the unit as shipped
_HIDDEN = [Path("/", *parts) for parts in (["home"], ["root"], ["run", "user"], ["tmp"], ["var", "tmp"])]  # ProtectHome, PrivateTmp
_FILES = ("FILE", "DIR", "PATH")
_COMPLETE_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}  # shtab's functions that complete file names


def print_config(args: argparse.Namespace) -> None:
    """Prints the sample configuration or the systemd unit, so that users of the package need no repository."""
    if args.sample:
        print(sample_toml(), end="")
        return
    program = Path(sys.argv[0])
    print(systemd_unit(program), end="")
    hidden = hidden_from_unit([program.absolute(), Path(sys.executable), Path(sys.executable).resolve()])
    if hidden is not None:
        note(
            f"brokerd: the unit hides {hidden} from the service (ProtectHome=, PrivateTmp=), which needs it: install brokerd "
            f"elsewhere, such as into {Path(_UNIT_PROGRAM).parents[1]}, with the system's Python"
        )


def hidden_from_unit(needed: Iterable[Path]) -> Path | None:
    """The first of these paths that the unit hides from its service, or None."""
    return next((path for path in needed if any(path.is_relative_to(directory) for directory in _HIDDEN)), None)


def systemd_unit(program: Path) -> str:
    """The text of the unit; it runs `program` if that is an installed brokerd, otherwise the default path."""
    unit = files("brokerd.config").joinpath("brokerd.service").read_text(encoding="utf-8")
    is_command = program.name == "brokerd" and program.is_file()
    return unit.replace(f"ExecStart={_UNIT_PROGRAM} ", f"ExecStart={program.resolve()} ") if is_command else unit


def print_token_hash(args: argparse.Namespace) -> None:
    """Prints the hash of a token for the broker's auth file. Raises ConfigError."""
    token = _generated(args.generate) if args.generate is not None else _read()
    check_token(token)
    print(hash_token(token))


def _generated(path: str) -> str:
    token = generate_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(token + "\n")
        except OSError:
            os.unlink(path)  # an empty file would keep the next attempt from creating it
            raise
    except FileExistsError:
        raise ConfigError(f"the file {path} exists and is not overwritten: choose another name, or remove it") from None
    except OSError as error:
        raise ConfigError(f"cannot write the new file {path}: {error.strerror}") from None
    return token


def _read() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("token: ").strip()
    return sys.stdin.read().strip()


def print_completion(args: argparse.Namespace) -> None:
    """Prints a shell's completion script, which shtab generates from the parser. The script contains commands, options and
    choices, so pressing TAB does not start Python. Raises ConfigError if shtab is not installed."""
    try:
        from shtab import complete
    except ImportError:
        raise ConfigError("shell completion needs shtab: pip install shtab") from None
    parser = command_parser()
    for action in _actions(parser):
        if str(action.metavar) in _FILES:
            action.complete = _COMPLETE_FILES  # type: ignore[attr-defined]
    write: Callable[..., str] = complete
    print(write(parser, shell=args.shell, root_prefix="brokerd").rstrip("\n"))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and its subparsers."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them, and shtab reads the same
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from _actions(below)
