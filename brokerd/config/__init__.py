"""All settings. Each is declared once, as a field of a frozen dataclass with its name, default, range and description.

    settings.py   declares, parses and checks a setting
    broker.py     the broker's settings, and the rules between them, such as authentication beyond loopback
    topic.py      the settings of a topic
    client.py     the settings of clients: shared, the producer's, the consumer's
    load.py       loads the broker's settings from file, environment and flags
    small_files.py        reads files that settings name
    sample.py             generates conf/brokerd.toml
    spark_options.py      the options of the Spark source and sink
    kafka_names.py        Kafka's settings that brokerd lacks: ignored or refused
    suggestions.py        the nearest valid name, for errors about unknown names

No other module parses a setting or repeats a default.
"""
