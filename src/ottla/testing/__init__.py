"""Starts brokers for tests."""
