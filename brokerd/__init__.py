"""brokerd: an ordered, durable log for PySpark.

    from brokerd import Consumer, Producer

Exports are imported on first use, so a Spark worker that only discovers data sources does not load them.

    ids.py, errors.py, clock.py   identifiers; the table of all errors; the only code that reads clocks
    config/                       all settings
    arguments.py                  argument checks shared by the clients
    record/                       the record batch format
    storage/ partition/ datadir/  bytes on disk; one partition; a directory of partitions
    offline/                      doctor, dump, rebuild: for a directory that no broker has open
    purgatory.py                  waiting for a condition or a deadline
    sharing.py                    fair sharing of limited resources
    coordinator/                  the rules of transactions and of consumer groups' offsets
    coordination/                 the coordination store of several nodes: a client of etcd
    internode/                    generated: the messages between nodes
    cluster/                      the rules of a cluster: membership, placement of replicas, leader election
    replication/                  the rules of replication: in-sync replicas, divergence, reassignment
    server/                       the daemon
    wire/                         the wire contract: generated code and hand-written codecs
    client/ producer/ consumer/   the application API
    aio/                          the same for asyncio
    sink/ datasource/ spark.py    the Spark data source; what Spark programs import
    cli/                          the command line (__main__.py)
    testing/                      a broker for the tests of users and of this project
    backoff.py, waiter.py         the wait before a retry; a task waiting for another thread
    event_loop.py                 event loops with gRPC: their end, and that of tasks
    steps.py                      calls written once for both threads and tasks
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
