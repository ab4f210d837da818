"""The consumer: topics as Arrow record batches, by groups or by hand."""

from ottla.client.consumer.asynchronous import AsyncConsumer
from ottla.client.consumer.blocking import Batches, Consumer
from ottla.client.consumer.records import ConsumedRecord
from ottla.client.consumer.scanning import Scan

__all__ = ["AsyncConsumer", "Batches", "ConsumedRecord", "Consumer", "Scan"]
