"""Reads ranges of partitions in order.

fetcher.py    fetches ranges ahead of the reader, as far as there is room; an iterator of batches
positions.py  how far a range is read, and which part of a response belongs to it (pure)
columns.py    record batches as columns with offsets (pure)
"""
