"""Moving partitions between brokers: plans, and how they are carried out."""
