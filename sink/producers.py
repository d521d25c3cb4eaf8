"""Producers that are reused between tasks: each serves one task at a time, and is closed when idle for a while (client/leases.py).

The task must flush its producer. The producer of a failed task is discarded at once with everything it still holds, since waiting
would only delay Spark's next attempt.
"""

from __future__ import annotations

import contextlib

from brokerd import process
from brokerd.client.leases import LeaseCache
from brokerd.clock import SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.producer.producer import Producer


def give_up(producer: Producer) -> None:
    """Closes a producer without waiting for the records it holds."""
    producer.close(0)


_producers: LeaseCache[ProducerConfig, Producer] = LeaseCache(SystemClock(), Producer, give_up, is_shared=False)
process.in_forked_child(_producers.forget)


def lease_producer(config: ProducerConfig) -> contextlib.AbstractContextManager[Producer]:
    """A producer of this process for one task: `with lease_producer(config) as producer`. Raises ConfigError."""
    return _producers.lease(config)
