"""Simulates crashes of one data directory over several lives. `run_seed(seed)` raises AssertionError if a promise is broken.

Promises, checked after each start:
- every batch that was below a high watermark is there, byte for byte, at its offset (nothing acknowledged lost, no offset reused);
- every batch found was appended at that offset by the last life or found before (nothing torn, nothing invented);
- a batch that a recovery has cut never comes back;
- rot below the checkpoint's durable_end is reported, by recovery or at the read, and nothing is cut because of it.

Rot above durable_end looks like a torn tail (documented as undecidable for one second), so none is planted there.
"""

from __future__ import annotations

import random
from typing import Any

from brokerd.datadir.checkpoint import read_checkpoint
from brokerd.errors import LogDamagedError, StorageError
from brokerd.partition import flush_state
from brokerd.partition.partition import FlushTask, Partition
from brokerd.record.header import HEADER_SIZE, decode_header
from brokerd.record.schema import payload_crc
from tests.support.build import damaged_ranges, delete_records, first_log, open_manager, raw_batch, read_batches, run_flush
from tests.support.clock import ManualClock
from tests.support.files import SECTOR, Hook, Killed, MemoryFiles
from tests.support.log_manager import LogManager

SETTINGS: dict[str, Any] = {
    "log_segment_bytes": 4_096,
    "log_index_interval_bytes": 256,
    "log_checkpoint_interval_ms": 1_000,
    "log_retention_bytes": 12_000,
}


class Simulation:
    """One data directory, one partition, and what a reader may expect of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.clock = ManualClock()
        self.visible: dict[int, bytes] = {}  # base offset -> payload of batches that were below a high watermark
        self.pending: dict[int, bytes] = {}  # appended in this life, not yet flushed
        self.cut: set[bytes] = set()
        self.log_start = 0
        self.next_id = 0
        self.facts: dict[str, int] = {}
        self.rotten: tuple[int, str, int] | None = None  # base offset of the rotten batch, its place, durable_end
        self.has_crashed = False
        self.task: FlushTask | None = None
        # Batches of one sector each let stale blocks lie exactly where new batches belong.
        self.is_uniform = self.rng.random() < 0.5
        # A small window moves recovery points forward, so that starts use snapshots and index files.
        flush_state.RECOVERY_WINDOW_BYTES = self.rng.choice((2_000, 6_000, 1 << 26))

    def run(self) -> dict[str, int]:
        """Runs all lives; returns the counts of events."""
        for _ in range(self.rng.randint(2, 5)):
            manager = self._start()
            log = first_log(manager)
            self._check(log)
            if self.rotten is not None:
                break
            self._live(manager, log)
        return self.facts

    def _count(self, fact: str) -> None:
        self.facts[fact] = self.facts.get(fact, 0) + 1

    def _start(self) -> LogManager:
        """Opens the directory; sometimes recovery is killed first."""
        for _ in range(2):
            if self.has_crashed and self.rng.random() < 0.15:
                countdown = self.rng.randint(1, 40)

                def hook(operation: str, path: str) -> None:
                    nonlocal countdown
                    countdown -= 1
                    if countdown == 0:
                        raise Killed

                self.files.hook = hook
                try:
                    manager, _ = open_manager(self.files, self.clock, **SETTINGS)
                except Killed:
                    self._count("killed in recovery")
                    self._crash()
                    continue
                self.files.hook = None
                return manager
        manager, report = open_manager(self.files, self.clock, **SETTINGS)
        assert not report.read_only_reason
        assert self.rotten or not report.damaged, report.damaged
        if report.cut_bytes:
            self._count("cut")
        if report.was_clean:
            self._count("clean")
        return manager

    def _check(self, log: Partition) -> None:
        assert log.ends.log_start_offset <= self.log_start
        found = self._read(log)
        if found is None:
            return
        for offset, payload in self.visible.items():
            if offset >= log.ends.log_start_offset:
                assert found.get(offset) == payload, f"acknowledged batch at {offset} is lost"
        for offset, payload in found.items():
            assert payload not in self.cut, f"a cut batch came back at {offset}"
            assert payload == self.visible.get(offset, self.pending.get(offset)), (
                f"batch at {offset} is not what was appended there"
            )
        if log.damage is None:
            self.cut.update(payload for offset, payload in self.pending.items() if offset not in found)
            self.visible.update(found)
        self.pending = {}

    def _read(self, log: Partition) -> dict[int, bytes] | None:
        """Base offset and payload of all readable batches; None if planted rot was reported."""
        found: dict[int, bytes] = {}
        reported = log.damage is not None
        at = log.ends.log_start_offset
        while at < log.ends.high_watermark:
            try:
                for batch in read_batches(log, at, max_bytes=self.rng.choice((100, 1_000, 100_000))):
                    at = batch.header.next_offset
                    payload = batch.payload.to_pybytes()
                    if payload_crc(payload) == batch.header.payload_crc:
                        found[batch.header.base_offset] = payload
                    else:
                        reported = True
            except LogDamagedError:
                reported = True
                at = next(entry.until_offset for entry in damaged_ranges(log) if entry.first_offset <= at < entry.until_offset)
        if self.rotten is None:
            assert not reported, f"damage is reported where none is: {damaged_ranges(log)}"
            return found
        offset, where, durable_end = self.rotten
        assert reported, f"rot at {where} is hidden"
        assert log.ends.high_watermark >= durable_end, f"rot at {where} made the log shorter"
        lost = [entry for entry in self.visible if log.ends.log_start_offset <= entry < durable_end and entry not in found]
        assert lost == [offset], f"rot at {where} took {lost}"
        self._count("rot reported")
        return None

    # A life

    def _live(self, manager: LogManager, log: Partition) -> None:
        for _ in range(self.rng.randint(0, 14)):
            action = self.rng.random()
            if action < 0.55:
                self._append(log)
            elif action < 0.8:
                self._flush(log)
            elif action < 0.9:
                self.clock.advance(self.rng.choice((10, 1_000)))
                manager.write_checkpoint_if_due(self.clock.monotonic_ms())
            elif action < 0.94:
                self._delete_records(manager, log)
            else:
                self._fill_disk(log)
        if self.rng.random() < 0.15 and log.core.health.failure is None:
            if self.task is not None:
                self._complete(log, self.task)
            manager.close()
            self.has_crashed = False
            self.visible.update(self.pending)
            self.pending = {}
            if self.rng.random() < 0.5:
                self.files.power_cut(self.rng)
            self._count("closed")
        else:
            self._crash()
        if self.rng.random() < 0.1:
            self._rot(log)

    def _append(self, log: Partition) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            self.next_id += 1
            size = SECTOR - HEADER_SIZE if self.is_uniform else self.rng.choice((16, 100, 500, 900, 1_500))
            payload = self.next_id.to_bytes(8, "big") * (size // 8)
            count = 1 if self.is_uniform else self.rng.randint(1, 5)
            try:
                info = log.append(raw_batch(payload, count=count), now_wall_ms=self.clock.wall_ms())
            except StorageError:
                self._count("refused")
                return
            assert info.last_offset == info.base_offset + count - 1
            self.pending[info.base_offset] = payload

    def _flush(self, log: Partition) -> None:
        """Flushes; sometimes the log learns of it only after the next action."""
        if self.task is not None:
            self._complete(log, self.task)
            return
        task = log.prepare_flush()
        if task is None:
            return
        if self.rng.random() < 0.06:
            self.files.hook = _failing_sync(self.rng.randint(1, len(task.handles)))
        elif self.rng.random() < 0.3:
            self._append(log)
        try:
            is_synced = run_flush(log, task)
        finally:
            self.files.hook = None
        if not is_synced:
            self._count("sync failed")
            return
        self.task = task
        if self.rng.random() < 0.8:
            self._complete(log, task)

    def _complete(self, log: Partition, task: FlushTask) -> None:
        self.task = None
        log.complete_flush(task)
        self._note_visible(log)
        self._count("flushed")

    def _note_visible(self, log: Partition) -> None:
        durable = [offset for offset in self.pending if offset < log.ends.high_watermark]
        self.visible.update((offset, self.pending.pop(offset)) for offset in durable)

    def _fill_disk(self, log: Partition) -> None:
        self.files.space_left = self.rng.randint(0, 1_500)
        self._append(log)
        self.files.space_left = None

    def _delete_records(self, manager: LogManager, log: Partition) -> None:
        if log.ends.high_watermark > log.ends.log_start_offset and log.core.health.failure is None:
            if self.rng.random() < 0.5:
                delete_records(manager, log, self.rng.randint(log.ends.log_start_offset, log.ends.high_watermark))
            manager.retention_pass()
            self._note_visible(log)  # retention flushes segments that it rolls
            self.log_start = log.ends.log_start_offset
            self._count("deleted")

    def _crash(self) -> None:
        self.has_crashed = True
        self.task = None
        if self.rng.random() < 0.75:
            self.files.power_cut(self.rng)
            self._count("power cut")
        else:
            self.files.kill()
            self._count("killed")

    def _rot(self, log: Partition) -> None:
        """Flips a bit of a batch below durable_end, as the checkpoint on disk has it."""
        found = read_checkpoint(self.files, 0)
        entry = found.get(log.tp) if found is not None else None
        places = []
        for path in self.files.paths():
            if path.endswith(".log"):
                places += [(path, *place) for place in _batches(self.files.read_file(path))]
        if entry is not None:
            places = [place for place in places if entry.log_start_offset <= place[2] and place[3] <= entry.durable_end]
            if places:
                path, position, offset, _, size = self.rng.choice(places)
                bit = self.rng.randrange(position * 8, (position + size) * 8)
                self.files.flip_bit(path, bit)
                self.rotten = (offset, f"{path} bit {bit}, offset {offset}", entry.durable_end)


def _batches(data: bytes) -> list[tuple[int, int, int, int]]:
    """(position, base offset, next offset, size) of the batches at the beginning of a file."""
    found = []
    at = 0
    while len(data) >= at + 96 and data[at : at + 4] == b"\x89bkd":
        header = decode_header(data[at : at + 96])
        found.append((at, header.base_offset, header.next_offset, header.size))
        at += header.size
    return found


def _failing_sync(number: int) -> Hook:
    count = 0

    def hook(operation: str, path: str) -> None:
        nonlocal count
        if operation == "fdatasync" and path.endswith(".log"):
            count += 1
            if count == number:
                raise OSError(5, "Input/output error")

    return hook


def run_seed(seed: int) -> dict[str, int]:
    """Runs one seed; returns the counts of events."""
    return Simulation(seed).run()
