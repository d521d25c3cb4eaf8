"""Limits on clients, so that none takes resources that all need.

budgets.py         bytes of requests and of fetch responses, to throttle clients
threads.py         a few threads for all
callers.py         who makes a call
fence.py           producer instances
fruitless.py       connections whose calls achieve nothing
disconnect.py      closes a connection
memory_guard.py    closes connections when memory is short (machine_memory.py: available memory)
descriptors.py     open-file limit of the process
"""
