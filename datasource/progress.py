"""Records how far a query has read as offsets of a group at the broker, so that its lag is seen where that of all readers is.

The checkpoint decides where a query goes on; the group is for whoever looks. So recording never delays a query and never fails it:
at most one request is under way, only what has changed is sent, and what goes wrong is a warning.

What is recorded is the start of the next batch: Spark asks for a batch when the one before it is done and in its checkpoint.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError

from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.groups import OffsetAndMetadata, commit_group_offsets
from brokerd.clock import Clock
from brokerd.datasource.offsets import SourceOffset
from brokerd.errors import UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition

logger = logging.getLogger(__name__)

RETRY_MS = 10_000  # how long nothing is sent after a request has failed
REFRESH_MS = 3_600_000  # how often all is sent again: the broker forgets a group that has been silent for long


class GroupProgress:
    """The positions of one query, by the process that plans its batches. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._under_way: LoopCall[dict[TopicIdPartition, WireError]] | None = None
        self._offered: dict[TopicIdPartition, int] = {}
        self._done: dict[TopicIdPartition, int] = {}  # what the broker has, or refused for good
        self._retry_at_ms: int | None = None
        self._refresh_at_ms = clock.monotonic_ms() + REFRESH_MS
        self._has_warned = False

    def __reduce__(self) -> tuple[type[GroupProgress], tuple[Clock]]:
        """Tasks get a copy of the reader, with nothing under way."""
        return GroupProgress, (self._clock,)

    def record(self, client: BlockingClient, group_id: str, position: SourceOffset) -> None:
        """Sends what has changed since the last call, if nothing is under way; returns at once and raises nothing."""
        self._settle(group_id)
        now_ms = self._clock.monotonic_ms()
        if self._under_way is not None or (self._retry_at_ms is not None and now_ms < self._retry_at_ms):
            return
        if now_ms >= self._refresh_at_ms:
            self._done, self._refresh_at_ms = {}, now_ms + REFRESH_MS
        offsets = {TopicIdPartition(position.topic_ids[tp.topic], tp.partition): at for tp, at in position.offsets.items()}
        self._offered = {tp: offset for tp, offset in offsets.items() if self._done.get(tp) != offset}
        if self._offered:
            epochs = {TopicIdPartition(position.topic_ids[tp.topic], tp.partition): one for tp, one in position.epochs.items()}
            committed = {tp: OffsetAndMetadata(at, leader_epoch_id=epochs.get(tp, 0)) for tp, at in self._offered.items()}
            self._under_way = client.loop_thread.submit(commit_group_offsets(client.broker_client, group_id, committed))

    def finish(self, client: BlockingClient, group_id: str, *, timeout_ms: int) -> None:
        """Waits for the request under way, for a query that ends; raises nothing."""
        if self._under_way is not None and not self._under_way.has_ended:
            client.loop_thread.run(self._under_way.ended(timeout_ms))
        self._settle(group_id)

    def _settle(self, group_id: str) -> None:
        """Takes the outcome of the request under way, if there is one by then."""
        under_way, offered = self._under_way, self._offered
        if under_way is None or not under_way.has_ended:
            return
        self._under_way, self._offered = None, {}
        try:
            refused = under_way.outcome()
        except CancelledError:  # an idle client was closed
            self._retry_at_ms = None
        except Exception as error:  # whatever it is: reading goes on
            self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
            self._warn(group_id, error)
        else:
            self._retry_at_ms = None
            self._done |= offered
            refusals = [error for error in refused.values() if not isinstance(error, UnknownTopicIdError)]  # planning reports it
            if refusals:
                self._warn(group_id, refusals[0])

    def _warn(self, group_id: str, error: Exception) -> None:
        if not self._has_warned:
            logger.warning("the positions of this query are not recorded as group '%s', reading goes on: %s", group_id, error)
        self._has_warned = True
