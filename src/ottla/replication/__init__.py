"""One partition across brokers: leader and follower state, high watermark."""
