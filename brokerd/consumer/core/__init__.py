"""The consumer's decisions, pure. No thread, no clock, no network.

assignment.py   assigned partitions: positions, pauses, where to begin
records.py      columns as records and as Arrow
"""
