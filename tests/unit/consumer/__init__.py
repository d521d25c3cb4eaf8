"""The plain Python consumer, against a broker in memory."""
