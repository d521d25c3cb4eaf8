"""Producer state against an oracle that remembers everything, with restarts in between.

The oracle knows each producer's whole history as plain numbers that never wrap; the log knows five batches. Both must give the
same response to every batch, before and after any restart. Sequences begin near 2^31-1 for some, so that they wrap.
"""

from __future__ import annotations

import random

import pytest

from brokerd.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch
from tests.support.build import first_log, open_manager, raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.producer_oracle import RING, Known, ProducerOracle
from tests.support.scale import TEST_SCALE

# As many as `make test` can afford; `make test-long`, at a scale of 20, does a million.
OPERATIONS = 24_000 if TEST_SCALE == 1 else 50_000 * TEST_SCALE
OPERATIONS_PER_RUN = 1_000
PRODUCERS = 6
EXPIRATION_MS = 500_000


def _candidate(rng: random.Random, oracle: ProducerOracle, producer_id: int) -> tuple[int, int, int]:
    """(epoch, first sequence, count): mostly what a producer would send, often what it should not."""
    epoch, next_number, batches = oracle.state.get(producer_id, Known(0, 0, ()))
    count = rng.choice((1, 1, 2, 5, 40, RING // 5))
    kind = rng.random()
    if kind < 0.45:
        return epoch, next_number % RING, count
    if kind < 0.65 and batches:
        sent = rng.choice(batches)
        return epoch, sent.number % RING, sent.record_count if rng.random() < 0.8 else count
    if kind < 0.75:
        return epoch, (next_number + rng.choice((-7, -2, -1, 1, 2, 1_000))) % RING, count
    if kind < 0.8:
        return min(epoch + 1, 32_767), rng.choice((0, 0, 0, 1, next_number % RING)), count
    if kind < 0.85:
        return max(epoch - 1, 0), rng.choice((0, next_number % RING)), count
    return epoch, rng.choice((0, 1, RING - 1, RING - 2, rng.randrange(RING))), count


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
            if path.endswith((".snapshot", ".index", ".timeindex", "leader-epochs")) and rng.random() < 0.3:
                files.remove_file(path)
    return _open(files, clock, **settings)


def _open(files: MemoryFiles, clock: ManualClock, **settings: int) -> LogManager:
    return open_manager(files, clock, log_segment_bytes=8_192, producer_id_expiration_ms=EXPIRATION_MS, **settings)[0]


def _run(seed: int, operations: int) -> dict[str, int]:
    rng = random.Random(seed)
    files, clock, oracle = MemoryFiles(), ManualClock(), ProducerOracle()
    manager = _open(files, clock)
    log = first_log(manager)
    answers: dict[str, int] = {}
    for _ in range(operations):
        # Now and then everybody is silent for so long that the next look at the clock forgets them.
        clock.advance(EXPIRATION_MS + 1 if rng.random() < 0.002 else rng.randint(0, 2_000))
        if rng.random() < 0.005:
            manager = _restart(rng, manager, files, clock)
            log = first_log(manager)
            oracle.expire(clock.wall_ms() - EXPIRATION_MS)
        if rng.random() < 0.002:
            manager.expire_producers()
            oracle.expire(clock.wall_ms() - EXPIRATION_MS)
        producer_id = rng.randrange(PRODUCERS)
        epoch, first, count = _candidate(rng, oracle, producer_id)
        batch = raw_batch(b"12345678", count=count, producer=ProducerIdAndEpoch(producer_id, epoch), sequence=first)
        expected = oracle.answer(producer_id, epoch, first, count)
        if expected is None:
            expected = log.ends.log_end_offset
            oracle.append(producer_id, epoch, count, expected, clock.wall_ms())
        try:
            info = log.append(batch, now_wall_ms=clock.wall_ms())
            found: int | type[WireError] = info.base_offset
        except WireError as error:
            found = type(error)
        assert found == expected, (seed, producer_id, epoch, first, count, oracle.state.get(producer_id))
        name = expected.__name__ if isinstance(expected, type) else "duplicate" if info.is_duplicate else "appended"
        answers[name] = answers.get(name, 0) + 1
    return answers


def _crowd(seed: int, operations: int) -> tuple[int, int]:
    """More producers than a partition remembers, with restarts; returns how many retries were recognised and how many refused."""
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


@pytest.mark.timeout(3_600)
def test_answers_are_the_oracles_before_and_after_every_restart() -> None:
    answers: dict[str, int] = {}
    for seed in range(OPERATIONS // OPERATIONS_PER_RUN):
        for name, times in _run(seed, OPERATIONS_PER_RUN).items():
            answers[name] = answers.get(name, 0) + times
    assert sum(answers.values()) == OPERATIONS
    errors = (DuplicateSequenceError, InvalidProducerEpochError, OutOfOrderSequenceError, UnknownProducerIdError)
    for name in ("appended", "duplicate", *(error.__name__ for error in errors)):
        assert answers.get(name, 0) >= OPERATIONS // 400, answers
