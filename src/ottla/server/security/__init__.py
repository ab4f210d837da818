"""Who clients are and what they may do: TLS, SASL, principals."""
