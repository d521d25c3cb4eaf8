"""The parts of the demo. Each can be read, and used, on its own.

broker.py    a brokerd daemon as a child process
session.py   a quiet Spark session with the settings of conf/spark-defaults.conf
rows.py      generated events, and how the input is staged for Spark
files.py     the rows of a file, as the file holds them
progress.py  a progress bar, or lines without a terminal
timing.py    how long a query took, and what that includes
ending.py    Ctrl-C: ends the demo at once, with one sentence
checks.py    was everything read back, once, in order, byte for byte?
"""
