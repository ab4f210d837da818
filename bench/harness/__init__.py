"""What the benchmark programs have in common: the client, the brokers, the rounds, the report."""
