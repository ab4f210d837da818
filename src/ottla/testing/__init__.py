"""Starts brokers, ZooKeepers and whole clusters: for tests, and for `ottla cluster`."""

from ottla.testing.broker_process import BrokerDied, BrokerProcess, answers
from ottla.testing.ports import free_port

__all__ = ["BrokerDied", "BrokerProcess", "answers", "free_port"]
