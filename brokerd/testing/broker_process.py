"""The broker's own process: the daemon as `brokerd start` runs it, but for faults in its files and calls, and for who tells it to
stop: its keeper does, over a socket.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from brokerd.allocator import keep_freed_memory
from brokerd.config.broker import BrokerConfig
from brokerd.errors import BrokerdError
from brokerd.server.daemon import Daemon
from brokerd.server.logs import set_up_logging
from brokerd.storage.files import RealFiles
from brokerd.testing.channel import Channel
from brokerd.testing.failing_files import FailingDisk, FailingFiles
from brokerd.testing.faults import KILL, Armed, FaultPlan
from brokerd.testing.watched_calls import WatchedCalls


def serve(keeper: Channel, config: BrokerConfig, armed: Sequence[dict[str, Any]], disk: FailingDisk) -> None:
    """Runs the broker until the keeper says so. `armed`: the faults that wait for their requests."""
    set_up_logging(level=config.log_level, log_format=config.log_format)
    keep_freed_memory()
    try:
        asyncio.run(_Process(keeper, armed, disk).run(config))
    except BrokerdError as error:
        keeper.send({"failed": error.message})


class _Process:
    def __init__(self, keeper: Channel, armed: Sequence[dict[str, Any]], disk: FailingDisk) -> None:
        self._keeper = keeper
        self._plan = FaultPlan(Armed(**one) for one in armed)
        self._disk = disk
        self._stop = asyncio.Event()

    async def run(self, config: BrokerConfig) -> None:
        """From start to stop. Raises BrokerdError if it cannot start."""
        files = FailingFiles(RealFiles(config.data_dir), self._disk)
        daemon = Daemon(config, files=files, interceptors=(WatchedCalls(self._plan, self._happen),))
        await daemon.start()
        asyncio.get_running_loop().add_reader(self._keeper.socket, self._hear)
        self._keeper.send({"ready": daemon.port})
        await self._stop.wait()
        await daemon.stop()

    def _hear(self) -> None:
        try:
            head = self._keeper.receive().head
        except EOFError:
            os._exit(1)
        if head["do"] == "stop":
            asyncio.get_running_loop().remove_reader(self._keeper.socket)
            self._stop.set()
            return
        if head["do"] == "arm":
            self._plan.arm(Armed(**head["fault"]))
        elif head["do"] == "disk":
            self._disk.fail(head["how"])
        self._keeper.send({"done": True})

    def _happen(self, fault: Armed) -> None:
        """Tells the keeper that a fault has counted a request, and then ends the process if that is the fault."""
        self._keeper.send({"number": fault.number, "left": fault.left})
        if fault.kind == KILL and not fault.left:
            os.kill(os.getpid(), signal.SIGKILL)
