"""Tables back to topics."""
