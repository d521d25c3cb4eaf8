"""How many files and connections the process may have open, and what of the settings fits into that. The decision is pure."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import resource

from brokerd.config.broker import BrokerConfig

logger = logging.getLogger(__name__)

RESERVED = 256  # listeners, the metrics port, event loop, threads at work on directories, libraries
_SHARE = 4  # at least a fourth of the limit is for log files, however many connections are allowed


def raise_limit() -> int:
    """Raises the soft limit of open files to the hard one, as a daemon may: shells have 1,024. The limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # an unlimited hard one is refused by some systems
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**31 - 1


def fitted(config: BrokerConfig, limit: int) -> BrokerConfig:
    """The settings with fewer open log files and connections, if those of the settings do not fit into `limit`."""
    wanted = config.max_connections + config.log_max_open_files + RESERVED
    if wanted <= limit:
        return config
    room = max(limit - RESERVED, 32)
    files = min(config.log_max_open_files, max(room - config.max_connections, room // _SHARE))
    connections = min(config.max_connections, room - files)
    logger.warning(
        "max.connections (%d) and log.max.open.files (%d) want %d open files, but the process may have %d (RLIMIT_NOFILE): %d log "
        "files are kept open and %d connections taken; raise the limit (LimitNOFILE= of a unit, ulimit -n), or lower the settings",
        config.max_connections,
        config.log_max_open_files,
        wanted,
        limit,
        files,
        connections,
    )
    return dataclasses.replace(config, log_max_open_files=files, max_connections=connections)
