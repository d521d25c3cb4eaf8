"""The command `brokerd`: one file per noun or verb, each with `add_parser(subparsers)` and `run(args)`.

    start.py           runs a broker
    topics.py          creates, lists, describes, alters, trims, deletes topics (topics_report.py, topics_trim.py)
    offsets.py         where partitions begin and end, offsets by time
    transactions.py    lists, describes, aborts transactions, finds hanging ones (transactions_report.py: how they are printed)
    groups.py          lists, describes, resets, deletes groups of readers (group_reset.py: to which offset, groups_report.py)
    produce.py         lines to records (lines.py, json_records.py)
    consume.py         records to lines (record_format.py: how they are printed)
    top.py             watches a broker (top_watch.py asks, top_model.py computes, top_view.py draws)
    info.py            a broker's versions, features, limits, nodes
    dump_log.py        prints the contents of a data directory's files
    doctor.py          checks a data directory, and repairs what an operator decides
    config.py          prints the sample configuration and the systemd unit
    completion.py      prints a script for the completion of command lines
    hash_token.py      hashes a token for the auth file
    parser.py          how every command reads its arguments (command_config.py: the file of --command-config)
    topic_lookup.py    topics by name, with the nearest one for a name that does not exist
    output.py          tables, sizes, JSON

Only the requested command is imported, and heavy modules (gRPC, Arrow) only when it runs, so `brokerd --help` is fast. Errors are
turned into one sentence on standard error and an exit code here, and nowhere else.

    0    done
    1    failed: the sentence says what, where and what to do
    2    the command line is wrong: the sentence names the nearest right word
    130  interrupted (Ctrl-C)
    141  the reader of standard output is gone
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from brokerd.errors import BrokerdError

if TYPE_CHECKING:
    from brokerd.cli.parser import CommandParser

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Errors that a write to standard output may raise; for other files, the command that uses them names the file in its error.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = {  # name: (module, one line of help)
    "start": ("brokerd.cli.start", "run a broker"),
    "topics": ("brokerd.cli.topics", "create, list, describe, alter, trim and delete topics"),
    "offsets": ("brokerd.cli.offsets", "print where partitions begin and end, and offsets by time"),
    "transactions": ("brokerd.cli.transactions", "list, describe and abort transactions, find those that hold back readers"),
    "groups": ("brokerd.cli.groups", "list and describe groups of readers and their lag, reset and delete their offsets"),
    "produce": ("brokerd.cli.produce", "write lines from standard input or a file to a topic"),
    "consume": ("brokerd.cli.consume", "print records of topics"),
    "top": ("brokerd.cli.top", "watch topics, rates, groups with their lag, and transactions"),
    "info": ("brokerd.cli.info", "print a broker's versions, features, limits and nodes"),
    "dump-log": ("brokerd.cli.dump_log", "print what a log directory, segment, index or snapshot holds"),
    "doctor": ("brokerd.cli.doctor", "check every byte of a data directory"),
    "config": ("brokerd.cli.config", "print a sample configuration or a systemd unit"),
    "hash-token": ("brokerd.cli.hash_token", "hash a token for the broker's auth file"),
    "completion": ("brokerd.cli.completion", "print a script by which bash or zsh completes command lines"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    from brokerd.cli.parser import UsageError

    # gRPC's C core prints every failed TLS handshake and every malformed header that a stranger sends; what matters is already in
    # our error. gRPC reads this variable when it is imported. ERROR is the package's own default, so any other value was set by
    # the user.
    if os.environ.get("GRPC_VERBOSITY", "ERROR") == "ERROR":
        os.environ["GRPC_VERBOSITY"] = "NONE"
    _open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except BrokerdError as error:
        print(f"brokerd: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        print(f"brokerd: cannot write to standard output: {error.strerror}", file=sys.stderr)
        _drop_output()
        return EXIT_FAILED
    return code


def _open_closed_streams() -> None:
    """Reopens standard streams that a shell closed (<&- or >&-) on /dev/null. Otherwise Python has none of them, and the next
    file or socket gets their descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the life of the process)


def _drop_output() -> None:
    """Redirects standard output to /dev/null: its buffer cannot be written either, and the interpreter would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def whole_parser() -> CommandParser:
    """The parser with all arguments of all commands, which imports every one of them."""
    return _parser(COMMANDS)[0]


def _run(arguments: list[str]) -> int:
    from brokerd.cli.parser import check_texts

    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser, modules = _parser((asked,))
    args = parser.parse_args(arguments)
    check_texts(args)
    code: int = modules[args.command].run(args)
    return code


def _parser(imported: Iterable[str | None]) -> tuple[CommandParser, dict[str, ModuleType]]:
    """A parser that knows the arguments of some commands, and of the others their names; and the modules of those."""
    from brokerd import __version__
    from brokerd.cli.parser import CommandParser

    parser = CommandParser(
        prog="brokerd",
        description="An ordered, durable log for PySpark: the broker, and tools to inspect it.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"brokerd {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    modules = {}
    for name, (module_name, summary) in COMMANDS.items():
        if name in imported:
            modules[name] = importlib.import_module(module_name)
            modules[name].add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser, modules


_EXAMPLES = """\
a broker, a topic, a record and back, in two terminals:
  brokerd start
  brokerd topics create events --partitions 4
  echo 'hello' | brokerd produce events
  brokerd consume events --from-beginning

'brokerd COMMAND --help' describes each one.
"""
