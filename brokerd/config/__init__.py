"""Every setting, declared once: name, default, range and one sentence, on a field of a frozen dataclass.

    settings.py   how a setting is declared, parsed and checked
    broker.py     the daemon's settings, and rules between them: who may reach a broker
    topic.py      what can be set for one topic
    client.py     settings of the producer, the consumer, and both
    load.py       the daemon's settings from file, environment and flags (small_files.py: files named by settings)
    durations.py  15m, 500ms: durations in options
    sample.py     makes conf/brokerd.toml from the settings
    spark_options.py      the options of a Spark source or sink
    kafka_names.py        what becomes of settings of Kafka that brokerd does not have
    suggestions.py        the name that was probably meant, for errors about unknown ones

No other module parses a setting or repeats a default.
"""
