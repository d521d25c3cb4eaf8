"""`brokerd start`: runs a broker until SIGTERM or SIGINT. brokerd/server/daemon.py assembles the broker.

`brokerd cluster adopt`, with the same settings, turns a standalone node's data directory into the first node of a new cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping
from typing import NoReturn

from brokerd.allocator import keep_freed_memory
from brokerd.cli import EXIT_FAILED
from brokerd.cli.output import note, show
from brokerd.cli.parser import UsageError, pairs
from brokerd.clock import SystemClock
from brokerd.config.broker import BrokerConfig
from brokerd.config.load import ignored_variables, load_broker_config
from brokerd.errors import BrokerdError, ConfigError, DataDirectoryError, counted
from brokerd.server.cluster.adoption import adopt
from brokerd.server.cluster.node import coordination_client
from brokerd.server.daemon import Daemon, StopOverdueError, overdue, within
from brokerd.server.logs import set_up_logging
from brokerd.storage.files import RealFiles

logger = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"
# Options and the settings they set.
_SETTINGS = {
    "data_dir": "data.dir",
    "host": "host",
    "port": "port",
    "node_id": "node.id",
    "cluster": "cluster.name",
    "coordination": "coordination.servers",
}
_LAST_WORDS_S = 0.1  # for a stopped server to report its end
_WATCHDOG_MS = 200  # past the stop's own deadline


def run(args: argparse.Namespace) -> None:
    """Runs the broker until it is stopped. Raises UsageError for a wrong setting, BrokerdError if the broker fails."""
    config = broker_config(args)
    set_up_logging(level=config.log_level, log_format=config.log_format)
    for text in ignored_variables(os.environ):
        logger.warning("%s", text)
    asyncio.run(_serve(config))


def broker_config(args: argparse.Namespace) -> BrokerConfig:
    """The broker's settings from a command line; a dedicated option such as --port overrides --set. Raises UsageError."""
    given = vars(args)
    flags = {name.strip(): value.strip() for name, value in pairs(args, "--set", given.get("settings", ()))}
    flags |= {setting: given[option] for option, setting in _SETTINGS.items() if given.get(option) is not None}
    try:
        return load_broker_config(path=args.config, environ=os.environ, flags=flags)
    except ConfigError as error:
        raise UsageError(f"{args.prog}: {error.message}") from None


async def _serve(config: BrokerConfig) -> None:
    keep_freed_memory()
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def request_stop() -> None:
        stop_requested.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a second signal ends the process at once
        if daemon.has_opened_nothing:
            signal.raise_signal(signal.SIGTERM)

    daemon = Daemon(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request_stop)
    reloads: set[asyncio.Task[None]] = set()

    def request_reload() -> None:
        task = loop.create_task(_reload(daemon))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    # By default SIGHUP would end the process. There is nothing to reload before the broker serves.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    await daemon.start()
    _freeze_collector()
    loop.add_signal_handler(signal.SIGHUP, request_reload)
    with contextlib.suppress(OSError):  # a closed standard output is no reason to stop
        print(f"brokerd ready on {config.host}:{daemon.port}", flush=True)
    notify(READY)
    ended = asyncio.create_task(daemon.wait_until_ended())
    stop = asyncio.create_task(stop_requested.wait())
    await asyncio.wait((stop, ended), return_when=asyncio.FIRST_COMPLETED)
    has_failed = ended.done()
    notify(STOPPING)
    limit_ms = daemon.stop_limit_ms + _WATCHDOG_MS
    _end_at_the_latest(overdue(limit_ms, "the event loop or a thread does not respond"), limit_ms)
    try:
        await daemon.stop()
    except StopOverdueError as error:
        _end_now(error)
    await within(_LAST_WORDS_S, ended)
    stop.cancel()
    if has_failed:
        raise BrokerdError("gRPC ended its server; the log above says why")


def _freeze_collector() -> None:
    """Exempts all existing objects (code, settings, partitions) from garbage collection. A full collection blocks the event loop
    for 60 ms in an idle broker, and longer with each partition.
    """
    gc.collect()
    gc.freeze()


def _end_at_the_latest(error: BrokerdError, limit_ms: int) -> None:
    """Ends the process if it still runs after the limit, because the event loop or a thread that the interpreter joins hangs."""
    watchdog = threading.Timer(limit_ms / 1000, _end_now, (error,))
    watchdog.daemon = True
    watchdog.start()


def _end_now(error: BrokerdError) -> NoReturn:
    """Exits without waiting for threads or closing files. As after a kill, every file is intact up to its last write."""
    note(f"brokerd: {error}")
    os._exit(EXIT_FAILED)


async def _reload(daemon: Daemon) -> None:
    try:
        await daemon.reload()
    except BrokerdError as error:
        logger.error("reload failed, certificates and auth file are unchanged: %s", error.message)


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Reports the state to systemd, if NOTIFY_SOCKET names its socket; see sd_notify(3). Ignores errors, since a supervisor that
    does not listen is no reason to stop."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, contextlib.suppress(OSError):
        sender.connect(address)
        sender.sendall(state.encode())


def adopt_directory(args: argparse.Namespace) -> None:
    """Adopts the data directory, and prints how to start the node. Raises UsageError, DataDirectoryError, CoordinationError."""
    config = broker_config(args)
    if not config.cluster_name:
        raise UsageError(f"{args.prog}: --cluster must name the new cluster")
    if not os.path.isdir(config.data_dir):
        raise DataDirectoryError(f"{config.data_dir}: there is no such directory")

    async def adopted() -> int:
        client = coordination_client(config, SystemClock())
        try:
            return await adopt(config, RealFiles(config.data_dir), SystemClock(), client)
        finally:
            await client.close()

    topics = asyncio.run(adopted())
    given = f"--node-id {config.node_id} --cluster {config.cluster_name} --coordination {config.coordination_servers}"
    line = f"{config.data_dir} is a node of the new cluster, with {counted(topics, 'topic')}; start it with {given}"
    show(args, {"cluster": config.cluster_name, "node_id": config.node_id, "topics": topics}, [line])
