"""The only place where gRPC meets the log. In the order in which a request passes:

    daemon.py           builds all parts, starts them, stops them in reverse order
    service.py          methods: bytes in, bytes out, errors to status codes
    produce_stream.py   one produce stream: order, back-pressure, answers in order
    fetch_stream.py     one fetch stream: at most one parked fetch
    streams.py          reading a message of a stream
    handlers/           what each request does: one file a request
    delayed_produce.py  acks=all: waits for the high watermark
    delayed_fetch.py    a fetch that waits for data
    replica_manager.py  partitions of this node: look-up, append, and who is to be woken
    progress.py         bytes below a partition's high watermark
    fence.py            hello: nothing of an instance's older streams is processed
    limits.py           budgets that hold producers back
    answers.py          completed fetches are answered a few at a time
    broker.py           what the handlers share
    failures.py         errors as status codes; what a client may know of an internal one
    fields.py           checks of fields that several requests share
    security/           who is calling, and what they may do
    metrics/            what is counted, and how Prometheus reads it
    logs.py             how log lines look
    systemd.py          tells systemd how the service is
    background.py       retention, checkpoint and expiry timers

Rules of the log, of sequences and of batches do not live here.
"""
