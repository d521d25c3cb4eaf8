"""A control batch that cannot be read is damage. Ignoring it would leave committed transactions open, to be aborted later."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.errors import LogDamagedError
from brokerd.offline.doctor import accept_damaged, decide_members
from brokerd.partition import partition
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import Marker
from brokerd.record import control
from brokerd.storage.files import RealFiles
from tests.support.build import append, open_log
from tests.support.findings import errors_in, flip
from tests.support.log_manager import LogManager
from tests.support.transactions import append_marker, append_member, read_committed

MEMBER = 7


def _open(data_dir: Path) -> tuple[LogManager, Partition]:
    return open_log(RealFiles(str(data_dir)))


@pytest.fixture(params=["rot", "a later version"])
def data_dir(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cleanly closed directory without snapshots. The marker at offset 1, which commits a member's record at offset 0, cannot be
    read."""
    manager, log = _open(tmp_path)
    append_member(log, MEMBER, 0)
    log.flush()
    position = log.segments[-1].size_bytes
    if request.param == "a later version":
        monkeypatch.setattr(control, "CONTROL_VERSION", 2)
        monkeypatch.setattr(partition, "marker_of", lambda _batch, **_: Marker([MEMBER]))
    append_marker(log, committed=[MEMBER])
    monkeypatch.undo()
    append(log, b"plain")
    manager.close()
    path = next(tmp_path.glob("*/*.log"))
    if request.param == "rot":
        flip(path, position + 100)
    for snapshot in tmp_path.glob("*/*.snapshot"):
        snapshot.unlink()
    return tmp_path


def test_it_stops_the_log_so_that_nobody_aborts_what_is_committed(data_dir: Path) -> None:
    manager, log = _open(data_dir)
    assert list(log.core.producers.open_transactions) == [MEMBER]
    with pytest.raises(LogDamagedError, match=r"offsets 1 to 1 .*(the control batch cannot be read|payload_crc)"):
        append_marker(log, aborted=[MEMBER])
    manager.close()


def test_the_doctor_finds_it_and_it_can_be_accepted(data_dir: Path) -> None:
    error = errors_in(data_dir)[0]
    assert (error.partition, error.offset) == ("t-0", 1)
    assert "--accept-damaged" in error.message
    accept_damaged(str(data_dir))
    (error,) = errors_in(data_dir)
    assert f"producer {MEMBER} wrote records from offset 0 to 0 in a transaction" in error.message
    decide_members(str(data_dir), is_committed=True)
    assert not errors_in(data_dir)
    manager, log = _open(data_dir)
    append_marker(log, committed=[MEMBER])
    log.flush()
    assert read_committed(log, 0, 1) == [0]
    manager.close()
