"""Attacks on exactly once through Spark: the same pipeline, and the same accidents, against brokerd and other sinks.

__main__.py: the command, and the table it prints
attacks.py: what is done to a pipeline, and what is counted
pipeline.py: the rows, the checkpoints and the driver of one attack
job.py: the driver, which runs in the environment of the system that is attacked
systems.py: brokerd, Kafka and Delta: how they are started, written and read
pom.xml: the jars of Kafka and Delta
"""
