"""More producers than a partition remembers, with restarts: the oldest are evicted, and no batch is written twice.

tests/model/lives.py checks the responses to remembered producers.
"""

from __future__ import annotations

import random

from brokerd.errors import UnknownProducerIdError
from brokerd.ids import ProducerIdAndEpoch
from tests.support.build import first_log, open_manager, raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.scale import TEST_SCALE

EXPIRATION_MS = 500_000


def _restart(rng: random.Random, manager: LogManager, files: MemoryFiles, clock: ManualClock, **settings: int) -> LogManager:
    if rng.random() < 0.4:
        manager.close()
    else:
        for log in manager.partitions.of_clients():
            log.flush()
        if rng.random() < 0.5:
            manager.write_checkpoint()
        files.power_cut(rng)
    if rng.random() < 0.5:
        for path in files.paths():
            if path.endswith((".snapshot", ".index", "leader-epochs")) and rng.random() < 0.3:
                files.remove_file(path)
    return _open(files, clock, **settings)


def _open(files: MemoryFiles, clock: ManualClock, **settings: int) -> LogManager:
    return open_manager(files, clock, log_segment_bytes=8_192, producer_id_expiration_ms=EXPIRATION_MS, **settings)[0]


def _crowd(seed: int, operations: int) -> tuple[int, int]:
    """Runs more producers than a partition remembers, with restarts; returns the numbers of recognised and refused retries."""
    rng = random.Random(seed)
    files, clock = MemoryFiles(), ManualClock()
    limit = rng.randint(1, 6)
    manager = _open(files, clock, max_producer_ids=limit)
    log = first_log(manager)
    sent: dict[int, list[int]] = {}  # producer id -> base offset of each sequence
    recent: list[int] = []  # producers in the order of their last batch
    recognised = refused = 0
    for _ in range(operations):
        clock.advance(1)
        if rng.random() < 0.02:
            manager = _restart(rng, manager, files, clock, max_producer_ids=limit)
            log = first_log(manager)
        is_new = not sent or rng.random() < 0.2
        producer_id = len(sent) if is_new else max(0, len(sent) - 1 - int(rng.expovariate(1 / limit)))
        known = sent.setdefault(producer_id, [])
        sequence = max(0, len(known) - rng.choice((0, 0, 1, 2)))
        is_remembered = producer_id in recent[-limit:]
        try:
            info = log.append(
                raw_batch(b"x", producer=ProducerIdAndEpoch(producer_id, 0), sequence=sequence), now_wall_ms=clock.wall_ms()
            )
        except UnknownProducerIdError:
            refused += 1
            assert not is_new, "newcomers always find room"
            assert not is_remembered, "the ones that wrote last are remembered"
            continue
        if sequence < len(known):
            assert info.is_duplicate, "written twice"
            assert info.base_offset == known[sequence]
            recognised += 1
            continue
        known.append(info.base_offset)
        recent = [*(other for other in recent if other != producer_id), producer_id]
    return recognised, refused


def test_a_crowd_of_producers_pushes_the_oldest_out_and_nothing_is_written_twice() -> None:
    counts = [_crowd(seed, 400) for seed in range(20 * TEST_SCALE)]
    assert min(sum(recognised for recognised, _ in counts), sum(refused for _, refused in counts)) > 20 * len(counts)
