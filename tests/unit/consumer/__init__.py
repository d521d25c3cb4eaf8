"""The consumer of plain Python against a broker in memory."""
