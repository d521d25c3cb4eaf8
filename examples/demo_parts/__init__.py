"""What the demo is made of. Each part can be read, and used, on its own.

broker.py    a brokerd daemon as a child process
session.py   a quiet Spark session with the settings of conf/spark-defaults.conf
rows.py      generated events, and how the input is staged for Spark
files.py     the rows of a file, as the file holds them
progress.py  a bar, or lines where there is no terminal
timing.py    how long a query took, and what is in that time
ending.py    Ctrl-C: one sentence, at once
checks.py    was everything read back, once, in order, byte for byte?
"""
