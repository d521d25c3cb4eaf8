"""Commits a query's positions as offsets of a group, so that the broker shows its lag like that of any consumer.

The checkpoint decides where a query resumes; the group is for monitoring only. Recording therefore never delays or fails a query:
at most one request is in flight, only changes are sent, and errors are logged as warnings.

The recorded position is the start of the next batch: Spark requests a batch when the previous one is done and checkpointed.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.groups import commit_group_offsets
from brokerd.clock import Clock
from brokerd.datasource.offsets import SourceOffset
from brokerd.errors import UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition

logger = logging.getLogger(__name__)

RETRY_MS = 10_000  # pause after a failed request
REFRESH_MS = 3_600_000  # interval at which all positions are sent again, lest the group expire at the broker


class GroupProgress:
    """The positions of one query, in the process that plans its batches. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._under_way: LoopCall[dict[TopicIdPartition, WireError]] | None = None
        self._offered: dict[TopicIdPartition, int] = {}
        self._done: dict[TopicIdPartition, int] = {}  # recorded, or refused for good
        self._retry_at_ms: int | None = None
        self._refresh_at_ms = clock.monotonic_ms() + REFRESH_MS
        self._has_warned = False

    def record(self, client: BlockingClient, group_id: str, position: SourceOffset) -> None:
        """Sends the positions changed since the last request, unless one is in flight; returns at once and raises nothing."""
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
        """Waits for the request in flight when a query ends; raises nothing."""
        if self._under_way is not None and not self._under_way.has_ended:
            client.loop_thread.run(self._under_way.ended(timeout_ms))
        self._settle(group_id)

    def _settle(self, group_id: str) -> None:
        """Handles the outcome of the request in flight, if it has ended."""
        under_way, offered = self._under_way, self._offered
        if under_way is None or not under_way.has_ended:
            return
        self._under_way, self._offered = None, {}
        try:
            refused = under_way.outcome()
        except CancelledError:  # an idle client was closed
            self._retry_at_ms = None
        except Exception as error:  # no error may stop the query
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
            logger.warning("cannot record the positions of this query as group '%s'; reading continues: %s", group_id, error)
        self._has_warned = True
