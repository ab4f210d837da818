"""Membership of a consumer group, by either protocol: assignments, commits, revocations."""
