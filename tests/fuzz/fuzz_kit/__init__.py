"""What the fuzz tests share: requests made at random, ways to spoil them, a broker to feed them to."""
