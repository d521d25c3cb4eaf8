"""What goes over the wire: generated messages (v1/), the hand-written codecs of the two streams, method names.

    v1/            generated from proto/
    records.py     the one field that is encoded by hand
    methods.py     names and types of the service's methods
    errors.py      errors to protobuf and back
    channel.py     arguments of channels and servers, each with its reason
    event_loop.py  what gRPC needs of an event loop that it shares a process with
    texts.py       texts from the wire, made fit for people

No rule of the log or the producer may live here.
"""
