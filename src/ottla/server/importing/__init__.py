"""Logs of a stopped Apache Kafka broker become those of a single node of Ottla.

- metadata_log.py reads what Kafka's metadata log says of topics and settings.
- source.py looks at the data folder: what is there, what can be taken over, what cannot.
- importing.py copies the logs and makes their topics known.

Nothing of the source is ever written to.
"""
