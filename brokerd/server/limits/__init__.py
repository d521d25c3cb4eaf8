"""Limits on clients, so that no client exhausts shared resources.

A response stays in memory until its client reads it: `max.fetch.bytes.in.flight` limits the total, and slow readers shrink other
responses instead of delaying them. A request is in gRPC's memory, outside of every budget, until its last byte arrives: limited by
`socket.request.max.bytes`, `max.connections` and `max.memory.bytes`. A call costs 20 KB before any of its message has arrived and
its caller is known: limited by `max.streams.per.connection`.

response_budget.py bytes of fetch responses, slow readers, and the order of responses
threads.py         thread pools that callers share
fence.py           producer instances
disconnect.py      closes connections: of one client, or all when memory is short
"""
