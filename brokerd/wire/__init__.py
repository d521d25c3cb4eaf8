"""The wire format: generated messages (v1/), the hand-written codecs of the two streams, method names.

    v1/            generated from proto/
    records.py     the one field that is encoded by hand
    methods.py     names and types of the service's methods
    errors.py      errors to protobuf and back
    channel.py     arguments of channels and servers, each with its reason
    texts.py       makes texts from the wire safe to print

Rules of the log or the producer do not belong in this package.
"""

from __future__ import annotations

import os

# gRPC reads these when it is first imported: the modules that import gRPC import this package first. What the user has set stands.
# A program that does not talk to a broker keeps its environment.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise each connection that ends is reported on standard error
# gRPC's handlers of a fork stop and start its threads around each one, and crash the child while asyncio uses them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
