"""Real queries with random limits, splits and filters, driver and broker killed: each offset once, in order."""
