"""Log folders without a broker: reading and verifying them."""
