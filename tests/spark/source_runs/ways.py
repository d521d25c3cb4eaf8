"""Which way each micro-batch is read and written. Each deciding process notes it in a file; the environment names the directory."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

VARIABLE = "BROKERD_TEST_WAYS"
WITH_PLAN, BY_TASKS = "read with the plan", "read by tasks"
BY_DRIVER, BY_SINK = "copied by the driver", "copied by the sink"
READ_OTHERWISE, COPIED_OTHERWISE = "read again the other way", "copied again the other way"
# With this many batches, some must go each way. Rarest are replays the other way: two of the sixty of a round of two queries.
_ENOUGH_READ, _ENOUGH_COPIED = 100, 50


def note(way: str, batch: object) -> None:
    """Records the way of a batch. `batch` identifies it and is any JSON value."""
    with Path(os.environ[VARIABLE], str(os.getpid())).open("a") as notes:
        notes.write(json.dumps([way, batch]) + "\n")


def ways_taken(directory: Path) -> Counter[str]:
    """The number of batches that went each way."""
    taken: dict[str, set[str]] = {}
    for path in directory.iterdir():
        for line in path.read_text().splitlines():
            way, batch = json.loads(line)
            taken.setdefault(json.dumps(batch), set()).add(way)
    counts = Counter({WITH_PLAN: 0, BY_TASKS: 0})
    for ways in taken.values():
        counts.update(ways)
        counts[READ_OTHERWISE] += ways == {WITH_PLAN, BY_TASKS}
        counts[COPIED_OTHERWISE] += ways == {BY_DRIVER, BY_SINK}
    return counts


def ways_missed(counts: Counter[str]) -> list[str]:
    """The ways that no batch of a round took, although there were enough batches."""
    read, copied = counts[WITH_PLAN] + counts[BY_TASKS], counts[BY_DRIVER] + counts[BY_SINK]
    expected = [WITH_PLAN, BY_TASKS, READ_OTHERWISE] if read >= _ENOUGH_READ else []
    expected += [BY_DRIVER, BY_SINK, COPIED_OTHERWISE] if copied >= _ENOUGH_COPIED else []
    return [way for way in expected if not counts[way]]
