"""The hello fence: once a producer instance has said hello with a higher incarnation, requests on its older streams are no longer
processed.

Without the fence, a retry on a new stream could overtake requests left in the old stream: the retry is appended, then the old copy
arrives, and records that the client has re-sequenced in between are appended twice. Pure; `now_ms` is monotonic.

Instances are kept by principal: no principal can fence another's, or fill the table (Shares).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from brokerd.errors import InvalidRequestError, ResourceExhaustedError
from brokerd.sharing import Shares

REMEMBERED_MS = 600_000
_SWEEP_AT_MOST = 100
_RETRY_AFTER_MS = 1_000

Key = tuple[str, bytes]  # principal, instance id


@dataclass(slots=True)
class Instance:
    """One producer instance. A stream of it is valid while `incarnation` equals the stream's own."""

    key: Key
    incarnation: int = 0
    open_streams: int = 0
    silent_since_ms: int = 0


class InstanceFence:
    """The highest incarnation of each producer instance, kept until ten minutes after its last stream ended."""

    def __init__(self, *, max_instances: int) -> None:
        self._max_instances = max_instances
        self._open: dict[Key, Instance] = {}
        self._silent: OrderedDict[Key, Instance] = OrderedDict()  # by the end of their last stream, oldest first
        self._shares = Shares(max_instances)

    def __len__(self) -> int:
        """The number of remembered instances."""
        return self._shares.total

    def hello(self, principal: str, instance_id: bytes, incarnation: int, *, now_ms: int) -> Instance:
        """Registers a new stream and returns its instance. `incarnation` is at least 1. Raises InvalidRequestError if it does not
        exceed all earlier ones of the instance, ResourceExhaustedError if too many instances are remembered.
        """
        self._forget_silent(now_ms)
        key = (principal, instance_id)
        instance = self._open.get(key) or self._silent.get(key)
        if instance is None:
            self._check_room(principal)
            instance = Instance(key)
            self._shares.add(principal, 1)
        if incarnation <= instance.incarnation:
            raise InvalidRequestError(
                f"hello.incarnation is {incarnation}, but {instance.incarnation} was seen of this instance: it must increase"
            )
        instance.incarnation = incarnation
        instance.open_streams += 1
        self._silent.pop(key, None)
        self._open[key] = instance
        return instance

    def goodbye(self, instance: Instance, *, now_ms: int) -> None:
        """Handles the end of a stream that has said hello."""
        instance.open_streams -= 1
        if instance.open_streams == 0:
            del self._open[instance.key]
            instance.silent_since_ms = now_ms
            self._silent[instance.key] = instance

    def _check_room(self, principal: str) -> None:
        if not self._shares.has_room(principal, 1):
            count = self._shares.count(principal)
            raise ResourceExhaustedError(
                f"{len(self)} producer instances are remembered, {count} of them of principal '{principal}', and "
                f"max.producer.instances is {self._max_instances}: use fewer producers, or raise it",
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def _forget_silent(self, now_ms: int) -> None:
        for _ in range(_SWEEP_AT_MOST):  # a few per hello, instead of one long sweep
            key, instance = next(iter(self._silent.items()), (None, None))
            if key is None or instance is None or instance.silent_since_ms + REMEMBERED_MS > now_ms:
                return
            del self._silent[key]
            self._shares.add(key[0], -1)
