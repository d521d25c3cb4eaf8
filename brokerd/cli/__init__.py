"""The command `brokerd`: one file per noun or verb, each with `add_parser(subparsers)` and `run(args)`.

    start.py           runs a broker
    topics.py          creates, lists, describes, alters, deletes topics (topics_report.py: how they are printed)
    produce.py         lines to records (lines.py, json_records.py)
    consume.py         records to lines (start_offsets.py: where it begins, record_format.py: how they are printed)
    dump_log.py        what files of a data directory hold
    doctor.py          checks a data directory, and repairs what an operator decides
    config.py          prints the sample configuration and the systemd unit
    hash_token.py      what the auth file holds of a token
    parser.py          how every command reads its arguments (command_config.py: the file of --command-config)
    topic_lookup.py    topics by name, with the nearest one for a name that does not exist
    output.py          tables, sizes, JSON

Only the command that is asked for is imported, and what is heavy (gRPC, Arrow) only when it runs: `brokerd --help` is fast.
Errors become one sentence on standard error and an exit code here, and nowhere else.

    0    done
    1    it failed: the sentence says what, where and what to do
    2    the command line is wrong: the sentence names the nearest right word
    130  interrupted (Ctrl-C)
    141  the reader of standard output went away
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from brokerd.errors import BrokerdError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# What a write to standard output may meet; other files are named by the error of the command that uses them.
_CAN_NOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = {  # name: (module, one line of help)
    "start": ("brokerd.cli.start", "run a broker"),
    "topics": ("brokerd.cli.topics", "create, list, describe, alter and delete topics"),
    "produce": ("brokerd.cli.produce", "write lines from standard input or a file to a topic"),
    "consume": ("brokerd.cli.consume", "print records of a topic"),
    "dump-log": ("brokerd.cli.dump_log", "print what a log directory, segment, index or snapshot holds"),
    "doctor": ("brokerd.cli.doctor", "check every byte of a data directory"),
    "config": ("brokerd.cli.config", "print a sample configuration or a systemd unit"),
    "hash-token": ("brokerd.cli.hash_token", "hash a token for the broker's auth file"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    from brokerd.cli.parser import UsageError

    # gRPC's C core prints each failed TLS handshake, and each header that a stranger sends wrong; what matters of it is in the
    # error, and gRPC reads this at its import. ERROR is what the package itself has set; whoever wants more has said so.
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
        if error.errno not in _CAN_NOT_WRITE or error.filename is not None:
            raise
        print(f"brokerd: cannot write to standard output: {error.strerror}", file=sys.stderr)
        _drop_output()
        return EXIT_FAILED
    return code


def _open_closed_streams() -> None:
    """Standard streams that a shell closed (<&- or >&-) become /dev/null: else Python has none of them, and the next file or
    socket gets their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the life of the process)


def _drop_output() -> None:
    """What is still buffered cannot be written either: without this the interpreter complains about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    from brokerd import __version__
    from brokerd.cli.parser import CommandParser

    parser = CommandParser(
        prog="brokerd",
        description="An ordered, durable log for PySpark: the broker, and tools to look into it.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"brokerd {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    module: ModuleType | None = None
    for name, (module_name, summary) in COMMANDS.items():
        if name == asked:
            module = importlib.import_module(module_name)
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    args = parser.parse_args(arguments)
    assert module is not None, "a parsed command line has a command"
    code: int = module.run(args)
    return code


_EXAMPLES = """\
a broker, a topic, a record and back, in two terminals:
  brokerd start
  brokerd topics create events --partitions 4
  echo 'hello' | brokerd produce events
  brokerd consume events --from-beginning

'brokerd COMMAND --help' says more about each.
"""
