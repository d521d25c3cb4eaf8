"""`brokerd start` with one bug planted: `python -m tests.chaos.planted_daemon BUG start ...`. brokerd contains none of this.

Each function plants one bug; its docstring states the wrong behaviour as if it were the rule. planted.py runs chaos against them.
Bugs of transactions are in planted_transactions.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa

from brokerd.cli import main
from brokerd.partition.log_state import LogState
from brokerd.partition.partition import FlushTask
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry, ProducerStates
from brokerd.partition.recovery import PartitionRecovery
from brokerd.record.batch import walk_batches
from brokerd.record.header import BatchHeader
from brokerd.storage.files import Files
from brokerd.storage.names import LOG_SUFFIX
from tests.chaos import planted_transactions
from tests.support.planting import Put, plant


def retries_are_new(put: Put) -> None:
    """Batches are not compared with the producer's last ones: a retry is appended again."""

    def accept(self: ProducerStates, header: BatchHeader, entry: ProducerStateEntry) -> BatchMetadata | None:
        return None

    plant(put, ProducerStates, "_check_sequence", accept)


def unknown_producers_are_welcome(put: Put) -> None:
    """Producer state is not rebuilt from the log, and an unknown producer may continue at any sequence, as in Kafka."""
    plant(put, ProducerStates, "replay", lambda self, header, marker: None)
    plant(put, ProducerStates, "_check_unknown", lambda self, header: None)


def gaps_are_fine(put: Put) -> None:
    """A batch is appended although its predecessor was refused."""
    checked = ProducerStates._check_sequence

    def accept(self: ProducerStates, header: BatchHeader, entry: ProducerStateEntry) -> BatchMetadata | None:
        return None if header.base_sequence > entry.last_sequence else checked(self, header, entry)

    plant(put, ProducerStates, "_check_sequence", accept)


def recovery_cuts_too_much(put: Put) -> None:
    """After a kill the last whole batch of a client's topic is cut as if it were torn.

    The coordinator's log is spared: a broker without it refuses to start, which would expose the bug before the history does.
    """
    recover = PartitionRecovery.run

    def cut_and_recover(self: PartitionRecovery) -> LogState:
        if self._given.clean is None and not self._directory.startswith("__"):
            self._durable_end = 0
            last = max((name for name in self._files.listdir(self._directory) if name.endswith(LOG_SUFFIX)), default="")
            if last:
                _cut_last_batch(self._files, f"{self._directory}/{last}")
        return recover(self)

    plant(put, PartitionRecovery, "run", cut_and_recover)


def _cut_last_batch(files: Files, path: str) -> None:
    with closing(files.open(path, writable=True)) as file:
        data = file.pread(file.size(), 0)
        at = last = 0
        try:
            for batch in walk_batches(pa.py_buffer(data)):
                last, at = at, at + batch.header.size
        except Exception:  # a torn tail follows the whole batches
            pass
        if at:
            file.truncate(last)


def acknowledged_unsynced(put: Put) -> None:
    """Flushes do not sync the data files. Only a power cut exposes this; a kill does not."""
    flush = FlushTask.run

    def flush_nothing(self: FlushTask) -> None:
        handles, self.handles = self.handles, []
        flush(self)
        self.handles = handles

    plant(put, FlushTask, "run", flush_nothing)


BUGS: dict[str, Callable[[Put], None]] = {
    "retries-are-new": retries_are_new,
    "unknown-producers-are-welcome": unknown_producers_are_welcome,
    "gaps-are-fine": gaps_are_fine,
    "recovery-cuts-too-much": recovery_cuts_too_much,
    "acknowledged-unsynced": acknowledged_unsynced,
    **planted_transactions.BUGS,
}

if __name__ == "__main__":
    BUGS[sys.argv[1]](setattr)
    sys.exit(main(sys.argv[2:]))
