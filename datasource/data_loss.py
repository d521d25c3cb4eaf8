"""What happens when records that were to be read are gone: one rule, used on the driver and in tasks alike."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from brokerd.errors import DataLossError

logger = logging.getLogger(__name__)


# A batch DataFrame is planned once, by its first action; tasks of a later one may find that what was planned is gone.
_PLANNED_ONCE = "A batch DataFrame keeps the offsets that its first action found: load() it again to read what there is now"


def report_losses(losses: Sequence[str], *, fail: bool, is_planned_once: bool = False) -> None:
    """Raises DataLossError with all `losses` (a sentence each), or with `fail` off warns of each and goes on.

    Every loss is decided by topic id and log start offset, never by an absent answer, so there are no false alarms.
    `is_planned_once` says that the offsets may be those of an earlier action, which is then told.
    """
    if not losses:
        return
    if fail:
        advice = f"{_PLANNED_ONCE}. " if is_planned_once else ""
        raise DataLossError(f"{'; '.join(losses)}. {advice}To go on without them, set option failOnDataLoss=false")
    for loss in losses:
        logger.warning("going on without lost records (failOnDataLoss=false): %s", loss)
