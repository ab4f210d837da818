"""Making a log out of what is on disk: after a clean shutdown, after a crash."""
