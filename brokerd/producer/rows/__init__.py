"""Rows on their way into batches: Arrow columns and the records of `send`. Nothing here decides about delivery.

arguments.py        checks of what callers pass
record_buffer.py    records of `send`, until they become columns
columns.py          columns checked, cast and split by partition
row_partitioner.py  a partition for each row
totals.py           sums over rows, for transactions
splitting.py        splits a batch that is too large
encoding.py         encodes the pieces of a batch
"""
