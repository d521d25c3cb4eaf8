"""This node's membership: its registration under a lease, and the image of the cluster, which follows the store.

A lost lease ends the registration, and so does a registration that somebody has deleted or replaced. The node then registers again
with a higher node epoch; the image shows whether its partitions have new leaders by then. An outage of the store leaves the image
as it was. A store that was rolled back is accepted, and ends this life of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable

from brokerd.cluster.assignments import Life
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import FEATURE_LEVEL, EntryError, Keys, Registration, decode_registration, encode, level_of
from brokerd.coordination.client import Changes, CoordinationClient, KeyValue, Lease, Snapshot, grant, watch
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.errors import CoordinationError
from brokerd.server.failures import internal

logger = logging.getLogger(__name__)

LEASE_S = 9  # the default: a killed node counts as dead after this time
_RETRY_S = 1.0
_ATTEMPTS = 5  # to write the cluster's id


async def cluster_identity(client: CoordinationClient, keys: Keys, name: str, *, is_new: bool) -> ClusterIdentity:
    """The cluster's identity, generated if the store has none and `is_new`: this node's directory is not in use yet. Raises
    CoordinationError.
    """
    drawn, attempts = str(uuid.uuid4()), 0
    while (found := await client.get(keys.cluster_id)) is None:
        if not is_new:
            raise CoordinationError(
                f"etcd knows no cluster '{name}', but this node's data directory is in use: check coordination and cluster.name, "
                "or restore etcd's backup; nothing was changed"
            )
        try:
            await client.transact({keys.cluster_id: 0}, {keys.cluster_id: drawn.encode()})
        except CoordinationError as error:
            attempts += 1
            if not error.is_fate_unknown or attempts == _ATTEMPTS:
                raise
            await asyncio.sleep(_RETRY_S)  # the next read shows the outcome
    if found.value == drawn.encode():
        logger.warning("founded the new cluster '%s' (id %s): etcd knew none of this name", name, drawn)
    return ClusterIdentity(name, found.value.decode(errors="replace"))


def check_own(found: KeyValue, node_id: int, directory_id: str, lease_s: int) -> None:
    """Checks that a registration under this node's id belongs to this directory. Raises CoordinationError."""
    try:
        other = decode_registration(found.value)
    except EntryError as error:
        raise CoordinationError(f"etcd's key {found.key} cannot be read: {error}") from None
    if other.directory_id != directory_id:
        raise CoordinationError(
            f"node id {node_id} is in use by {other.host}:{other.port}, with another data directory: set another node.id; if that "
            f"node has ended, wait {lease_s} s"
        )


async def known_level(client: CoordinationClient, keys: Keys) -> dict[str, int]:
    """Checks that this version knows the cluster's feature level; returns a comparison for it. Raises CoordinationError."""
    found = await client.get(keys.feature_level)
    try:
        level = level_of(found.value) if found is not None else 1
    except EntryError as error:
        text = f"etcd's key {keys.feature_level} cannot be read: {error}; write the level that the controller logged last, or 1"
        raise CoordinationError(text) from None
    if level > FEATURE_LEVEL:
        raise CoordinationError(
            f"the cluster's feature level is {level}, and this version of brokerd knows none above {FEATURE_LEVEL}: start the "
            f"version that the other nodes run; if none knows it, etcd's key {keys.feature_level} is wrong; nothing was changed"
        )
    return {keys.feature_level: found.mod_revision if found is not None else 0}


class Membership:
    """See the module docstring."""

    def __init__(
        self,
        client: CoordinationClient,
        keys: Keys,
        cluster_id: str,
        node_id: int,
        registration: Registration,
        lease_s: int = LEASE_S,
    ) -> None:
        self._lease_s = lease_s
        self.image = ClusterImage(keys)
        self.node_id = node_id
        self.life: Life | None = None  # None while this node is not registered
        self.last_life: Life | None = None  # copying continues under it during an outage: no node knows a later life
        self.revision = 0  # of the store, reached by the image
        self.generation = 0  # counts the changes of image and life
        self._has_gone_back = False  # a rollback was seen, and _begin_anew() has not completed
        self.on_gone_back: Callable[[], object] = lambda: None  # called once the image is that of a rolled-back store
        self.partition_changes = 0  # counts changes of partitions' entries, elections included
        self._client = client
        self._cluster_id = cluster_id
        self._registration = registration
        self._lease: Lease | None = None
        self._known: dict[str, KeyValue] = {}  # the keys that the image was built from
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Registers this node and starts to follow the store. On return the image has this node. Raises CoordinationError, also if
        the node id is in use, or if other nodes could not read the registration."""
        try:
            decode_registration(encode(self._registration))
        except EntryError as problem:
            text = f"this node cannot be registered: {problem}; check advertised.host, host and broker.rack"
            raise CoordinationError(text) from None
        await self._register()
        self._tasks = [asyncio.create_task(for_ever(each)) for each in (self._stay_registered, self._follow)]
        while self.node_id not in self.image.nodes:
            await self.after(self.generation)

    async def stop(self) -> None:
        """Ends the registration at once, so that other nodes need not wait for the lease. The image stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._became(None)
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(CoordinationError):  # it expires by itself
                await lease.revoke()

    @property
    def is_registered(self) -> bool:
        """True while other nodes consider this node alive, as far as it can know."""
        return self.life is not None and self._lease is not None and not self._lease.is_over

    @property
    def directory_id(self) -> str:
        """The id of this node's data directory."""
        return self._registration.directory_id

    async def publish_auth(self, auth: str) -> None:
        """Publishes the hash of a new auth file. If the write fails, the next `publish_refusals` repeats it."""
        self._registration = self._registration._replace(auth=auth)
        try:
            await self._publish()
        except CoordinationError as error:
            logger.warning("%s: other nodes do not know of this node's new auth.file yet", error)

    async def publish_refusals(self, refuses: bool) -> None:
        """Publishes whether this node's disk refuses appends, with any other unpublished change of the registration. Raises
        CoordinationError."""
        self._registration = self._registration._replace(refuses=refuses)
        known = self.image.nodes.get(self.node_id)
        if known is not None and known.registration != self._registration:
            await self._publish()

    async def _publish(self) -> None:
        key = self.image.keys.node(self.node_id)
        if self._lease is not None and not self._lease.lost.is_set() and key in self._known:  # else the key may be another node's
            entry = {key: encode(self._registration)}
            await self._client.transact({key: self._known[key].mod_revision}, entry, lease_id=self._lease.id)

    @property
    def lease_id(self) -> int:
        """The lease for keys that end with this node's registration; 0 if there is none."""
        return self._lease.id if self._lease is not None else 0

    async def after(self, generation: int) -> int:
        """Waits until the generation is above `generation`, and returns it."""
        async with self._changed:
            while self.generation <= generation:
                await self._changed.wait()
        return self.generation

    async def until(self, revision: int) -> None:
        """Waits until the image has reached a revision of the store."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.revision >= revision)

    async def look_again(self) -> None:
        """Wakes all waiters as if the image had changed."""
        async with self._changed:
            self.generation += 1
            self._changed.notify_all()

    async def _register(self) -> None:
        """Writes the registration, and replaces an earlier one of the same directory. That life has ended, since this process holds
        the directory's lock.
        """
        client, key = self._client, self.image.keys.node(self.node_id)
        lease = await grant(client, self._lease_s)
        try:
            while True:
                compares = {key: 0, **await self._of_this_cluster(), **await known_level(client, self.image.keys)}
                revision = await client.transact(compares, {key: encode(self._registration)}, lease_id=lease.id)
                if revision is not None:
                    break
                found = await client.get(key)
                if found is not None:
                    check_own(found, self.node_id, self._registration.directory_id, self._lease_s)
                    await client.transact({key: found.mod_revision}, {}, [key])
        except BaseException:
            with contextlib.suppress(CoordinationError):
                await lease.revoke()
            raise
        self._lease = lease
        await self._became(Life(self.node_id, revision, self._registration.directory_id))

    async def _of_this_cluster(self) -> dict[str, int]:
        """The comparison that the store still holds this cluster. Raises CoordinationError if it does not: nodes must not
        register in an emptied store, where a new node would generate another cluster id."""
        found = await self._client.get(self.image.keys.cluster_id)
        if found is None or not self._is_own_id(found.value):
            raise CoordinationError(
                "etcd does not hold this cluster any more: check coordination.servers, or restore etcd's backup; nothing was "
                "changed"
            )
        return {found.key: found.mod_revision}

    async def _became(self, life: Life | None) -> None:
        async with self._changed:
            self.life, self.last_life = life, life or self.last_life
            self._check_registered()
            self.generation += 1
            self._changed.notify_all()

    async def _stay_registered(self) -> None:
        while True:
            assert self._lease is not None
            await self._lease.lost.wait()
            logger.warning("the registration of node %d ended: registering it anew", self.node_id)
            await self._became(None)
            with contextlib.suppress(CoordinationError):  # it expires by itself
                await self._lease.revoke()
            await asyncio.sleep(_RETRY_S)  # somebody else may be deleting it repeatedly
            told = ""
            while self.life is None:
                try:
                    await self._register()
                except CoordinationError as error:
                    if error.message != told:  # a long outage is logged once
                        told = error.message
                        logger.warning("%s: retrying", told)
                    await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> None:
        while True:
            async with contextlib.aclosing(watch(self._client, self.image.keys.prefix)) as changes:
                async for found in changes:
                    if not await self._take(found):
                        break
            await asyncio.sleep(_RETRY_S)

    async def _take(self, found: Snapshot | Changes) -> bool:
        """Applies what the watch found to the image. False if the store no longer holds this cluster, such as an emptied one: the
        image stays as it is, and the next registration reports it."""
        async with self._changed:
            if not self._is_this_clusters(found):
                if self._lease is not None:
                    self._lease.lost.set()
                return False
            if isinstance(found, Changes):
                self._apply(found.events)
            else:
                self._has_gone_back |= found.has_gone_back or any(map(self._is_contradicted, found.items))
                self._apply([*(self._known.keys() - {item.key for item in found.items}), *found.items])
                if self._has_gone_back:
                    self._begin_anew(found.revision)
                self._client.has_reached(found.revision)
            self.revision = found.revision
            self._check_registered()
            self.generation += 1
            self._changed.notify_all()
            return True

    def _begin_anew(self, revision: int) -> None:
        """Ends this life: a store that was rolled back may reuse its revisions."""
        logger.error(
            "etcd has gone back to revision %d: it was restored from a backup, or has lost its last changes; see docs/cluster.md; "
            "node %d begins anew, as after a restart",
            *(revision, self.node_id),
        )
        if self._lease is not None:
            self._lease.lost.set()
        self.on_gone_back()
        self._client.believe(revision)
        self._has_gone_back = False  # last: a failure above is retried

    def _is_contradicted(self, item: KeyValue) -> bool:
        """True if the known version of a key is newer, or differs at the same revision. A store that was rolled back may have
        passed its earlier revision, so that its revision alone does not show the rollback."""
        known = self._known.get(item.key)
        return known is not None and item.mod_revision <= known.mod_revision and item != known

    def _is_this_clusters(self, found: Snapshot | Changes) -> bool:
        if isinstance(found, Snapshot):
            return any(one.key == self.image.keys.cluster_id and self._is_own_id(one.value) for one in found.items)
        if self.image.keys.cluster_id in found.events:
            return False  # deleted
        puts = [one for one in found.events if isinstance(one, KeyValue) and one.key == self.image.keys.cluster_id]
        return all(self._is_own_id(one.value) for one in puts)

    def _is_own_id(self, value: bytes) -> bool:
        return value.decode(errors="replace") == self._cluster_id

    def _check_registered(self) -> None:
        """Marks the lease as lost if the store no longer has the registration that was written under it."""
        if self.life is not None and self.revision >= self.life.node_epoch:
            known = self.image.nodes.get(self.node_id)
            registered = (self.life.node_epoch, _lasting(self._registration))
            found = (known.epoch, _lasting(known.registration)) if known is not None else None
            # The controller raised the level while this node registered. A level that no node knows is a mistake, and is ignored.
            known_levels = (node.registration.feature_level for node in self.image.nodes.values())
            is_too_old = FEATURE_LEVEL < self.image.feature_level <= max(known_levels, default=0)
            if self._lease is not None and (found != registered or is_too_old):
                self._lease.lost.set()

    def _apply(self, events: Iterable[KeyValue | str]) -> None:
        """Applies keys that were put, and the names of deleted keys."""
        for event in events:
            if isinstance(event, str):
                self._known.pop(event, None)
                self.image.delete(event)
            else:
                self._put(event)

    def _put(self, item: KeyValue) -> None:
        if self._known.get(item.key) != item:
            self._known[item.key] = item
            self.partition_changes += self.image.keys.split(item.key)[:1] == ("partitions",)
            self.image.put(*item)
            if item.key in self.image.problems:
                logger.error("etcd's key %s cannot be read: %s", item.key, self.image.problems[item.key])


def _lasting(registration: Registration) -> Registration:
    """A registration without the fields that may change during it, whose update may still be under way."""
    return registration._replace(auth="", refuses=False)


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Restarts `work` after an unexpected exception. Without a restart the node would keep a stale image of the cluster."""
    while True:
        try:
            await work()
        except Exception as error:
            internal(work.__qualname__, error)
            await asyncio.sleep(_RETRY_S)
