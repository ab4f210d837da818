"""Quotas of clients: what they use, and what they change."""
