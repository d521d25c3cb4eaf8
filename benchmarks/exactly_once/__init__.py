"""Attacks on exactly once through Spark: the same pipeline with the same accidents, against brokerd and other sinks.

__main__.py: the command, and the table it prints
attacks.py: the attacks, and their outcomes
pipeline.py: the rows, checkpoints and topics of one attack
job.py: the Spark driver, run in the environment of the attacked system
program.py: a program without Spark, run likewise; relay.py: withholds the responses to it
processes.py: starts drivers, programs and clusters; standalone.py: a master and two workers
systems.py: how to start, write and read a system, with brokerd as one; peers.py: Kafka and Delta
pom.xml: the jars of Kafka and Delta
"""
