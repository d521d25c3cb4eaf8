"""Runs record handlers in threads, for `Consumer.process`.

processing.py   the loop: takes records while there is room, commits, shuts down in order
work.py         the handler threads and the records in work
schedule.py     records in work: lanes, duplicates, and what may be committed; pure
dedup.py        message ids, and the window of those handled
id_file.py      that window in a file
"""
