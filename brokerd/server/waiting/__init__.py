"""Requests that wait: for durable records, for data, and for their turn to respond.

delayed_produce.py  a produce request with acks=all that waits for the high watermark
delayed_fetch.py    a fetch that waits for more data; starts the responses of those that are done, a few at a time
"""
