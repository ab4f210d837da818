"""Several brokers on one machine, one for each core: `ottla serve --brokers N`
(docs/adr/0012-brokers-of-one-machine.md)."""
