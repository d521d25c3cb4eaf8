"""Limits on clients, so that none takes resources that all need.

A response stays in memory until its client reads it: `max.fetch.bytes.in.flight` bounds all of them, and slow readers cost the
others response size, not time. A request is in gRPC's memory until its last byte has arrived, where no budget counts it:
`socket.request.max.bytes`, `max.connections` and `max.memory.bytes` bound those. A call costs 20 KB before a byte of its message
has arrived and its caller is known: `max.streams.per.connection` bounds them.

response_budget.py bytes of fetch responses, and which readers are too slow
threads.py         a few threads for all
fence.py           producer instances
disconnect.py      closes connections
memory.py          closes all connections when memory is short
descriptors.py     open-file limit of the process
"""
