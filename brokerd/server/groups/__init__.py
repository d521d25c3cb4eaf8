"""The server's side of groups: what the pure table (brokerd/groups) decides is made durable here before it is answered.

groups.py  one broker's groups: decide, record, wait for the disk, answer; loading, expiry, compaction
"""
