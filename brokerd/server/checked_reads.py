"""Reads of a leader's log that check payloads, as ordinary ones do not: for followers that are not in sync, and for clients that
were sent a batch with a wrong CRC. Damage stops the log, so that the leader hands over where another replica is in sync.
"""

from __future__ import annotations

from functools import partial

from brokerd.errors import NotLeaderError
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.partition.reader import NO_LIMIT, FetchDataInfo
from brokerd.server.limits.threads import Threads
from brokerd.sharing import Caller
from brokerd.storage.damage import DamagedRange


async def read_checked(
    readers: Threads,
    caller: Caller,
    partition: Partition,
    offset: int,
    *,
    below: LogEnd,
    max_bytes: int,
    first_batch_max_bytes: int = NO_LIMIT,
) -> FetchDataInfo:
    """As Partition.read. Raises NotLeaderError, too, if another replica leads or will lead; LogDamagedError if none is in sync."""
    epoch = partition.leader_epoch
    read = partial(partition.read_checked, offset, below=below, max_bytes=max_bytes, first_batch_max_bytes=first_batch_max_bytes)
    found = await readers.run(caller, read)
    if not isinstance(found, DamagedRange):
        return found
    if not partition.leads_in(epoch):
        raise NotLeaderError(f"{partition.name}: another node leads it meanwhile")
    raise partition.damage_found(found)
