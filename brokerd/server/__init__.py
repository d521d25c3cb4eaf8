"""The only place where gRPC meets the log. In the order in which a request passes:

    daemon.py           builds all parts, starts them, stops them in reverse order
    service.py          methods: bytes in, bytes out, errors to status codes
    streams/            one produce or fetch stream
    handlers/           what each request does: one file a request (requests.py, fields.py: what is checked first)
    replica_manager.py  partitions of this node: look-up, append, and who is to be woken
    waiting/            requests that wait for data, for durability, for their turn
    limits/             what bounds clients
    broker.py           what the handlers share (admin.py: changes of topics, one at a time; tasks.py)
    failures.py         errors as status codes; what a client may know of an internal one
    security/           who is calling, and what they may do
    metrics/            what is counted, and how Prometheus reads it
    health.py           grpc.health.v1
    background.py       retention, checkpoint and expiry timers
    stopping.py         the one deadline of a stop
    logs.py             how log lines look (grpc_log.py: and which of gRPC's are left out)
    method_names.py     method names that are no text
    systemd.py          tells systemd how the service is

Rules of the log, of sequences and of batches do not live here.
"""
