"""Every setting there is: its name, default, range and one sentence, on the field of a frozen dataclass.

    settings.py   how a setting is declared, parsed and checked
    broker.py     the daemon's settings
    topic.py      what can be set for one topic
    client.py     producer, consumer and what they share
    load.py       the daemon's from file, environment and flags (environment.py; small_files.py: files that settings name)
    listeners.py  who may reach a broker: rules between the daemon's settings, here because a configuration is refused by them, and
                  because clients go by the same idea of what stays on the machine
    sample.py     conf/brokerd.toml out of the settings
    spark_options.py      options of a Spark source or sink, told apart
    spark_own_options.py  those that are the source's or the sink's own
    kafka_names.py        settings of Kafka's clients that do not exist here: passed over or refused

No other module parses a setting or repeats a default.
"""
