"""What the durability tests share: a client, producers that write through crashes, and the checks."""
