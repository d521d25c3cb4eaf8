"""brokerd: an ordered, durable log for PySpark.

    from brokerd import Consumer, Producer

Exports are imported on first use, so a Spark worker that only looks for data sources pays nothing.

    ids.py, errors.py, clock.py   identifiers; the one table of errors; the only reading of clocks
    config/                       every setting
    arguments.py                  checks of arguments that calls of several clients take
    record/                       the record batch format
    storage/ partition/ datadir/  bytes on disk; one partition; a directory of them
    offline/                      doctor, dump, rebuild: for a directory that no broker has open
    purgatory/                    waiting for a condition or a deadline
    sharing.py                    who may have how much of what is scarce, and who is next
    transaction/ groups/          the decisions of transactions; how far groups of readers have got
    server/                       the daemon
    wire/                         the wire contract, generated and by hand
    client/ producer/ consumer/   the API of applications
    aio/                          the same for asyncio
    sink/ datasource/             the data source of Spark
    cli/                          the command line (__main__.py)
    testing/                      a broker for the tests of users, and of this project
    backoff.py, waiter.py         how long to wait before a retry; a task that waits for another thread
    event_loop.py                 the event loop of clients and their tests
    steps.py                      a call written once for threads and tasks
    allocator.py, process.py      memory, fork and exit of a process
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.consumer.consumer import Consumer
    from brokerd.consumer.core.records import ConsumerRecord
    from brokerd.consumer.topic_reader import read
    from brokerd.ids import TopicPartition
    from brokerd.producer.producer import Producer

__version__ = "0.1.0"
__all__ = ["Consumer", "ConsumerRecord", "Producer", "TopicPartition", "__version__", "read"]

_HOMES = {
    "Consumer": "brokerd.consumer.consumer",
    "ConsumerRecord": "brokerd.consumer.core.records",
    "Producer": "brokerd.producer.producer",
    "TopicPartition": "brokerd.ids",
    "read": "brokerd.consumer.topic_reader",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'brokerd' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
