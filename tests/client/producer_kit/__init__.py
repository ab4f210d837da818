"""What the producer's tests share."""
