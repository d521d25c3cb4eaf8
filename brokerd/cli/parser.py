"""Parses command lines strictly; each mistake is one sentence with the nearest valid name. Also has what commands share: client
settings, NAME=VALUE pairs, ranges. Imports neither gRPC nor Arrow.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from brokerd.cli.commands import BOOTSTRAP_SERVER_VARIABLE, COMMANDS, Command, OneOf
from brokerd.config.client import DEFAULT_PORT, ClientConfig, ConsumerConfig, ProducerConfig
from brokerd.config.settings import from_mapping, settings_of, whole_number
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

if TYPE_CHECKING:
    from brokerd.client.blocking import BlockingClient

C = TypeVar("C", bound=ClientConfig)
T = TypeVar("T")

API_TIMEOUT_MS = 10_000  # Kafka's 60 s is too long for a user at a terminal
_PAIR = "NAME=VALUE"  # of options that take settings
_PATHS = ("command_config", "file", "settings")  # arguments that are or may contain paths
_VALUE_WITH_MINUS = re.compile(r"-[0-9]+[a-z]*$")  # -1000, -10m: values, not options
_EXAMPLES = """\
a broker, a topic, a record and back, in two terminals:
  brokerd start
  brokerd topics create events --partitions 4
  echo 'hello' | brokerd produce events
  brokerd consume events --from-beginning

'brokerd COMMAND --help' describes each one.
"""


class UsageError(Exception):
    """The command line is wrong; the text is ready to print."""


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations. It raises errors as UsageError, each one sentence."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **kwargs)
        self.register("type", int, whole_number)
        self._arguments: list[str] = []  # as given
        self._negative_number_matcher = _VALUE_WITH_MINUS  # argparse's private regex; in older versions it lacks units

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Like argparse's, but rejects unknown arguments here, where this command's options are at hand to suggest one."""
        self._arguments = list(args or ())
        parsed, extras = super().parse_known_args(args, namespace)
        if extras:
            self.error(self._unexpected(extras[0]))
        return parsed, extras

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{self.prog}: {message} (see '{self.prog} --help')")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Unlike argparse, raises OSError if help cannot be written."""
        print(message, end="", file=file, flush=True)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - argparse has no public name for it
            misplaced = self._arguments[: self._arguments.index(value)] if is_command and value in self._arguments else ()
            if misplaced:  # argparse takes the value of a misplaced option for the command
                self.error(self._unexpected(misplaced[0]))
            what = "/".join(action.option_strings) or ("command" if is_command else str(action.metavar))
            self.error(_unknown(what, str(value), did_you_mean(str(value), map(str, action.choices), listed="")))

    def _unexpected(self, argument: str) -> str:
        name_before = rf"-X\n?[^\n=]*=?\n{re.escape(argument)}(\n|$)"  # as in -X auth.token= TOKEN
        if self.prog == "brokerd hash-token" or re.search(name_before, "\n".join(self._arguments)):
            return "unexpected argument, which is not shown, since it may be a token"
        if not argument.startswith("-") or argument == "-":
            return f"unexpected argument '{argument}'"
        name = argument.split("=", 1)[0]
        if self._subparsers is not None:
            return f"option '{name}' must come after the command"
        options = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        return _unknown("option", name, did_you_mean(name, options, otherwise=self._as_setting(name), listed=""))

    def _as_setting(self, name: str) -> str | None:
        """The hint for an option with a setting's name, if this command has an option that takes such settings."""
        from brokerd.config.broker import BrokerConfig
        from brokerd.config.topic import TopicConfig

        of_client = {"brokerd produce": ProducerConfig, "brokerd consume": ConsumerConfig}.get(self.prog, ClientConfig)
        setting = re.sub("[-_]", ".", name.lstrip("-").lower())
        for option, kind in (("--set", BrokerConfig), ("--config", TopicConfig), ("-X", of_client)):
            action = self._option_string_actions.get(option)
            if action is not None and action.metavar == _PAIR and setting in settings_of(kind):
                return f"did you mean '{option} {setting}=...'?"
        return None


def _unknown(what: str, name: str, hint: str) -> str:
    return f"unknown {what} '{name}'" + (f": {hint}" if hint else "")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples, and widens the column of options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=min(110, os.get_terminal_size().columns if os.isatty(1) else 110))


def command_parser() -> CommandParser:
    """The parser of all commands."""
    from brokerd import __version__

    parser = CommandParser(
        prog="brokerd",
        description="An ordered, durable log for PySpark: the broker, and tools to inspect it.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"brokerd {__version__}")
    _add(parser, tuple(COMMANDS.values()), "command")
    return parser


def _add(parser: CommandParser, commands: Sequence[Command], kind: str) -> None:
    """Adds the commands, or the verbs of one."""
    subparsers = parser.add_subparsers(dest=kind, metavar=kind.upper(), title=f"{kind}s", required=True)
    for command in commands:
        description = command.description or f"{command.summary[0].upper()}{command.summary[1:]}."
        below = subparsers.add_parser(command.name, help=command.summary, description=description, epilog=command.epilog)
        if command.verbs:
            _add(below, command.verbs, "verb")
            continue
        below.set_defaults(run=command.run, prog=below.prog)
        for argument in command.arguments:
            if isinstance(argument, OneOf):
                group = below.add_mutually_exclusive_group(required=argument.is_required)
                for option in argument.options:
                    group.add_argument(*option.flags, **option.settings)
            else:
                below.add_argument(*argument.flags, **argument.settings)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line. Raises UsageError; SystemExit after --help and --version."""
    args = command_parser().parse_args(arguments)
    if hasattr(args, "bootstrap_server"):
        args.bootstrap_server = args.bootstrap_server or os.environ.get(BOOTSTRAP_SERVER_VARIABLE) or f"127.0.0.1:{DEFAULT_PORT}"
        _check_texts(args)
    return args


def _check_texts(args: argparse.Namespace) -> None:
    """Raises UsageError for arguments that are not UTF-8, which requests cannot carry. Paths may be any bytes."""
    for name, value in vars(args).items():
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, str) and name not in _PATHS and word != os.fsencode(word).decode(errors="replace"):
                raise usage_error(args, f"{os.fsencode(word)!r} is not UTF-8 text")


def connect(args: argparse.Namespace, config: ClientConfig | None = None) -> BlockingClient:
    """A client whose default.api.timeout.ms is at most 10 s, so that a mistyped address is reported soon. Commands that must ride
    out a broker's restart continue with a client of their own. Raises UsageError."""
    from brokerd.client.blocking import BlockingClient

    config = config or client_config(args, ClientConfig)
    return BlockingClient(replace(config, api_timeout_ms=min(config.api_timeout_ms, API_TIMEOUT_MS)))


def connect_to_change(args: argparse.Namespace) -> BlockingClient:
    """A client with the configured timeouts, since changing thousands of partitions may take long. A client with short timeouts
    contacts the broker first, so that a mistyped address is reported soon. Raises BrokerdError, UsageError."""
    from brokerd.client.blocking import BlockingClient

    config = client_config(args, ClientConfig)
    with connect(args, config) as client:
        client.server_info()
    return BlockingClient(config)


def client_config(args: argparse.Namespace, kind: type[C], options: Mapping[str, object] | None = None) -> C:
    """The client settings of a command. Precedence: --command-config < -X < `options`, those that the command's own options set.
    Raises UsageError."""
    return checked(args, lambda: from_mapping(kind, client_settings(args, options), where=where(args)))


def where(args: argparse.Namespace) -> str:
    """The origin of client settings, as the end of an error's sentence."""
    return "(option -X)" if args.command_config is None else f"(option -X or {args.command_config})"


def client_settings(args: argparse.Namespace, options: Mapping[str, object] | None = None) -> dict[str, object]:
    """Like `client_config`, but by name and unchecked. Raises UsageError."""
    path = args.command_config
    from_file = checked(args, lambda: _read_command_config(path)) if path is not None else {}
    given = {**from_file, **dict(pairs(args, "-X", args.settings))}
    if "bootstrap.servers" in given:
        raise usage_error(args, "give bootstrap.servers by --bootstrap-server")
    return {**given, **(options or {}), "bootstrap.servers": args.bootstrap_server}


def _read_command_config(path: str) -> dict[str, str]:
    """Reads --command-config: one NAME=VALUE per line; lines that start with # or ! are comments. Raises ConfigError naming file
    and line, but no value, which may be a secret."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read --command-config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--command-config {path} is not UTF-8 text") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--command-config {path}, line {number}: not of the form NAME=VALUE")
        if name in found:
            raise ConfigError(f"--command-config {path}, line {number}: {name} is given twice")
        found[name] = value.strip()
    return found


def checked(args: argparse.Namespace, make: Callable[[], T]) -> T:
    """Returns `make()`. Raises UsageError in place of a ConfigError."""
    try:
        return make()
    except ConfigError as error:
        raise usage_error(args, error.message) from None


def pairs(args: argparse.Namespace, option: str, given: Sequence[str]) -> list[tuple[str, str]]:
    """Parses entries such as "a=b"; as a dict, the last entry of a name wins. Raises UsageError, without an entry of -X, which may
    be a token."""
    found = []
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise usage_error(args, f"{option} takes NAME=VALUE" + ("" if option == "-X" else f", not '{entry}'"))
        found.append((name, value))
    return found


def check_range(args: argparse.Namespace, option: str, value: int | None, *, maximum: int) -> None:
    """Raises UsageError if `value` is below 1 or above `maximum`; None is valid."""
    if value is not None and value < 1:
        raise usage_error(args, f"{option} must be at least 1, not {value}")
    if value is not None and value > maximum:
        raise usage_error(args, f"{option} must be at most {maximum}, not {value}")


def usage_error(args: argparse.Namespace, message: str) -> UsageError:
    """The error for a mistake in the command line that argparse cannot detect."""
    return UsageError(f"{args.prog}: {message} (see '{args.prog} --help')")
