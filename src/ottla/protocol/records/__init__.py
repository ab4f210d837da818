"""Schemas of what Kafka keeps in records: the internal topics and the consumer protocol.

A key or value is an int16 version and the message in that version. In keys of the internal topics
the int16 tells the type of the record instead, and the message is always in version 0.
"""
