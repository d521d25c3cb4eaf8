"""The command `brokerd`. commands.py declares every command line; a command's function is imported when it runs.

    commands.py        the table of commands and their options
    parser.py          how command lines are parsed, and what commands ask of their arguments
    output.py          tables, sizes, times, JSON

    start.py           runs a broker
    topics.py          creates, lists, describes, alters, trims, deletes topics
    offsets.py         where partitions begin and end, offsets by time
    transactions.py    lists, describes, aborts transactions, finds hanging ones
    groups.py          lists, describes, resets, deletes groups of readers
    produce.py         lines to records
    consume.py         records to lines
    record_lines.py    the lines of both: text, and one JSON object each
    top.py             watches a broker (top_model.py computes what top_view.py draws)
    info.py            a broker's versions, features, limits, nodes
    dump_log.py        prints the contents of a data directory's files
    doctor.py          checks a data directory, and repairs what an operator decides
    install.py         for a new installation: sample configuration, systemd unit, hashed tokens, completion
    topic_lookup.py    topics by name, with the nearest one for a name that does not exist

Errors are turned into one sentence on standard error and an exit code here, and nowhere else.

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
from collections.abc import Sequence

from brokerd.errors import BrokerdError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Errors that a write to standard output may raise; for other files, the command that uses them names the file in its error.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    from brokerd.cli.parser import UsageError, parse

    # gRPC's C core prints every failed TLS handshake and every malformed header that a stranger sends; what matters is already in
    # our error. gRPC reads this variable when it is imported. ERROR is the package's own default, so any other value was set by
    # the user.
    if os.environ.get("GRPC_VERBOSITY", "ERROR") == "ERROR":
        os.environ["GRPC_VERBOSITY"] = "NONE"
    _open_closed_streams()
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        module, function = args.run.split(".")
        code: int = getattr(importlib.import_module(f"brokerd.cli.{module}"), function)(args) or 0
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
