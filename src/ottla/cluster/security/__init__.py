"""What the cluster knows of users: access control lists, credentials, quotas. No I/O."""
