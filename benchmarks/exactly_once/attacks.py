"""The attacks: each is done to a pipeline of its own, and says what a reader of committed rows sees in the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.exactly_once.pipeline import ROWS_PER_FILE, Pipeline
from benchmarks.exactly_once.processes import DriverDiedError, DriverProcess
from benchmarks.exactly_once.standalone import HOSTS
from benchmarks.exactly_once.systems import System

FILES = 4
_HIT = 2  # the micro-batch, of one file, in which an accident happens


class Outcome(NamedTuple):
    """Rows against the input, and what the last run said."""

    rows: int
    doubled: int
    missing: int
    error: str = ""
    torn: int = 0  # rows of an unfinished micro-batch that were visible before it was run again
    void: int = 0  # rows that reached the system, and that its readers of committed rows do not see

    def text(self) -> str:
        """A cell of the table."""
        said = []
        if self.doubled:
            said.append(f"**{self.doubled} doubled**")
        if self.missing and not self.error:
            said.append(f"**{self.missing} silently skipped**")
        if self.error:
            said.append(f"refused: `{_condition(self.error)}`" + (f", {self.missing} not written" if self.missing else ""))
        if self.torn:
            said.append(f"{self.torn} of an unfinished batch seen")
        if self.void:
            said.append(f"{self.void} void")
        is_exact = not (self.doubled or self.missing or self.error)
        return "; ".join((["exact"] if is_exact else []) + said)


class NotHitError(Exception):
    """An accident did not happen as it was meant to: nothing can be said."""


Make = Callable[..., Pipeline]


def _lost_commit(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    _well(pipeline.run())
    pipeline.lose_last_commit()
    return _outcome(pipeline, pipeline.run())


def _killed_in_commit(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    _dies(pipeline, "driver-killed-in-commit")
    missing = pipeline.counts()["missing"]
    if pipeline.is_noted(_HIT) or missing != (FILES - _HIT - 1) * ROWS_PER_FILE:
        raise NotHitError(f"the JVM died too early or too late: {missing} rows are missing")
    return _outcome(pipeline, pipeline.run())


def _killed_while_writing(make: Make, *, two_topics: bool = False) -> Outcome:
    pipeline = make(two_topics=two_topics)
    pipeline.add_files(_HIT)
    _well(pipeline.run())
    before = pipeline.counts()["there"]
    pipeline.add_files(FILES - _HIT)
    _dies(pipeline, "driver-killed")
    torn = pipeline.counts()["there"] - before
    return _outcome(pipeline, pipeline.run())._replace(torn=torn)


def _two_topics(make: Make) -> Outcome:
    return _killed_while_writing(make, two_topics=True)


def _task_retried(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    error = pipeline.run(accident="task-fails", from_file=_HIT)
    if not pipeline.happened():
        raise NotHitError(f"no task failed: {error[-2000:]}")
    return _outcome(pipeline, error)


def _twin(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    _well(pipeline.run(accident="slow-twin", from_file=_HIT))
    hosts = pipeline.hosts_at_once()
    if hosts is None or set(hosts) != set(HOSTS):
        raise NotHitError(f"no two attempts wrote at once: {hosts}")
    found, all_rows = pipeline.counts(), pipeline.counts(committed=False)
    void = all_rows["there"] + all_rows["doubled"] - found["there"] - found["doubled"]
    return _outcome(pipeline, "")._replace(void=void)


def _copied_checkpoint(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(2)
    _well(pipeline.run())
    copied = pipeline.copy_checkpoint()
    pipeline.add_files(2)
    _well(pipeline.run())
    return _outcome(pipeline, pipeline.run(checkpoint=copied))


def _restored_checkpoint(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(2)
    _well(pipeline.run())
    copied = pipeline.copy_checkpoint()
    pipeline.add_files(1)
    _well(pipeline.run())
    pipeline.add_files(1)
    return _outcome(pipeline, pipeline.run(checkpoint=copied, files=2))


def _one_job_group(make: Make) -> Outcome:
    pipeline = make(groups=["nightly"])
    pipeline.add_files(FILES)
    _well(pipeline.run())
    pipeline.lose_last_commit()
    return _outcome(pipeline, pipeline.run())


def _own_job_groups(make: Make) -> Outcome:
    pipeline = make(groups=["even", "odd"])
    pipeline.add_files(1)
    return _outcome(pipeline, pipeline.run())


def _backwards(make: Make) -> Outcome:
    pipeline = make()
    _well(pipeline.write_version(5))
    return _outcome(pipeline, pipeline.write_version(3))


class Attack(NamedTuple):
    """One row of the table."""

    name: str
    text: str
    act: Callable[[Make], Outcome]
    needs_versions: bool = False
    on_cluster: bool = False


ATTACKS = (
    Attack("lost-commit", "the last `commits/N` deleted, query restarted", _lost_commit),
    Attack("task-retried", "a task fails after all its rows went to the sink, and is run again", _task_retried),
    Attack("copied-checkpoint", "the original goes on, then a copy of its checkpoint with the same rows", _copied_checkpoint),
    Attack("restored-checkpoint", "the same, and the copy's micro-batch holds other rows as well", _restored_checkpoint),
    Attack("backwards", "`txnVersion` 5, then 3 with other rows", _backwards, needs_versions=True),
    Attack("killed-while-writing", "driver killed between two tasks of a micro-batch, restarted", _killed_while_writing),
    Attack("killed-in-commit", "driver killed after the sink's commit, before `commits/N`, restarted", _killed_in_commit),
    Attack(
        "two-topics",
        "driver killed between two tasks that write to two topics (Delta: two tables in one `foreachBatch`), restarted",
        _two_topics,
    ),
    Attack(
        "one-job-group",
        "one job group set by the user for all writes inside `foreachBatch`, the last `commits/N` deleted, query restarted",
        _one_job_group,
    ),
    Attack(
        "own-job-groups",
        "two writes of as many rows and bytes to one topic inside one `foreachBatch`, after a `setJobGroup` each",
        _own_job_groups,
    ),
    Attack("twin", "a task runs twice at once on two hosts (speculation), its rows written by both", _twin, on_cluster=True),
)


def attack(system: System, driver: DriverProcess, chosen: Attack, run: str) -> Outcome | None:
    """Its outcome; None where it does not apply. Raises NotHitError, and DriverDiedError or RuntimeError if no driver lives."""
    if chosen.needs_versions and not system.has_versions:
        return None
    made = 0

    def make(**kind: Any) -> Pipeline:
        nonlocal made
        made += 1
        return Pipeline(system, driver, f"{chosen.name}-{run}-{made}", **kind)

    return chosen.act(make)


def _dies(pipeline: Pipeline, accident: str) -> None:
    """A run with an accident in which the JVM is killed."""
    try:
        error = pipeline.run(accident=accident, from_file=_HIT)
    except DriverDiedError:
        if pipeline.happened():
            return
        error = "it died by itself"
    raise NotHitError(f"the JVM was not killed: {error[-2000:]}")


def _well(error: str) -> None:
    if error:
        raise NotHitError(f"the pipeline does not run without an accident: {error[-2000:]}")


def _outcome(pipeline: Pipeline, error: str) -> Outcome:
    found = pipeline.counts()
    return Outcome(len(pipeline.given), found["doubled"], found["missing"], error)


def _condition(error: str) -> str:
    """The name of the error, as well as can be told from a text with a stack trace in it."""
    found = re.search(r"\b(?:ReplayMismatch|ProducerFenced|TxnConflict)Error\b", error) or re.search(
        r"\b[A-Z]\w+(?:Error|Exception)\b", error
    )
    return found[0] if found else "error"
