"""What happens when records that were to be read are gone: one rule, used on the driver and in tasks alike."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from brokerd.errors import DataLossError

logger = logging.getLogger(__name__)


def report_losses(losses: Sequence[str], *, fail: bool) -> None:
    """Raises DataLossError with all `losses` (a sentence each), or with `fail` off warns of each and goes on.

    Every loss is decided by topic id and log start offset, never by an absent answer, so there are no false alarms.
    """
    if not losses:
        return
    if fail:
        raise DataLossError(f"{'; '.join(losses)}. To go on without them, set option failOnDataLoss=false")
    for loss in losses:
        logger.warning("going on without lost records (failOnDataLoss=false): %s", loss)
