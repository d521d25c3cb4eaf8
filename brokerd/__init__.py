"""brokerd: an ordered, durable log for PySpark.

    from brokerd import Producer

What is exported is imported on first use: a Spark worker that only looks for data sources pays nothing.

    ids.py, errors.py, clock.py   names; the one table of errors; the only reading of clocks
    config/                       every setting
    record/                       what a batch is
    storage/ partition/ datadir/  bytes on disk; one partition; a directory of them
    offline/                      doctor, dump, rebuild: for a directory that no broker has open
    purgatory/                    waiting for a condition or a deadline
    server/                       the daemon
    wire/                         the wire contract, generated and by hand
    client/ producer/             what applications use
    sink/ datasource/             what Spark uses
    cli/                          the command line (__main__.py)
    backoff.py                    how long to wait before trying again
    allocator.py, process.py      what a process does about memory, at a fork and at its end
"""

from __future__ import annotations

import os
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


# gRPC tells standard error of every connection that ends, which is no news to us; whoever wants it sets the variable.
# It is read when gRPC is first imported, and whatever imports it here comes through this package.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
