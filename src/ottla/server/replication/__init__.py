"""A broker among brokers: connections to the others, followers, in-sync sets, the controller."""
