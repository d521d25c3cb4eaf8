"""Runs record handlers in threads, for `Consumer.process`.

processing.py   the loop: takes records while there is room, commits, shuts down in order
work.py         the handler threads and the records in work
dedup.py        the window of handled message ids
id_file.py      that window in a file
"""
