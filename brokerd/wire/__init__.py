"""The wire format: generated messages (v1/), the hand-written codecs of the two streams, method names.

    v1/            generated from proto/
    records.py     the one field that is encoded by hand
    methods.py     names and types of the service's methods
    errors.py      errors to protobuf and back
    channel.py     arguments of channels and servers, each with its reason
    event_loop.py  adapts an event loop to the gRPC in its process
    texts.py       makes texts from the wire safe to print

Rules of the log or the producer do not belong in this package.
"""

from __future__ import annotations

import os

# gRPC reports every connection that ends on standard error, which is noise for us; set the variable to get it back. gRPC reads it
# when it is first imported: the packages that import gRPC (client, server) import this one first. A program that does not talk to a
# broker keeps its environment.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
