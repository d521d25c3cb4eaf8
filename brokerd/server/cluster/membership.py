"""This node's membership: its registration, under a lease that is kept alive, and the image of the cluster as the store tells it.

A lost lease ends the registration, so the node registers anew and gets a higher node epoch; whether its partitions have another
leader by then, the image says. So does a registration that somebody has deleted or replaced. An outage of the store ends nothing
here: the image stays as it was. A store that has gone back is believed, and ends this life.
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

LEASE_S = 9  # the default: so long after its end a node that was killed is taken for dead
_RETRY_S = 1.0
_ATTEMPTS = 5  # to draw the cluster's id


async def cluster_identity(client: CoordinationClient, keys: Keys, name: str, *, is_new: bool) -> ClusterIdentity:
    """The cluster's identity. It is drawn if the store knows none and `is_new`: this node's directory is not in use yet. Raises
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
            await asyncio.sleep(_RETRY_S)  # the next read tells
    if found.value == drawn.encode():
        logger.warning("founded the new cluster '%s' (id %s): etcd knew none of this name", name, drawn)
    return ClusterIdentity(name, found.value.decode(errors="replace"))


def check_own(found: KeyValue, node_id: int, directory_id: str, lease_s: int) -> None:
    """Checks that a registration under this node's id is of this directory. Raises CoordinationError."""
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
    """The comparison that the cluster's feature level is one that this version knows. Raises CoordinationError if it is not."""
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
        self.last_life: Life | None = None  # as which it goes on copying while the store is silent: nobody has heard of another
        self.revision = 0  # of the store, that the image has reached
        self.generation = 0  # counts the changes of image and life
        self._has_gone_back = False  # and this node has not begun anew
        self.on_gone_back: Callable[[], object] = lambda: None  # called with the image of a store that has gone back
        self.partition_changes = 0  # counts those of partitions' entries, elections among them
        self._client = client
        self._cluster_id = cluster_id
        self._registration = registration
        self._lease: Lease | None = None
        self._known: dict[str, KeyValue] = {}  # what the image was made of
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Registers this node, and lets the image follow; it has this node on return. Raises CoordinationError, also if the node
        id is in use, or if the others could not read the registration."""
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
        """Ends the registration at once, so that nobody waits for its lease, and the image stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._became(None)
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(CoordinationError):  # it ends by itself
                await lease.revoke()

    @property
    def is_registered(self) -> bool:
        """True while others take this node for alive, as far as it can know."""
        return self.life is not None and self._lease is not None and not self._lease.is_over

    @property
    def directory_id(self) -> str:
        """The id of this node's data directory."""
        return self._registration.directory_id

    async def publish_auth(self, auth: str) -> None:
        """Tells the others the hash of another auth file. If the store does not take it, the next `publish_refusals` tells it."""
        self._registration = self._registration._replace(auth=auth)
        try:
            await self._publish()
        except CoordinationError as error:
            logger.warning("%s: other nodes do not know of this node's new auth.file yet", error)

    async def publish_refusals(self, refuses: bool) -> None:
        """Tells the others whether this node's disk refuses appends, and what else of its registration they do not know yet. Raises
        CoordinationError."""
        self._registration = self._registration._replace(refuses=refuses)
        known = self.image.nodes.get(self.node_id)
        if known is not None and known.registration != self._registration:
            await self._publish()

    async def _publish(self) -> None:
        key = self.image.keys.node(self.node_id)
        if self._lease is not None and not self._lease.lost.is_set() and key in self._known:  # else it may be another's
            entry = {key: encode(self._registration)}
            await self._client.transact({key: self._known[key].mod_revision}, entry, lease_id=self._lease.id)

    @property
    def lease_id(self) -> int:
        """The lease of keys that go with this node."""
        return self._lease.id if self._lease is not None else 0

    async def after(self, generation: int) -> int:
        """Returns the generation, once it is above `generation`."""
        async with self._changed:
            while self.generation <= generation:
                await self._changed.wait()
        return self.generation

    async def until(self, revision: int) -> None:
        """Returns once the image has reached a revision of the store."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.revision >= revision)

    async def look_again(self) -> None:
        """Lets everybody act on the image as on a change of it."""
        async with self._changed:
            self.generation += 1
            self._changed.notify_all()

    async def _register(self) -> None:
        """Writes the registration. An earlier one of the same directory is another life of this node, which has ended: this one
        holds the directory's lock.
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
        """The comparison that the store still is this cluster's. Raises CoordinationError if it is not: a store that was emptied
        takes nobody's registration, or a new node would draw another cluster id beside it."""
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
            with contextlib.suppress(CoordinationError):  # it ends by itself, if it has not
                await self._lease.revoke()
            await asyncio.sleep(_RETRY_S)  # somebody else may be deleting it, again and again
            told = ""
            while self.life is None:
                try:
                    await self._register()
                except CoordinationError as error:
                    if error.message != told:  # an outage may last
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
        """Lets the image follow. False if this is not the cluster's store, but one that was emptied: the image stays as it is, and
        the next registration says so."""
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
        """Ends this life: the store has gone back, and may give out its numbers again."""
        logger.error(
            "etcd has gone back to revision %d: it was restored from a backup, or has lost its last changes; see docs/cluster.md; "
            "node %d begins anew, as after a restart",
            *(revision, self.node_id),
        )
        if self._lease is not None:
            self._lease.lost.set()
        self.on_gone_back()
        self._client.believe(revision)
        self._has_gone_back = False  # last: what fails before is done again

    def _is_contradicted(self, item: KeyValue) -> bool:
        """True if what is known of a key is newer, or another change of the same number: a store that has gone back may have passed
        the number of changes that it had."""
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
        """Takes the lease for lost if the store has no longer what was registered under it."""
        if self.life is not None and self.revision >= self.life.node_epoch:
            known = self.image.nodes.get(self.node_id)
            registered = (self.life.node_epoch, _lasting(self._registration))
            found = (known.epoch, _lasting(known.registration)) if known is not None else None
            # It registered while the controller raised the level. A level that no node knows is somebody's mistake.
            known_levels = (node.registration.feature_level for node in self.image.nodes.values())
            is_too_old = FEATURE_LEVEL < self.image.feature_level <= max(known_levels, default=0)
            if self._lease is not None and (found != registered or is_too_old):
                self._lease.lost.set()

    def _apply(self, events: Iterable[KeyValue | str]) -> None:
        """Keys put, and the names of keys that are gone."""
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
    """Without what may change, and be on its way."""
    return registration._replace(auth="", refuses=False)


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Begins `work` anew when it fails in a way that nobody expects: without it, the node would know an old cluster for ever."""
    while True:
        try:
            await work()
        except Exception as error:
            internal(work.__qualname__, error)
            await asyncio.sleep(_RETRY_S)
