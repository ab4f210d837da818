"""Helpers for the tests of several brokers on one machine."""
