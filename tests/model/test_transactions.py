"""Random schedules of transactions: drivers, tasks, twins, crashes and faults, with the real decisions.

`make transactions` runs a hundred thousand; `BROKERD_TEST_SCALE=20` twenty times as many as `make test` does.
"""

from __future__ import annotations

import pytest

from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_part
from tests.support.transaction_simulation import Simulation, run_seed

SCHEDULES = 400 * TEST_SCALE
PARTS = 2
OFTEN = (
    *("prepared", "prepared, with losers", "aborted", "repeated", "twin", "driver gave up", "driver killed", "driver gone"),
    *("crash", "crash in a recovery", "state", "deleted"),
    *(
        "InitProducerIdRequest: MemberOpened",
        "InitProducerIdRequest: AlreadyCommittedError",
        "InitProducerIdRequest: InvalidTxnStateError",
    ),
    *("InitProducerIdRequest: TxnConflictError", "InitProducerIdRequest: ProducerFencedError"),
    *("Batch: Done", "Batch: InvalidTxnStateError", "Batch: UnknownTopicIdError"),
    *("EndTransactionRequest: Done", "EndTransactionRequest: ReplayMismatchError", "EndTransactionRequest: TxnConflictError"),
    *(
        "EndTransactionRequest: ProducerFencedError",
        "EndTransactionRequest: TxnAbortedError",
        "EndTransactionRequest: StorageError",
    ),
    *("Abort: Done", "Abort: AlreadyCommittedError", "HeartbeatRequest: Done", "HeartbeatRequest: InvalidTxnStateError"),
)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    run_part(run_seed, part, SCHEDULES // PARTS, OFTEN, one_in=200)


def test_a_seed_replays_exactly() -> None:
    assert_replays(traced, range(10))


def traced(seed: int) -> list[str]:
    """The trace of one schedule."""
    trace: list[str] = []
    Simulation(seed, trace=trace).run()
    return trace
