"""brokerd: an ordered, durable log for PySpark.

    from brokerd import Producer

Exports are imported on first use, so a Spark worker that only looks for data sources pays nothing.

    ids.py, errors.py, clock.py   identifiers; the one table of errors; the only reading of clocks
    config/                       every setting
    record/                       the record batch format
    storage/ partition/ datadir/  bytes on disk; one partition; a directory of them
    offline/                      doctor, dump, rebuild: for a directory that no broker has open
    purgatory/                    waiting for a condition or a deadline
    sharing/                      who may have how much of what is scarce, and who is next
    transaction/ groups/          the decisions of transactions; how far groups of readers have got
    server/                       the daemon
    wire/                         the wire contract, generated and by hand
    client/ producer/             the API of applications
    sink/ datasource/             the data source of Spark
    cli/                          the command line (__main__.py)
    testing/                      a broker for the tests of users, and of this project
    backoff.py                    how long to wait before a retry
    allocator.py, process.py      memory, fork and exit of a process
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.producer.producer import Producer

__version__ = "0.1.0"
__all__ = ["Producer", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Producer":
        from brokerd.producer.producer import Producer

        return Producer
    raise AttributeError(f"module 'brokerd' has no attribute '{name}'")
