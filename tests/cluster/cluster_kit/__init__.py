"""What the tests of real clusters share: a workload, the checker of its history, and faults."""
