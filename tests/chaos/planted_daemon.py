"""`brokerd start` with one bug planted: `python -m tests.chaos.planted_daemon BUG start ...`. Nothing of it is in brokerd.

Each function is one bug, in the words of somebody who could have made it. planted.py runs the chaos against them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from brokerd.cli import main
from brokerd.partition.flush_task import FlushTask
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry, ProducerStates
from brokerd.partition.recovery import PartitionRecovery, Recovered
from brokerd.record.batch import walk_batches
from brokerd.record.header import BatchHeader
from brokerd.storage.files import RealFiles
from brokerd.storage.names import LOG_SUFFIX


def retries_are_new() -> None:
    """A batch is not compared with the last ones: what is sent again is appended again."""

    def accept(self: ProducerStates, header: BatchHeader, entry: ProducerStateEntry) -> BatchMetadata | None:
        return None

    ProducerStates._check_sequence = accept  # type: ignore[method-assign]


def unknown_producers_are_welcome() -> None:
    """Producer state is not rebuilt from the log, and a producer that is not known may go on wherever it is, as in Kafka."""
    ProducerStates.replay = lambda self, header: None  # type: ignore[method-assign]
    ProducerStates._check_unknown = lambda self, header: None  # type: ignore[method-assign]


def gaps_are_fine() -> None:
    """A batch whose predecessor was refused is appended all the same."""
    checked = ProducerStates._check_sequence

    def accept(self: ProducerStates, header: BatchHeader, entry: ProducerStateEntry) -> BatchMetadata | None:
        return None if header.base_sequence > entry.last_sequence else checked(self, header, entry)

    ProducerStates._check_sequence = accept  # type: ignore[method-assign]


def recovery_cuts_too_much() -> None:
    """After a kill the last batch of a log is taken for a torn one, although it is whole."""
    recover = PartitionRecovery.run

    def cut_and_recover(self: PartitionRecovery) -> Recovered:
        given = self._given
        files = self._files
        if given.clean is None and isinstance(files, RealFiles):
            self._durable_end = 0
            directory = os.path.join(files.root, self._directory)
            last = max((name for name in os.listdir(directory) if name.endswith(LOG_SUFFIX)), default="")
            if last:
                _cut_last_batch(os.path.join(directory, last))
        return recover(self)

    PartitionRecovery.run = cut_and_recover  # type: ignore[method-assign]


def _cut_last_batch(path: str) -> None:
    import pyarrow as pa

    with open(path, "rb") as file:
        data = file.read()
    at = 0
    try:
        for batch in walk_batches(pa.py_buffer(data)):
            last, at = at, at + batch.header.size
    except Exception:  # a torn tail behind whole batches
        pass
    if at:
        os.truncate(path, last)


def acknowledged_unsynced() -> None:
    """Flushes do not sync the data files. A kill does not show it: only a power cut does."""
    flush = FlushTask.run

    def flush_nothing(self: FlushTask) -> None:
        handles, self.handles = self.handles, []
        flush(self)
        self.handles = handles

    FlushTask.run = flush_nothing  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "retries-are-new": retries_are_new,
    "unknown-producers-are-welcome": unknown_producers_are_welcome,
    "gaps-are-fine": gaps_are_fine,
    "recovery-cuts-too-much": recovery_cuts_too_much,
    "acknowledged-unsynced": acknowledged_unsynced,
}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
