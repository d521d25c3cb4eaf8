"""The command `brokerd`. commands.py declares all commands; the function of a command is imported when it runs.

    commands.py        the table of commands and their options
    parser.py          parses command lines; client settings, NAME=VALUE pairs, ranges
    output.py          tables, sizes, times, JSON

    start.py           runs a broker; turns a standalone node's directory into the first node of a cluster
    topics.py          creates, lists, describes, alters, trims, deletes topics; prints the ends of partitions, and offsets by time
    transactions.py    lists, describes, aborts, forgets transactions, finds hanging ones
    groups.py          lists, describes, resets, deletes groups
    produce.py         writes lines as records
    consume.py         prints records as lines
    record_lines.py    converts records from and to lines of text or JSON
    top.py             watches a broker
    cluster.py         prints nodes, leaders and replicas, and moves them; prints a broker's versions and limits
    dump_log.py        prints the contents of a data directory's files
    doctor.py          checks a data directory, and repairs it at an operator's request
    install.py         prints sample configuration, systemd unit, hashed tokens, shell completion
    topic_lookup.py    finds topics by name or pattern

`main` turns an error into one sentence on standard error and an exit code.

    0    done
    1    failed; the sentence says what, where and what to do (`doctor`: damage was found)
    2    the command line is wrong; the sentence suggests the nearest valid word
    130  interrupted (Ctrl-C)
    141  standard output is a broken pipe
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

from brokerd.errors import BrokerdError, BrokerUnreachableError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Failures to write to standard output. For other files, the command raises an error that names the file.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    from brokerd.cli.commands import BOOTSTRAP_SERVER_VARIABLE
    from brokerd.cli.parser import UsageError, parse

    # gRPC's C core prints every failed TLS handshake and every malformed header from the network; our errors already say what
    # matters. gRPC reads this variable on import. ERROR is the package's default, so any other value is the user's.
    if os.environ.get("GRPC_VERBOSITY", "ERROR") == "ERROR":
        os.environ["GRPC_VERBOSITY"] = "NONE"
    _prepare_streams()
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        module, function = args.run.split(".")
        code: int = getattr(importlib.import_module(f"brokerd.cli.{module}"), function)(args) or 0
        sys.stdout.flush()
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except BrokerdError as error:
        is_unanswered = isinstance(error, BrokerUnreachableError) and error.is_final
        remedy = f" (--bootstrap-server or {BOOTSTRAP_SERVER_VARIABLE} sets the address)" if is_unanswered else ""
        print(f"brokerd: {error}{remedy}", file=sys.stderr)
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


def _prepare_streams() -> None:
    """Replaces standard streams that the shell closed (<&- or >&-) by /dev/null: Python sets them to None, and the next file or
    socket would get their descriptor. Output is UTF-8 in every locale, as JSON requires; other bytes of a path are escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the life of the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _drop_output() -> None:
    """Redirects standard output to /dev/null: its buffer cannot be written, and the interpreter would report that at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
