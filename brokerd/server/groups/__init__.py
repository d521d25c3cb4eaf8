"""The server's side of groups: makes the decisions of the pure table (brokerd/groups) durable before it responds.

groups.py  one broker's groups: decide, append, wait for durability, respond; loading, expiry, compaction
"""
