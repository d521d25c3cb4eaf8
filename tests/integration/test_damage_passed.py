"""Goal: readers continue after damage that an operator has accepted, but only on request. Method: a daemon process on a damaged
copy of its data directory, and the command line.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Terminal
from tests.support.daemon import DaemonProcess, running_daemon
from tests.support.findings import topic_segment
from tests.support.logged import messages_of
from tests.support.raw_client import RawClient, values_batch

BATCHES = 5
DAMAGED = 2


def _damaged_copy(data_dir: Path, copy: Path) -> None:
    """A copy with a flipped bit in one batch."""
    shutil.copytree(data_dir, copy)
    segment = topic_segment(copy)
    data = bytearray(segment.read_bytes())
    data[len(data) // BATCHES * DAMAGED + 20] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_consumer_goes_past_damage_where_that_is_asked(
    is_accepted: bool,
    tmp_path: Path,
    terminal: Terminal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = terminal.run
    consume = ("consume", "t", "--exit", "-q", "-f", "%o\\n")
    past = ("-X", "skip.corrupt.batches=true")
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (tp,) = client.create_topic("t")
        producer = client.producer()
        for _ in range(BATCHES):
            producer.produce(tp, values_batch(tp))
    _damaged_copy(tmp_path / "data", tmp_path / "copy")
    with DaemonProcess(tmp_path / "copy") as daemon:
        terminal.use(daemon.address)
        if is_accepted:
            assert daemon.terminate() == 0
            assert run("doctor", str(tmp_path / "copy"), "--accept-damaged")[0] == 0
            daemon.restart()
        code, out, said = run(*consume)
        assert (code, out) == (1, "0\n1\n")
        assert "skip.corrupt.batches=true (Spark: also failOnDataLoss=false) continues at offset 3" in said
        assert run(*consume, *past)[:2] == (0, "0\n1\n3\n4\n")
        (warning,) = messages_of(caplog, "brokerd.client.fetching")
        assert warning.startswith("t-0: offsets 2 to 2 are skipped: t-0: ")
        assert "were durable and are damaged" in caplog.text
        assert run(*consume, *past, "--offset", "2")[:2] == (0, "3\n4\n")
        assert daemon.terminate() == 0
