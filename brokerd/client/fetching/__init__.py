"""Reads ranges of partitions in order.

fetcher.py    prefetches ranges up to a limit; an iterator of batches
positions.py  progress of a range, and the part of a response that belongs to it (pure)
columns.py    record batches as columns with offsets (pure)
"""
