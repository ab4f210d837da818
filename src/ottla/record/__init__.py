"""One record batch: view, validate, build, iterate, compress; legacy message sets. No I/O."""
