"""Several brokers: three against three, moves between them, one machine, very large metadata."""
