"""The one rule for records that are gone before they were read, used on the driver and in tasks alike."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from brokerd.client.blocking import BlockingClient
from brokerd.errors import DataLossError, InvalidTopicError, UnknownTopicOrPartitionError

logger = logging.getLogger(__name__)


# A batch DataFrame is planned once, by its first action; tasks of a later action may find that the planned records are gone.
_PLANNED_ONCE = "A batch DataFrame keeps the offsets that its first action found: load() it again to read the records there are now"


def report_losses(losses: Sequence[str], *, fail: bool, is_planned_once: bool = False) -> None:
    """Raises DataLossError with all `losses` (a sentence each); with `fail` off, warns of each and continues.

    A loss is established by topic id and log start offset, never by a missing response, so there are no false alarms.
    `is_planned_once` says that the offsets may come from an earlier action; the error then says so too.
    """
    if not losses:
        return
    if fail:
        advice = f"{_PLANNED_ONCE}. " if is_planned_once else ""
        raise DataLossError(f"{'; '.join(losses)}. {advice}To continue without them, set option failOnDataLoss=false")
    for loss in losses:
        logger.warning("continuing without lost records (failOnDataLoss=false): %s", loss)


def require_not_hidden(client: BlockingClient, names: Sequence[str]) -> None:
    """Raises the broker's error for a topic that is out of sight for another reason than that it does not exist: to a principal
    whose rights were taken away a topic seems deleted, and it would be read from its start once they are back.
    """
    if not names:
        return
    for error in client.metadata(names).errors.values():
        if not isinstance(error, (UnknownTopicOrPartitionError, InvalidTopicError)):
            raise error
