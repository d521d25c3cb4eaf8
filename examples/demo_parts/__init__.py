"""The parts of the demo. Each can be read and used on its own.

broker.py    a broker as a child process
session.py   a quiet Spark session with the settings of conf/spark-defaults.conf
rows.py      generates events, and stages the input for Spark
files.py     reads the rows of a file exactly as written
progress.py  a progress bar, or lines without a terminal
timing.py    the time of a query, with and without its first micro-batch
ending.py    Ctrl-C: ends the demo at once, with one sentence
checks.py    checks that everything was read back once, in order, byte for byte
"""
