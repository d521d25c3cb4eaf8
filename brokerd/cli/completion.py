"""`brokerd completion`: a script by which a shell completes command lines of brokerd. The library shtab writes it from the parsers.

The script knows commands, options and their choices by itself: pressing TAB starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from brokerd.cli.parser import Subparsers
from brokerd.errors import ConfigError

_FILES = ("FILE", "DIR", "PATH")
# shtab's names for "complete the names of files", by shell.
_COMPLETE_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
_EPILOG = """\
bash (with the package bash-completion):
  mkdir -p ~/.local/share/bash-completion/completions
  brokerd completion bash > ~/.local/share/bash-completion/completions/brokerd

zsh (in a directory of $fpath, before compinit):
  brokerd completion zsh > ~/.zfunc/_brokerd

Needs shtab: pip install shtab. The script itself needs nothing.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script by which bash or zsh completes command lines",
        description="Prints a script by which a shell completes command lines of brokerd.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh"), help="bash or zsh")


def run(args: argparse.Namespace) -> int:
    """Prints the script. Raises ConfigError if shtab is not installed."""
    from brokerd.cli import whole_parser

    print(script(args.shell, whole_parser()))
    return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for a parser and all its commands. Raises ConfigError if shtab is not installed."""
    try:
        from shtab import complete
    except ImportError:
        raise ConfigError("shell completion needs shtab: pip install shtab") from None
    for action in _actions(parser):
        if str(action.metavar) in _FILES:
            action.complete = _COMPLETE_FILES  # type: ignore[attr-defined]
    write: Callable[..., str] = complete
    return write(parser, shell=shell, root_prefix="brokerd").rstrip("\n")


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of those below it."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them, and shtab reads the same
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from _actions(below)
