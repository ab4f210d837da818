"""Brokers, features and what brokers ask of the controller."""
