"""Ranges of partitions, read in order.

fetcher.py       ranges read at full speed: the next fetch is in flight while the last is decoded
fetch_stream.py  one fetch stream: requests and answers as values
positions.py     how far a range is read, what of an answer belongs to it (pure)
fetched.py       record batches as columns with offsets; aborted transactions left out (pure)
growth.py        waiting until there is more to read
offsets.py       offsets as values, and their requests
"""
