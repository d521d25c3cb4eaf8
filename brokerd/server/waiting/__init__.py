"""Requests that wait: for durable records, for their turn to respond, and between the pieces of long work.

delayed_produce.py  a produce request with acks=all that waits for the high watermark
response_queue.py   starts the responses of completed fetches, a few at a time
pauses.py           splits long work so that other requests run in between; pages of long lists
"""
