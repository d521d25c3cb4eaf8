"""The daemon: the only package where gRPC meets the log. In the order in which a request passes through:

    daemon.py           builds all parts, starts them, stops them in reverse order; health
    service.py          the gRPC methods: bytes in, bytes out, errors as status codes
    streams.py          state shared by both kinds of streams
    handlers/           the requests, by kind (requests.py: checks that come first)
    coordinator/        makes decisions on transactions and groups' offsets durable, in order
    cluster/            this node's membership in a cluster (internode.py: serves the other nodes)
    replication/        copies of partitions on several nodes
    delayed_produce.py  waits until appended batches are durable
    paging.py           long work in pieces, long lists in pages
    limits/             limits on clients
    broker.py           the parts that handlers share (admin.py: changes of topics, one at a time)
    failures.py         errors as status codes; internal errors without their details
    security/           authentication and authorization
    metrics/            counters, and the Prometheus endpoint
    background.py       periodic jobs
    logs.py             the format of log lines

The rules of the log, of sequences and of batches are in other packages.
"""

from brokerd import wire as wire  # before gRPC: see its comments
