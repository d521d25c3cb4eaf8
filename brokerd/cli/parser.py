"""Argument parsing for every command: strict, with one sentence per mistake that suggests the nearest valid name.

Knows no command and imports nothing heavy.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, Protocol, TypeVar

from brokerd.cli.command_config import read_command_config
from brokerd.config.client import DEFAULT_PORT, ClientConfig
from brokerd.config.settings import from_mapping, whole_number
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

C = TypeVar("C", bound=ClientConfig)
T = TypeVar("T")

BOOTSTRAP_SERVER_VARIABLE = "BROKERD_BOOTSTRAP_SERVER"
# A person waits at a terminal: Kafka's minute of silence is too long.
API_TIMEOUT_MS = 10_000
_PATHS = ("command_config", "file", "settings")  # arguments that are paths, or may hold some
_VALUE_WITH_MINUS = re.compile(r"-[0-9]+[a-z]*$")  # -1000, -10m: values, not options


class Subparsers(Protocol):
    """The registry of commands (argparse's own type is private)."""

    def add_parser(self, name: str, **kwargs: Any) -> CommandParser:
        """A parser for the command `name`."""


class UsageError(Exception):
    """The command line is wrong; the text is ready to print."""


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations whose errors are one sentence, raised as UsageError."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)
        self.register("type", int, whole_number)
        self._arguments: list[str] = []  # as given
        self._negative_number_matcher = _VALUE_WITH_MINUS  # argparse's own, which in older versions knows no units

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but unknown arguments are an error right here, where this command's own options are known."""
        self._arguments = list(args or ())
        parsed, extras = super().parse_known_args(args, namespace)
        if extras:
            self.error(self._unknown(extras[0]))
        return parsed, extras

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{self.prog}: {message} (see '{self.prog} --help')")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - argparse has no public name for it
            misplaced = self._arguments[: self._arguments.index(value)] if is_command and value in self._arguments else ()
            if misplaced:  # the value of an option, which argparse takes for the command
                self.error(self._unknown(misplaced[0]))
            what = "/".join(action.option_strings) or ("command" if is_command else str(action.metavar))
            self.error(f"unknown {what} '{value}': {did_you_mean(str(value), map(str, action.choices))}")

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-") or argument == "-":
            return f"unexpected argument '{argument}'"
        name = argument.split("=", 1)[0]
        if self._subparsers is not None:
            return f"option '{name}' stands before the command: write it behind"
        options = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        return f"unknown option '{name}': {did_you_mean(name, options)}"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples; leaves a wider column for options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=min(110, os.get_terminal_size().columns if os.isatty(1) else 110))


def add_verbs(parser: CommandParser) -> Subparsers:
    """The verbs of a noun, such as `create` of `topics`; a command line must have one of them (`args.verb`)."""
    return parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)


def add_client_options(parser: argparse.ArgumentParser, settings: str = "client settings") -> None:
    """Adds the options of every command that connects to a broker."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=os.environ.get(BOOTSTRAP_SERVER_VARIABLE) or f"127.0.0.1:{DEFAULT_PORT}",
        help=f"the broker (default: ${BOOTSTRAP_SERVER_VARIABLE}, otherwise 127.0.0.1:{DEFAULT_PORT})",
    )
    parser.add_argument(
        "-X",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"{settings} by Kafka's names, such as -X default.api.timeout.ms=5000; may be repeated",
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="file with client settings such as TLS and auth.token, one NAME=VALUE per line",
    )


def add_topic_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of commands about any number of topics; topic_lookup.py finds them."""
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="topics")
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        action="append",
        default=[],
        help="also the topics in whose name this regular expression is found; may be repeated",
    )
    parser.add_argument(
        "-p", "--partition", type=int, action="append", metavar="N", help="only this partition; may be repeated (default: all)"
    )


def client_config(args: argparse.Namespace, kind: type[C], defaults: Mapping[str, object] | None = None) -> C:
    """The settings of a command: `defaults` of the command < --command-config < -X < --bootstrap-server. Raises UsageError."""
    return checked(args, lambda: from_mapping(kind, client_settings(args, defaults), where=where(args)))


def hasty(config: ClientConfig) -> ClientConfig:
    """`config` with short timeouts, for the first contact with the broker: a user who mistyped an address wants to know soon,
    while a reader or writer that has been connected rides out a broker's restart."""
    shared = {field.name: getattr(config, field.name) for field in fields(ClientConfig)}
    return ClientConfig(**{**shared, "api_timeout_ms": min(config.api_timeout_ms, API_TIMEOUT_MS)})


def where(args: argparse.Namespace) -> str:
    """Where a setting of a command came from, for the end of an error's sentence."""
    return "(option -X)" if args.command_config is None else f"(option -X or {args.command_config})"


def client_settings(args: argparse.Namespace, defaults: Mapping[str, object] | None = None) -> dict[str, object]:
    """As `client_config`, by name and unchecked. Raises UsageError."""
    path = args.command_config
    from_file = checked(args, lambda: read_command_config(path)) if path is not None else {}
    given = {**from_file, **pairs(args, "-X", args.settings)}
    if "bootstrap.servers" in given:
        raise usage_error(args, "give bootstrap.servers by --bootstrap-server")
    return {**(defaults or {}), **given, "bootstrap.servers": args.bootstrap_server}


def checked(args: argparse.Namespace, make: Callable[[], T]) -> T:
    """Returns `make()`; a ConfigError that it raises is a mistake in the command line. Raises UsageError."""
    try:
        return make()
    except ConfigError as error:
        raise usage_error(args, error.message) from None


def pairs(args: argparse.Namespace, option: str, given: Sequence[str], *, what: str = "NAME=VALUE") -> dict[str, str]:
    """Entries such as "a=b" as a mapping; the last entry of a name wins. Raises UsageError."""
    return dict(pair_list(args, option, given, what=what))


def pair_list(args: argparse.Namespace, option: str, given: Sequence[str], *, what: str = "NAME=VALUE") -> list[tuple[str, str]]:
    """As `pairs`, but keeps every entry of a repeated name. Raises UsageError."""
    found = []
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise usage_error(args, f"{option} takes {what}, not '{entry}'")
        found.append((name, value))
    return found


def check_texts(args: argparse.Namespace) -> None:
    """Raises UsageError for words that are bytes and no text, if the command may send them to a broker. Paths may be any bytes."""
    if not hasattr(args, "bootstrap_server"):
        return
    for name, value in vars(args).items():
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, str) and name not in _PATHS and word != os.fsencode(word).decode(errors="replace"):
                raise usage_error(args, f"{os.fsencode(word)!r} is not UTF-8 text")


def check_range(args: argparse.Namespace, option: str, value: int | None, *, maximum: int) -> None:
    """Raises UsageError if `value` is below 1 or above `maximum`; None passes."""
    if value is not None and value < 1:
        raise usage_error(args, f"{option} must be at least 1, not {value}")
    if value is not None and value > maximum:
        raise usage_error(args, f"{option} must be at most {maximum}, not {value}")


def usage_error(args: argparse.Namespace, message: str) -> UsageError:
    """The error for a mistake in the command line that argparse cannot detect."""
    prog = " ".join(word for word in ("brokerd", args.command, getattr(args, "verb", None)) if word)
    return UsageError(f"{prog}: {message} (see '{prog} --help')")
