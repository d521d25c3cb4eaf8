"""`brokerd top`: topics, groups and transactions of a broker, again and again. top_watch.py asks, top_model.py computes,
top_view.py draws.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Self

from brokerd.cli.parser import Subparsers, add_client_options, client_config, hasty, usage_error
from brokerd.config.client import ClientConfig
from brokerd.errors import ConfigError

if TYPE_CHECKING:
    from brokerd.cli.top_model import Screen
    from brokerd.cli.top_watch import Watch

_INTERVAL_MS = 2_000
_INTERVAL_MIN_MS = 100
_INTERVAL_MAX_MS = 3_600_000
_API_TIMEOUT_MS = 3_000  # a screen that says "unreachable" late is worth little
_EPILOG = """\
Topics stand in the order of their rate, groups in that of their lag, transactions in that of their age. OFFSETS/S and BYTES/S
are what was written between two looks; markers of transactions take some offsets. BYTES/S takes a wide terminal, and is unknown
where old records were deleted meanwhile. HELD BACK are offsets that readers of committed records do not see yet; TO READ and
BEHIND are a group's lag in bytes and in time. Groups beyond the 50 that committed last are counted and not shown. A broker
that is down is shown as unreachable, and asked again. Ctrl-C ends it.

The view needs rich: pip install rich. --json does not: it prints one line for each look.

examples:
  brokerd top
  brokerd top --interval-ms 500 --bootstrap-server broker.example:9192
  brokerd top --once
  brokerd top --json --once
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "top",
        help="watch topics, rates, groups with their lag, and transactions",
        description="Shows topics with their rates, groups with their lag, and open transactions, and goes on until interrupted.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--interval-ms", type=int, metavar="MS", default=_INTERVAL_MS, help=f"time between two looks (default: {_INTERVAL_MS})"
    )
    parser.add_argument("--once", action="store_true", help="look twice, for the rates, print that and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line for each look")
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Watches until interrupted. Raises BrokerdError, UsageError."""
    from brokerd.cli.top_watch import Watch, look
    from brokerd.client.blocking import BlockingClient
    from brokerd.clock import SystemClock

    if not _INTERVAL_MIN_MS <= args.interval_ms <= _INTERVAL_MAX_MS:
        raise usage_error(args, f"--interval-ms must be between {_INTERVAL_MIN_MS} and {_INTERVAL_MAX_MS}, not {args.interval_ms}")
    if not (args.once or args.json or sys.stdout.isatty()):
        raise usage_error(args, "standard output is no terminal: give --once or --json")
    if not args.json:
        _require_rich()
    config = hasty(client_config(args, ClientConfig))
    config = replace(config, api_timeout_ms=min(config.api_timeout_ms, _API_TIMEOUT_MS))
    clock = SystemClock()
    with BlockingClient(config) as client, _quiet_client(), _Pause() as pause:
        watch = Watch(lambda: look(client, clock), clock)
        if args.once:
            client.server_info()  # a broker that is down is an error here
            _show_once(args, watch, pause)
        elif args.json:
            _print_lines(args, watch, pause)
        else:
            _show(args, watch, pause)
    return 0


def _show_once(args: argparse.Namespace, watch: Watch, pause: _Pause) -> None:
    watch.next_screen()
    pause.wait(args.interval_ms)
    screen = watch.next_screen()
    if args.json:
        _print_json(screen)
        return
    from rich.console import Console

    from brokerd.cli.top_view import drawn

    console = Console()
    height = console.height if console.is_terminal else sys.maxsize
    console.print(drawn(screen, args.bootstrap_server, width=console.width, height=height))


def _print_lines(args: argparse.Namespace, watch: Watch, pause: _Pause) -> None:
    while True:
        _print_json(watch.next_screen())
        pause.wait(args.interval_ms)


def _show(args: argparse.Namespace, watch: Watch, pause: _Pause) -> None:
    """Draws in place until Ctrl-C or SIGTERM, and leaves the terminal as it was."""
    from rich.console import Console
    from rich.live import Live

    from brokerd.cli.top_view import drawn

    console = Console()
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                screen = watch.next_screen()
                is_resized = True
                while is_resized:
                    live.update(drawn(screen, args.bootstrap_server, width=console.width, height=console.height), refresh=True)
                    is_resized = pause.wait(args.interval_ms)
    finally:
        signal.signal(signal.SIGTERM, terminate)


def _print_json(screen: Screen) -> None:
    from brokerd.cli.top_model import document

    print(json.dumps(document(screen), ensure_ascii=False), flush=True)


def _require_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError:
        raise ConfigError("the view needs rich: pip install rich, or use --json") from None


class _Pause:
    """A wait that ends early if the terminal is resized; a signal's handler may do no more than write to a pipe."""

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.signal(signal.SIGWINCH, self._on_resize)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, interval_ms: int) -> bool:
        """Waits; True if it ended early."""
        readable, _, _ = select.select([self._read], [], [], interval_ms / 1_000)
        if readable:
            os.read(self._read, 4_096)
        return bool(readable)

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")


@contextlib.contextmanager
def _quiet_client() -> Iterator[None]:
    """Keeps the client's warnings off the screen, which shows what they say."""
    quiet = logging.NullHandler()
    client_logger = logging.getLogger("brokerd")
    client_logger.addHandler(quiet)
    try:
        yield
    finally:
        client_logger.removeHandler(quiet)
