"""Handlers of records in threads, for `Consumer.process`.

processing.py   the loop: takes records while there is room, commits, ends in order
work.py         the records in work, shared with the threads
"""
