"""Benchmarks: one program per claim, Apache Kafka beside it in the same run.

    python -m bench                     every row, about 25 minutes
    python -m bench --quick             every row, about 4 minutes
    python -m bench produce latency     some rows (names are prefixes; --list shows them)

The client is the same program for both brokers: raw sockets, requests encoded beforehand, one
process. It shares no code with `ottla`, so that a change there never changes the yardstick.
"""
