"""Goal: work that is begun and not waited for is told when it ends, once, however it ends; withdrawn, it is not resumed. Method: a
mailbox that the test serves itself.
"""

from __future__ import annotations

import pytest

from brokerd.errors import ProducerClosedError
from brokerd.producer.mailbox import Mailbox, Work


class Told:
    """Work that waits twice, and what is told of it."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.ends = 0

    def work(self) -> Work[int]:
        try:
            self.steps.append("begun")
            yield
            self.steps.append("resumed")
            yield
            return 42
        finally:
            self.steps.append("ended")

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def told() -> Told:
    return Told()


def test_begun_work_is_told_when_it_has_an_outcome(told: Told) -> None:
    wakes: list[None] = []
    mailbox = Mailbox(lambda: wakes.append(None))
    errand = mailbox.begin(told.work(), told.end)
    assert wakes
    assert not told.steps, "nothing is done in the caller's thread"
    for _ in range(3):
        assert not told.ends
        mailbox.serve()
    assert (errand.outcome(), told.ends) == (42, 1)


@pytest.mark.parametrize("is_kept", [False, True])
def test_withdrawn_work_is_not_resumed_unless_it_is_kept(told: Told, is_kept: bool) -> None:
    mailbox = Mailbox(lambda: None)
    errand = mailbox.begin(told.work(), told.end, is_kept=is_kept)
    mailbox.serve()
    errand.withdraw()
    mailbox.serve()
    mailbox.serve()
    assert told.steps == (["begun", "resumed", "ended"] if is_kept else ["begun", "ended"])
    assert told.ends == is_kept


def test_work_is_refused_when_the_serving_thread_ends(told: Told) -> None:
    mailbox = Mailbox(lambda: None)
    before = mailbox.begin(told.work(), told.end)
    mailbox.end()
    after = mailbox.begin(told.work(), told.end)
    assert told.ends == 2
    for errand in (before, after):
        with pytest.raises(ProducerClosedError):
            errand.outcome()
