"""Rows on their way into batches: Arrow columns and the records of `send`. Nothing here decides about delivery.

arguments.py        what callers may pass
record_buffer.py    records of `send`, until they become columns
columns.py          columns checked, cast and split by partition
row_partitioner.py  a partition for each row
splitting.py        a batch that is too large becomes two
encoding.py         pieces of a batch become its bytes
"""
