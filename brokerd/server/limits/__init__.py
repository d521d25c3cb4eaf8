"""Limits on clients, so that none takes resources that all need.

budgets.py         bytes of requests and of fetch responses, to throttle clients
fence.py           producer instances (shares.py: leaves room for other principals)
fruitless.py       connections whose calls achieve nothing
disconnect.py      closes a connection
memory_guard.py    closes connections when memory is short (machine_memory.py: available memory)
descriptors.py     open-file limit of the process
"""
