"""Reads ranges of partitions in order.

fetcher.py         reads ranges: the next fetch is in flight while the last is decoded
pump.py            its part on the loop thread: streams, and responses into a queue
arrivals.py        the queue between the two
fetch_messages.py  requests and responses of a fetch stream as values
positions.py       how far a range is read, and which part of a response belongs to it (pure)
fetched.py         record batches as columns with offsets; without aborted transactions (pure)
growth.py          waiting until there is more to read
offsets.py         offset queries as values
bounds.py          where a read begins and ends, as users write it
"""
