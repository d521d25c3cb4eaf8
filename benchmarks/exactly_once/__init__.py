"""Attacks on exactly once through Spark: the same pipeline, and the same accidents, against brokerd and other sinks.

__main__.py: the command, and the table it prints
attacks.py: what is done to a pipeline, and what is counted
pipeline.py: the rows and the checkpoints of one attack
job.py: the driver, which runs in the environment of the system that is attacked; processes.py: starts it, and a cluster
standalone.py: a master and two workers
program.py: a program without Spark, run as job.py is; relay.py: loses the answers that it waits for
systems.py: how a system is started, written and read; brokerd. peers.py: Kafka and Delta
pom.xml: the jars of Kafka and Delta
"""
