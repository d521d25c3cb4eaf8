"""Requests that wait: for durable records, for data, and for their turn to respond.

delayed_produce.py  a produce request with acks=all that waits for the high watermark
delayed_fetch.py    a fetch that waits for more data
response_queue.py   starts the responses of completed fetches, a few at a time
"""
