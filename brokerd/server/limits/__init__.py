"""Limits on clients, so that none takes resources that all need.

A response stays in memory until its client reads it: `max.fetch.bytes.in.flight` limits the total, and slow readers cost the others
response size, not time. A request is in gRPC's memory, outside of every budget, until its last byte arrives: limited by
`socket.request.max.bytes`, `max.connections` and `max.memory.bytes`. A call costs 20 KB before any of its message has arrived and
its caller is known: limited by `max.streams.per.connection`.

response_budget.py bytes of fetch responses, which readers are too slow, and whose response is next
threads.py         threads that callers share
fence.py           producer instances
disconnect.py      closes connections: of one client, or all when memory is short
"""
