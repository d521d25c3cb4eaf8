"""Handlers of records in threads, for `Consumer.process`.

processing.py   the loop: takes records while there is room, commits, ends in order
work.py         the records in work, shared with the threads
dedup.py        the window of handled message ids
id_file.py      that window in a file
"""
