"""An outbound connection to a broker."""
