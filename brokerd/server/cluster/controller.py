"""The controller: the one node that holds the elections. It is whichever node holds the key, under its lease.

It holds nothing that the keys do not say. Each election compares the entry that it rests on, so a node that still takes itself for
the controller does no harm.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from brokerd.cluster.changes import OPERATIONS_MAX
from brokerd.cluster.election import elections
from brokerd.cluster.keys import encode
from brokerd.coordination.client import CoordinationClient
from brokerd.errors import CoordinationError
from brokerd.ids import NO_LEADER
from brokerd.server.cluster.membership import Membership

logger = logging.getLogger(__name__)
_RETRY_S = 1.0
# Elections in one transaction. If an entry has changed meanwhile, all of them are decided anew, so they are fewer than may be.
_AT_ONCE = OPERATIONS_MAX // 4


class Controller:
    """Takes the key when nobody holds it, and holds the elections while this node does."""

    def __init__(self, client: CoordinationClient, membership: Membership) -> None:
        self._client = client
        self._membership = membership

    async def run(self) -> None:
        """Acts on each change of the image, until cancelled."""
        generation = 0
        while True:
            generation = await self._membership.after(generation)
            try:
                await self._act()
            except CoordinationError as error:
                logger.warning("%s: elections wait", error)
                await asyncio.sleep(_RETRY_S)
                generation = 0  # what was not done is due without a change

    async def _act(self) -> None:
        membership, image = self._membership, self._membership.image
        if membership.life is None:
            return
        if image.controller == NO_LEADER:
            key, value = image.keys.controller, str(membership.node_id).encode()
            await self._client.transact({key: 0}, {key: value}, lease_id=membership.lease_id)
        elif image.controller == membership.node_id:
            due = [(image.keys.partition(tp), partition.mod_revision, encode(entry)) for tp, partition, entry in elections(image)]
            for at in itertools.count(0, _AT_ONCE):
                some = due[at : at + _AT_ONCE]
                if not some:
                    return
                compares = {key: revision for key, revision, _ in some}
                if await self._client.transact(compares, {key: value for key, _, value in some}) is not None:
                    logger.info("%d elections held", len(some))
