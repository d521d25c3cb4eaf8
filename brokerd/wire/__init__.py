"""The wire format: generated messages (v1/), hand-written codecs of the two streams, method names.

    v1/            generated from proto/
    records.py     codec of the one field that is encoded by hand
    methods.py     names and types of the service's methods
    errors.py      errors to and from protobuf
    channel.py     channel and server arguments, with their reasons
    texts.py       makes text from the wire safe to print

Rules of the log and the producer do not belong in this package.
"""

from __future__ import annotations

import os

# gRPC reads these at its first import, so modules that import gRPC import this package first. Values set by the user are kept, and
# a program that does not use a broker keeps its environment.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # by default gRPC reports every ended connection on standard error
# gRPC's fork handlers stop and restart its threads around each fork, and crash the child if asyncio is using them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
