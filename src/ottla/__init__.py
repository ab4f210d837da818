"""Ottla: an event streaming platform in Python that speaks Kafka's wire protocol."""

__version__ = "0.1.0"
