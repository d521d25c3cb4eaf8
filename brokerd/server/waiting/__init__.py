"""What waits in the broker, and for what.

delayed_produce.py  acks=all: waits for the high watermark
delayed_fetch.py    a fetch that waits for data (progress.py: bytes below a partition's high watermark)
answer_queue.py     completed fetches are answered a few at a time
turns.py            requests take turns
pauses.py           work of many pieces lets others in
"""
