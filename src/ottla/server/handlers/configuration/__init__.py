"""Settings of topics and brokers, and quotas of clients."""
