"""The runtime of the group and transaction coordinators, and what they need from the broker."""
