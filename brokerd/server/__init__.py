"""The only package where gRPC meets the log. In the order in which a request passes through it:

    daemon.py           builds all parts, starts them, stops them in reverse order
    service.py          the methods: bytes in, bytes out, errors as status codes
    streams.py          the state that both kinds of streams share
    handlers/           one file per request (requests.py: the checks that come first)
    transactions/       makes the coordinator's decisions durable, in order
    groups/             how far readers have got, durably
    own_log.py          a log of the broker's own, for both
    waiting/            requests that wait for data, durability or their turn
    limits/             limits on clients
    broker.py           shared by the handlers (admin.py: topic changes, one at a time)
    failures.py         errors as status codes; internal errors without their details
    security/           authentication and authorization
    metrics/            counters, and the Prometheus endpoint
    health.py           grpc.health.v1
    background.py       retention, checkpoint and expiry timers
    stopping.py         the deadline of a shutdown
    logs.py             the format of log lines
    method_names.py     method names that are not UTF-8
    systemd.py          reports the service's state to systemd

Rules of the log, of sequences and of batches do not live here.
"""

from brokerd import wire as wire  # before gRPC: see there
