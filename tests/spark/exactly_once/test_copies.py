"""Two drivers of one query: on copies of its checkpoint, or on the checkpoint itself, one after another or at the same time.

In each case the committed rows are the input, each once, in order per key. A copy fails if its micro-batch holds other rows than
those committed under its number, or if it is further behind.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.spark.exactly_once.pipeline import Pipeline, cut, lose_last
from tests.support.reading import committed_rows

pytestmark = pytest.mark.long
LIMIT = 1_000  # offsets in a micro-batch
FEWER = {"max_offsets": LIMIT * 2 // 3}
OTHER_KEYS = {"key": "lower(string(key))"}
OTHER_ROWS = "ReplayMismatchError"
BEHIND = "ProducerFencedError"


def ended_with(done: subprocess.CompletedProcess[str], *errors: str) -> bool:
    """True if the driver ended with one of these errors."""
    return done.returncode != 0 and any(error in done.stderr for error in errors)


@pytest.mark.parametrize(
    ("lost", "changed", "error"),
    [
        pytest.param(("commits",), {}, "", id="equal"),
        pytest.param(("commits", "offsets"), {}, "", id="equal, asked of the source again"),
        pytest.param(("commits", "offsets"), {"max_offsets": 500}, OTHER_ROWS, id="fewer rows"),
        pytest.param(("commits",), OTHER_KEYS, OTHER_ROWS, id="same count but other rows"),
    ],
)
@pytest.mark.parametrize("foreach", [False, True], ids=["stream", "foreachBatch"])
def test_copy_that_runs_after_the_original(
    pipeline: Pipeline, foreach: bool, lost: tuple[str, ...], changed: dict[str, Any], error: str
) -> None:
    limit = 2_500  # the last of three batches holds a thousand offsets
    assert pipeline.run(foreach=foreach, max_offsets=limit).returncode == 0
    copy = pipeline.copied_checkpoint("copy")
    for folder in lost:
        lose_last(copy / folder)
    before = len(pipeline.events())
    done = pipeline.run(**{"foreach": foreach, "max_offsets": limit, "checkpoint": str(copy), **changed})
    assert len(pipeline.events()) > before, "it wrote nothing"
    assert ended_with(done, error) if error else done.returncode == 0, done.stderr[-3000:]
    pipeline.is_exact()


def test_copy_that_is_further_behind_is_refused(pipeline: Pipeline) -> None:
    assert pipeline.run(max_offsets=LIMIT).returncode == 0
    copy = pipeline.copied_checkpoint("copy")
    cut(copy, 3)
    done = pipeline.run(checkpoint=str(copy), max_offsets=LIMIT)
    assert ended_with(done, BEHIND), done.stderr[-3000:]
    pipeline.is_exact()


@pytest.mark.parametrize("changed", [{}, FEWER, OTHER_KEYS], ids=["equal", "fewer rows", "same count but other rows"])
@pytest.mark.parametrize("foreach", [False, True], ids=["stream", "foreachBatch"])
def test_copies_at_the_same_time(pipeline: Pipeline, foreach: bool, changed: dict[str, Any]) -> None:
    pipeline.new_checkpoint()
    copy = pipeline.copied_checkpoint("copy")
    same: dict[str, Any] = {"foreach": foreach, "max_offsets": LIMIT}
    done = pipeline.run_both(same, {**same, "checkpoint": str(copy), **changed})
    assert len({event.run_id for event in pipeline.events()}) == 2, "one of them wrote nothing"
    ended_well = [one for one in done if one.returncode == 0]
    said = "".join(one.stderr[-3000:] for one in done)
    assert len(ended_well) >= 1, said
    assert all(one in ended_well or ended_with(one, BEHIND, OTHER_ROWS) for one in done), said
    if changed:
        assert len(ended_well) == 1
    keys = {key for key, _ in committed_rows(pipeline.daemon.address, "target").values()}
    is_lower = keys == {key.lower() for key, _ in pipeline.given if key is not None}
    pipeline.is_exact([(key and key.lower(), value) for key, value in pipeline.given] if is_lower else None)


@pytest.mark.parametrize("foreach", [False, True], ids=["stream", "foreachBatch"])
def test_two_drivers_on_one_checkpoint(pipeline: Pipeline, foreach: bool) -> None:
    pipeline.new_checkpoint()
    same: dict[str, Any] = {"foreach": foreach, "max_offsets": LIMIT}
    pipeline.run_both(same, same)  # Spark ends at least one of them
    done = pipeline.run(**same)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len({event.run_id for event in pipeline.events()}) >= 2
    pipeline.is_exact()
