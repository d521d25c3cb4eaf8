"""The hello fence: once an instance has said hello with a higher incarnation, nothing of its older streams is processed.

Without it a retry on a new stream overtakes what the old one still holds: the retry is appended, then the old copy comes,
and a client that has re-sequenced in between has its records twice. Pure; `now_ms` is monotonic.
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.errors import InvalidRequestError, ResourceExhaustedError

REMEMBERED_MS = 600_000
_SWEEP_AT_MOST = 100
_RETRY_AFTER_MS = 1_000


class _Instance:
    __slots__ = ("incarnation", "open_streams", "silent_since_ms")

    def __init__(self) -> None:
        self.incarnation = 0
        self.open_streams = 0
        self.silent_since_ms = 0


class InstanceFence:
    """The highest incarnation of each producer instance, remembered until ten minutes past its last stream."""

    def __init__(self, *, max_instances: int) -> None:
        self._max_instances = max_instances
        self._open: dict[bytes, _Instance] = {}
        self._silent: OrderedDict[bytes, _Instance] = OrderedDict()  # in order of their last stream's end

    def __len__(self) -> int:
        """How many instances are remembered."""
        return len(self._open) + len(self._silent)

    def hello(self, instance_id: bytes, incarnation: int, *, now_ms: int) -> None:
        """A stream begins. Raises InvalidRequestError if its incarnation is not above all earlier ones of the instance,
        ResourceExhaustedError if too many instances are remembered.
        """
        self._forget_silent(now_ms)
        instance = self._open.get(instance_id) or self._silent.get(instance_id)
        if instance is None:
            if len(self) >= self._max_instances:
                raise ResourceExhaustedError(
                    f"{len(self)} producer instances are remembered, as many as max.producer.instances allows: "
                    "use fewer producers, or raise it",
                    retry_after_ms=_RETRY_AFTER_MS,
                )
            instance = _Instance()
        if incarnation <= instance.incarnation:
            raise InvalidRequestError(
                f"hello.incarnation is {incarnation}, but {instance.incarnation} of this instance has been here: it must rise"
            )
        instance.incarnation = incarnation
        instance.open_streams += 1
        self._silent.pop(instance_id, None)
        self._open[instance_id] = instance

    def is_current(self, instance_id: bytes, incarnation: int) -> bool:
        """Whether no newer stream of the instance has said hello."""
        instance = self._open.get(instance_id)
        return instance is not None and instance.incarnation == incarnation

    def goodbye(self, instance_id: bytes, *, now_ms: int) -> None:
        """A stream that said hello has ended."""
        instance = self._open[instance_id]
        instance.open_streams -= 1
        if instance.open_streams == 0:
            del self._open[instance_id]
            instance.silent_since_ms = now_ms
            self._silent[instance_id] = instance

    def _forget_silent(self, now_ms: int) -> None:
        for _ in range(_SWEEP_AT_MOST):  # a few at each hello: never one long sweep
            first = next(iter(self._silent.items()), None)
            if first is None or first[1].silent_since_ms + REMEMBERED_MS > now_ms:
                return
            del self._silent[first[0]]
