"""Starts brokers for tests."""

from ottla.testing.broker_process import BrokerDied, BrokerProcess, answers, free_port

__all__ = ["BrokerDied", "BrokerProcess", "answers", "free_port"]
