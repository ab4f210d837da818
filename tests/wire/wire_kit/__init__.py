"""What the tests of wire and client stand on: brokers of other kinds, and certificates."""
