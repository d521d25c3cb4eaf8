"""What bounds clients, so that none takes from the others what all need.

budgets.py         bytes of requests that hold producers back (answer_budget.py: of answers)
fence.py           producer instances (shares.py: one principal leaves room for others)
fruitless.py       calls that come to nothing
disconnect.py      ending a connection
memory_guard.py    which senders end when memory is short (machine_memory.py: how much there is)
descriptors.py     how many files the process may open
"""
