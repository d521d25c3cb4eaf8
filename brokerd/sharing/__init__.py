"""How callers share what is scarce (memory, threads, turns, places in a table), so that none takes what all need. Pure.

line.py    who is next
shares.py  how much of a limit one may have
room.py    both: who may have how much, and who is next while there is too little
"""
