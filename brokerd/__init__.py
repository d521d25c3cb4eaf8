"""brokerd: an ordered, durable log for PySpark.

    from brokerd import Producer

What is exported is imported on first use: a Spark worker that only looks for data sources pays nothing.
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
