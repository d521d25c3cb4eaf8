"""Limits of open files and connections of the process, and settings that fit into them. The decision is pure."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import resource

from brokerd.config.broker import BrokerConfig

logger = logging.getLogger(__name__)

RESERVED = 256  # for listeners, the metrics port, the event loop, threads working on directories, libraries
_SHARE = 4  # log files get at least a quarter of the limit, however many connections are allowed


def raise_limit() -> int:
    """Raises the soft limit of open files to the hard limit, since shells start with 1,024. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems refuse a hard limit of infinity
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**31 - 1


def fitted(config: BrokerConfig, limit: int) -> BrokerConfig:
    """`config`, with fewer open log files and connections if they do not fit into `limit`."""
    wanted = config.max_connections + config.log_max_open_files + RESERVED
    if wanted <= limit:
        return config
    room = max(limit - RESERVED, 32)
    files = min(config.log_max_open_files, max(room - config.max_connections, room // _SHARE))
    connections = min(config.max_connections, room - files)
    logger.warning(
        "max.connections (%d) and log.max.open.files (%d) need %d open files, but the process may have %d (RLIMIT_NOFILE): using "
        "%d log files and %d connections; raise the limit (LimitNOFILE= of a unit, ulimit -n), or lower the settings",
        config.max_connections,
        config.log_max_open_files,
        wanted,
        limit,
        files,
        connections,
    )
    return dataclasses.replace(config, log_max_open_files=files, max_connections=connections)
