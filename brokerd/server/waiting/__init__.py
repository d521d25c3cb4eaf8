"""Requests that wait, by what they wait for.

delayed_produce.py  acks=all: waits for the high watermark
delayed_fetch.py    a fetch that waits for data
response_queue.py   completed fetches are answered a few at a time
pauses.py           long work in pieces lets other requests in; pages of long lists
"""
