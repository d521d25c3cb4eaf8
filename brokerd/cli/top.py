"""`brokerd top`: samples the topics, groups and transactions of a broker repeatedly. top_model.py computes, top_view.py draws."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, Self

from brokerd.cli.parser import client_config, connect, usage_error
from brokerd.cli.top_model import Look, Screen, document, tables_of
from brokerd.client.blocking import BlockingClient
from brokerd.client.transactions import state_name
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import BrokerdError, ConfigError, UnknownGroupError, WireError

GROUPS_MAX = 50  # each costs a call
_INTERVAL_MIN_MS = 100
_INTERVAL_MAX_MS = 3_600_000
_API_TIMEOUT_MS = 3_000  # short, to show "unreachable" soon


def run(args: argparse.Namespace) -> None:
    """Watches until interrupted. Raises BrokerdError, UsageError."""
    if not _INTERVAL_MIN_MS <= args.interval_ms <= _INTERVAL_MAX_MS:
        raise usage_error(args, f"--interval-ms must be between {_INTERVAL_MIN_MS} and {_INTERVAL_MAX_MS}, not {args.interval_ms}")
    if not (args.once or args.json or sys.stdout.isatty()):
        raise usage_error(args, "standard output is no terminal: give --once or --json")
    if not args.json:
        _require_rich()
    config = client_config(args, ClientConfig)
    config = replace(config, api_timeout_ms=min(config.api_timeout_ms, _API_TIMEOUT_MS))
    clock = SystemClock()
    with connect(args, config) as client, _quiet_client(), _Pause() as pause:
        watch = Watch(lambda: look(client, clock), clock)
        if args.once:
            client.server_info()  # a broker that is down is an error here
            _show_once(args, watch, pause)
        elif args.json:
            _print_lines(args, watch, pause)
        else:
            _show(args, watch, pause)


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
    """Redraws in place until Ctrl-C or SIGTERM, then restores the terminal."""
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
    print(json.dumps(document(screen), ensure_ascii=False), flush=True)


def _require_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError:
        raise ConfigError("the view needs rich: pip install rich, or use --json") from None


def look(client: BlockingClient, clock: Clock) -> Look:
    """Takes a sample of the broker. Raises BrokerdError."""
    server = client.server_info()
    topics = tuple(one for one in client.describe_topics().values() if not isinstance(one, WireError))
    listed = sorted(client.list_groups(), key=lambda one: -one.commit_timestamp)
    groups = []
    for listing in listed[:GROUPS_MAX]:
        try:
            groups.append(client.describe_group(listing.group_id))
        except UnknownGroupError:
            continue  # deleted since it was listed
    transactions = tuple(one for one in client.list_transactions() if state_name(one.state) != "empty")
    return Look(
        monotonic_ms=clock.monotonic_ms(),
        wall_ms=clock.wall_ms(),
        version=server.software_version,
        cluster_id=server.cluster_id,
        topics=topics,
        groups=tuple(groups),
        group_count=len(listed),
        transactions=transactions,
    )


class Watch:
    """Turns samples into screens."""

    def __init__(self, take: Callable[[], Look], clock: Clock) -> None:
        self._take = take
        self._clock = clock
        self._before: Look | None = None
        self._tables: dict[str, Any] = {}
        self._unreachable_since_ms: int | None = None

    def next_screen(self) -> Screen:
        """Takes one sample. After a failure the screen keeps the last answers, shows the broker as unreachable since its first
        failure, and computes rates anew."""
        began_ms = self._clock.wall_ms()
        try:
            now = self._take()
        except BrokerdError as error:
            self._before = None
            if self._unreachable_since_ms is None:
                self._unreachable_since_ms = began_ms
            return Screen(self._tables, self._clock.wall_ms(), self._unreachable_since_ms, error.message)
        self._tables = tables_of(self._before, now)
        self._before, self._unreachable_since_ms = now, None
        return Screen(self._tables, self._clock.wall_ms())


class _Pause:
    """A wait that ends early if the terminal is resized. The signal handler only writes to a pipe."""

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
        """Waits; returns True if the terminal was resized."""
        readable, _, _ = select.select([self._read], [], [], interval_ms / 1_000)
        if readable:
            os.read(self._read, 4_096)
        return bool(readable)

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")


@contextlib.contextmanager
def _quiet_client() -> Iterator[None]:
    """Keeps the client's warnings off the screen, which shows the same problems."""
    quiet = logging.NullHandler()
    client_logger = logging.getLogger("brokerd")
    client_logger.addHandler(quiet)
    try:
        yield
    finally:
        client_logger.removeHandler(quiet)
