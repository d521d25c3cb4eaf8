"""Real queries with random limits, splits and filters; driver and broker are killed. Each offset is read once, in order."""
